"""The shared network: no NAT, two subnets in one zone, closed groups, and only the endpoints that are needed."""

from dataclasses import replace
from typing import Any

import pytest

from tests.infrastructure.assemblies import Assembly, actions_of, flat, listed, resources
from tests.infrastructure.conftest import Synthesize


def test_nothing_in_it_is_billed_by_the_hour_but_one_endpoint(assembly: Assembly) -> None:
    """Check that the network has no NAT gateway and no address, and only one endpoint that is billed by the hour."""
    kinds = [resource["Type"] for resource in assembly.network["Resources"].values()]
    assert "AWS::EC2::NatGateway" not in kinds
    assert "AWS::EC2::EIP" not in kinds
    endpoints = resources(assembly.network, "AWS::EC2::VPCEndpoint").values()
    services = sorted((e["VpcEndpointType"], flat(e["ServiceName"])) for e in endpoints)
    assert services == [
        ("Gateway", "com.amazonaws.<AWS::Region>.s3"),
        ("Interface", "com.amazonaws.<AWS::Region>.secretsmanager"),
    ]


def test_its_clean_up_goes_last_so_that_a_deletion_that_fails_is_tried_again(assembly: Assembly) -> None:
    """Check that the network's resources depend on the clean-up's schedule, so that CloudFormation deletes it last."""
    made = assembly.network["Resources"]
    (schedule,) = resources(assembly.network, "AWS::Scheduler::Schedule")
    for kind in ("AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::SecurityGroup", "AWS::EC2::VPCEndpoint"):
        for name in resources(assembly.network, kind):
            assert schedule in listed(made[name].get("DependsOn", [])), name


def test_one_public_and_one_isolated_subnet(assembly: Assembly) -> None:
    """Check that the network has a public subnet with a route to the internet, and one without."""
    subnets = resources(assembly.network, "AWS::EC2::Subnet")
    assert sorted(s["MapPublicIpOnLaunch"] for s in subnets.values()) == [False, True]
    routes = resources(assembly.network, "AWS::EC2::Route").values()
    (default,) = routes
    assert "Hosts" in flat(default["RouteTableId"])
    assert "IGW" in flat(default["GatewayId"])


@pytest.mark.slow
def test_the_zone_is_a_parameter_that_stays(assembly: Assembly, synth: Synthesize, spirt: Any) -> None:
    """Check that the availability zone is a template parameter, and that a rule of the template refuses another zone in the file.

    The CDK leaves parameters at their previous values.
    """
    asking = synth(network=replace(spirt.network, availability_zone="us-east-1d"))
    for made, default in ((assembly, ""), (asking, "us-east-1d")):
        assert made.network["Parameters"]["Zone"]["Default"] == default
        zones = [s["AvailabilityZone"] for s in resources(made.network, "AWS::EC2::Subnet").values()]
        first = {"Fn::Select": [0, {"Fn::GetAZs": ""}]}
        assert zones == 2 * [{"Fn::If": ["ZoneIsNamed", {"Ref": "Zone"}, first]}]
        published = {each["Name"]: each["Value"] for each in resources(made.network, "AWS::SSM::Parameter").values()}
        assert published["/crossover/crossover/network/zone"] == zones[0]
    assert "ZoneStays" not in assembly.network.get("Rules", {})
    (assertion,) = asking.network["Rules"]["ZoneStays"]["Assertions"]
    assert assertion["Assert"] == {"Fn::Equals": [{"Ref": "Zone"}, "us-east-1d"]}
    assert "leave the field out" in assertion["AssertDescription"]


def test_only_these_ports_come_in_and_only_from_our_own_groups(assembly: Assembly) -> None:
    """Check all rules for incoming connections: ports, and the security groups that they admit."""
    template = assembly.network
    for group in resources(template, "AWS::EC2::SecurityGroup").values():
        assert "SecurityGroupIngress" not in group  # the rules stand apart, each from a group
    rules = {
        (flat(r["SourceSecurityGroupId"])[1:6], r["FromPort"], r["ToPort"], flat(r["GroupId"])[1:6])
        for r in resources(template, "AWS::EC2::SecurityGroupIngress").values()
    }
    assert rules == {
        ("Funct", 6379, 6379, "Hosts"),
        ("Funct", 5671, 5671, "Broke"),
        ("Progr", 5671, 5671, "Broke"),
        ("Funct", 443, 443, "Endpo"),
        ("Hosts", 443, 443, "Endpo"),
        ("Progr", 443, 443, "Endpo"),
    }


def test_what_goes_out_is_named(assembly: Assembly) -> None:
    """Check the TCP ports to which each security group may connect."""
    template = assembly.network
    ports = {
        name[:5]: sorted(rule.get("FromPort") for rule in group["SecurityGroupEgress"] if rule["IpProtocol"] == "tcp")
        for name, group in resources(template, "AWS::EC2::SecurityGroup").items()
    }
    assert ports == {"Funct": [443], "Hosts": [80, 443], "Progr": [80, 443], "Broke": [], "Endpo": []}


def test_groups_and_subnets_of_functions_outlive_experiments(assembly: Assembly) -> None:
    """Check that the subnets and security groups of functions are the network stack's, not the experiment's.

    Network interfaces of functions block the deletion of both for 20 to 40 minutes (aws.md 3).
    """
    kinds = {resource["Type"] for resource in assembly.experiment["Resources"].values()}
    assert not kinds & {
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::Subnet",
        "AWS::EC2::VPC",
        "AWS::EC2::SecurityGroupIngress",
    }
    for step in assembly.steps():
        config = assembly.function(step).get("VpcConfig")
        for reference in [*config["SubnetIds"], *config["SecurityGroupIds"]] if config else []:
            path = assembly.experiment["Parameters"][reference["Ref"]]["Default"]
            assert path.startswith("/crossover/crossover/network/functions_")


def test_nothing_leaves_the_account_by_an_endpoint(assembly: Assembly) -> None:
    """Check that the network's endpoints are those of S3 and Secrets Manager, and admit this account's resources and principals only."""
    found = {
        flat(e["ServiceName"]).rpartition(".")[2]: e["PolicyDocument"]["Statement"]
        for e in resources(assembly.network, "AWS::EC2::VPCEndpoint").values()
    }
    assert found.keys() == {"s3", "secretsmanager"}
    for (statement,) in found.values():
        mine = statement["Condition"]["StringEquals"]
        assert statement["Effect"] == "Allow"
        assert {key: flat(value) for key, value in mine.items()} == {
            "aws:ResourceAccount": "<AWS::AccountId>",
            "aws:PrincipalAccount": "<AWS::AccountId>",
        }
    (through,) = found["s3"]
    assert [flat(each) for each in through["Resource"]] == [
        f"arn:<AWS::Partition>:s3:::crossover*{rest}" for rest in ("", "/*")
    ]
    may = {
        action
        for step in assembly.steps()
        for action in actions_of(assembly.experiment, assembly.function(step)["Role"])
    }
    assert {action for action in may if action.startswith("s3:")} == set(through["Action"])
