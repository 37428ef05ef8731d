"""Fleets for programs: deployed empty, started by a run, and an instance leaves without being replaced."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from aws_cdk import App, Stack

from cdk.constructs import Broker, Buckets, ProgramFleet, SharedNetwork
from cdk.hosts import USER_DATA_LIMIT_BYTES, boot_script
from crossover.experiment import Experiment
from crossover.workflow.architecture import Instances
from peers.p2p_instance import PROGRAM
from tests.infrastructure.assemblies import Json, actions_of, flat, only, resources


@pytest.fixture(scope="module")
def template(spirt: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Return the template of a stack that holds one fleet of four spot instances with a broker."""
    app = App(outdir=str(tmp_path_factory.mktemp("fleet")), builtin_cloud_formation_validation=False)
    stack = Stack(app, "crossover-spirt")
    peers = Instances(purpose="peer", setting="", instance_type="t2.large", count=4, spot=True)
    ProgramFleet(
        stack,
        "Peers",
        module=PROGRAM.module,
        instances=peers,
        lifetime=spirt.lifetime,
        identity={"PROJECT": "crossover", "EXPERIMENT": "spirt", "ARCHITECTURE": "p2p_instance"},
        network=SharedNetwork(stack, "crossover"),
        storage=Buckets(stack, "Storage", bucket_per_worker=False, workers=4),
        uses=[Broker(stack, "crossover")],
        environment={"RUN": "x"},
    )
    folder = Path(app.synth().directory)
    found: Json = json.loads((folder / "crossover-spirt.template.json").read_text())
    return found


def test_it_is_deployed_empty_and_keeps_what_a_run_sets(template: Json) -> None:
    """Check that a fleet's group is deployed without instances and sets no desired capacity."""
    group = only(template, "AWS::AutoScaling::AutoScalingGroup")
    assert group["MinSize"] == "0"
    assert group["MaxSize"] == "4"
    assert "DesiredCapacity" not in group  # deploying again would reset it (aws.md 4)
    assert group["AutoScalingGroupName"] == "crossover-spirt-fleet"


def test_fleet_instances_are_encrypted_tagged_and_without_ssh(template: Json) -> None:
    """Check the launch template of a fleet: IMDSv2, termination at shutdown, spot, encrypted disk, tags, no key pair, security group and
    image.
    """
    data = only(template, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert {spec["ResourceType"] for spec in data["TagSpecifications"]} == {"instance", "volume"}
    assert "KeyName" not in data
    (group,) = data["SecurityGroupIds"]
    assert template["Parameters"][group["Ref"]]["Default"].endswith("/network/programs_group")
    image = template["Parameters"][data["ImageId"]["Ref"]]["Default"]
    assert image == "/aws/service/debian/release/13/latest/amd64"


def test_an_instance_leaves_without_being_replaced(template: Json) -> None:
    """Check that an instance's script terminates it with a lower desired capacity and after the maximum duration, and that its role allows
    that.
    """
    script = flat(only(template, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"])
    assert len(script) < USER_DATA_LIMIT_BYTES
    assert "TerminateInstanceInAutoScalingGroup" in script
    assert '"ShouldDecrementDesiredCapacity": "true"' in script
    assert 'systemd-run --quiet --on-active="${MAXIMUM_S}s"' in script
    assert "MAXIMUM_S='21600'" in script  # lifetime.maximum_run_hours
    profile = only(template, "AWS::IAM::InstanceProfile")
    allowed = actions_of(template, {"Fn::GetAtt": [profile["Roles"][0]["Ref"], "Arn"]})
    (leaving,) = allowed["autoscaling:TerminateInstanceInAutoScalingGroup"]
    assert leaving.endswith(":autoScalingGroup:*:autoScalingGroupName/crossover-spirt-fleet")
    (secret,) = allowed["secretsmanager:GetSecretValue"]
    assert template["Parameters"][secret.strip("<>")]["Default"].endswith("/broker/secret")


def test_the_program_runs_as_a_service(template: Json) -> None:
    """Check the environment variables of a fleet's program, and that a service runs it."""
    script = flat(only(template, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"])
    assert "PROGRAM='peers.p2p_instance'" in script
    (facts,) = re.findall("ENVIRONMENT='([^']*)'", script)
    names = [
        "PROJECT",
        "EXPERIMENT",
        "ARCHITECTURE",
        "BUCKET",
        "BROKER",
        "BROKER_SECRET",
        "METADATA",
        "RUN",
        "FLEET",
        "IDLE_S",
    ]
    assert [line.partition("=")[0] for line in facts.splitlines()] == [f"CROSSOVER_{name}" for name in names]
    assert facts.endswith("CROSSOVER_RUN=x\nCROSSOVER_FLEET=crossover-spirt-fleet\nCROSSOVER_IDLE_S=900")
    assert "User=crossover" in script
    assert not resources(template, "AWS::EC2::SecurityGroup")


@pytest.mark.parametrize("name", ["program.sh", "redis.sh"])
def test_a_boot_script_parses_and_knows_no_line_too_few(name: str) -> None:
    """Check that a boot script is valid Bash and that all files which it includes were found."""
    script = boot_script(name)
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=True).stderr == ""
    assert "@" not in script.replace('"$@"', "")  # every file that it includes was found
