"""Every (function or instance, service) of every architecture has its route, pair of security group rules, endpoint and permission; without
any one piece of them this says so.
"""

from collections import Counter

import pytest

from tests.infrastructure.assemblies import Assembly
from tests.infrastructure.callers import look, needs
from tests.infrastructure.cases import PLAIN, Case
from tests.infrastructure.conftest import Assembled
from tests.infrastructure.reachability import Pointer, without

NAMES = [
    *PLAIN,
    "all-reduce over s3",
    "spirt with a bucket per worker",
    "p2p-serverless with a bucket per worker",
    "spirt as images",
    "gpu distributed",
]

IN_VPC = {"AWS::EC2::VPCEndpoint", "AWS::EC2::Route"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_everybody_reaches_what_the_tree_asks_for(name: str, assembled: Assembled) -> None:
    """Check in the templates that every function and instance can reach all services that it uses."""
    made, experiment = assembled(name), Case.of(name).experiment
    for need in needs(experiment):
        assert look(made.templates, need, experiment=experiment).missing == [], need


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_without_any_one_piece_somebody_lacks_a_service(name: str, assembled: Assembled) -> None:
    """Check that without any single piece of the evidence each need that relies on it is missing something."""
    made, experiment = assembled(name), Case.of(name).experiment
    found = {need: set(look(made.templates, need, experiment=experiment).evidence) for need in needs(experiment)}
    for need, evidence in found.items():
        assert len(evidence) > (15 if kinds(made, evidence) & IN_VPC else 4), need
    for pointer in set().union(*found.values()):
        mutilated = without(made.templates, pointer)
        for need, evidence in found.items():
            if pointer in evidence:
                assert look(mutilated, need, experiment=experiment).missing, f"{need} without {pointer}"


def kinds(made: Assembly, evidence: set[Pointer]) -> set[str]:
    """Return the types of the resources that the pointers name. A pointer into a resource adds the name of the property, as in
    `AWS::EC2::Instance SubnetId`.
    """
    found = set()
    for stack, _, name, *rest in evidence:
        kind = made.templates[str(stack)]["Resources"][name]["Type"]
        found.add(kind if not rest else f"{kind} {rest[2] if 'LaunchTemplateData' in rest else rest[1]}")
    return found


def test_the_look_up_sees_every_kind_of_piece(assembled: Assembled) -> None:
    """Check that the evidence contains pieces of every kind, so that the look-up does not pass by looking at little."""
    found = set[str]()
    for name in ("spirt", "p2p-serverless", "gpu distributed"):
        made, experiment = assembled(name), Case.of(name).experiment
        for need in needs(experiment):
            found |= kinds(made, set(look(made.templates, need, experiment=experiment).evidence))
    assert found >= {
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::SecurityGroupEgress",
        "AWS::EC2::SecurityGroup SecurityGroupEgress",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::Route",
        "AWS::EC2::InternetGateway",
        "AWS::EC2::VPCGatewayAttachment",
        "AWS::EC2::Subnet MapPublicIpOnLaunch",
        "AWS::EC2::VPCEndpoint",
        "AWS::SSM::Parameter",
        "AWS::AmazonMQ::Broker",
        "AWS::IAM::Role Policies",
        "AWS::IAM::InstanceProfile",
        "AWS::Lambda::Function VpcConfig",
        "AWS::Lambda::Function Environment",
        "AWS::EC2::Instance SecurityGroupIds",
        "AWS::EC2::Instance SubnetId",
        "AWS::EC2::Instance IamInstanceProfile",
        "AWS::EC2::Instance UserData",
        "AWS::EC2::LaunchTemplate SecurityGroupIds",
        "AWS::EC2::LaunchTemplate IamInstanceProfile",
        "AWS::EC2::LaunchTemplate UserData",
        "AWS::AutoScaling::AutoScalingGroup VPCZoneIdentifier",
        "AWS::StepFunctions::StateMachine",
        "AWS::CloudFormation::WaitCondition",
    }


@pytest.mark.slow
def test_who_needs_what_is_read_off_the_trees() -> None:
    """Check the services that functions, hosts and fleets need against a list written by hand, so that an overlooked need is seen."""

    def of(name: str) -> dict[str, set[str]]:
        """Return the services of each function and instance of a case."""
        return {need.who: set(need.services) for need in needs(Case.of(name).experiment)}

    fleet = {"boot", "objects"}
    assert of("p2p-instance") == {"fleet": fleet | {"bus"}}
    assert of("p2p-serverless") == {
        "fleet": fleet | {"bus", "machines"},
        "function:compute_gradient": {"objects"},
        "function:average_part": {"objects"},
    }
    assert of("gpu") == {"fleet": fleet}
    assert of("gpu distributed") == {"fleet": fleet | {"collective"}}
    hosts = {name: Counter(who.partition(":")[0] for who in of(name))["host"] for name in NAMES}
    assert (hosts["spirt"], hosts["mlless"], hosts["all-reduce"], hosts["all-reduce over s3"]) == (4, 1, 1, 0)
    assert of("mlless")["function:supervise"] == {"objects", "tensors", "bus"}
