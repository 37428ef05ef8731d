"""Fleets for programs: deployed empty, started by a run, and an instance leaves without being replaced."""

import json
import subprocess
from pathlib import Path

import pytest
from aws_cdk import App, Stack

from cdk import grants
from cdk.fleets import Fleet, Machines
from cdk.hosts import USER_DATA_LIMIT_BYTES, boot_script, debian_image
from cdk.network import Network
from crossover.experiment import Experiment
from tests.infrastructure.assemblies import Json, actions_of, flat, only, resources


@pytest.fixture(scope="module")
def template(spirt: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Json:
    app = App(outdir=str(tmp_path_factory.mktemp("fleet")), builtin_cloud_formation_validation=False)
    stack = Stack(app, "peers")
    Fleet(
        stack,
        "Peers",
        experiment=spirt,
        network=Network(stack, "crossover"),
        machines=Machines(
            instance_type="t2.large",
            image=debian_image(stack, "t2.large"),
            count=4,
            volume_gb=20,
            requirements="torch redis",
            spot=True,
        ),
        module="crossover.training.calendar",  # stands for a program until one exists
        environment={"BUCKET": "bucket", "RUN": "x"},
        may=[grants.secret("arn:aws:secretsmanager:x")],
    )
    folder = Path(app.synth().directory)
    found: Json = json.loads((folder / "peers.template.json").read_text())
    return found


def test_it_is_deployed_empty_and_keeps_what_a_run_sets(template: Json) -> None:
    group = only(template, "AWS::AutoScaling::AutoScalingGroup")
    assert group["MinSize"] == "0"
    assert group["MaxSize"] == "4"
    assert "DesiredCapacity" not in group  # deploying again would reset it (aws.md 4)
    assert group["AutoScalingGroupName"] == "crossover-spirt-fleet"


def test_its_instances(template: Json) -> None:
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
    assert allowed["secretsmanager:GetSecretValue"] == {"arn:aws:secretsmanager:x"}


def test_the_program_runs_as_a_service(template: Json) -> None:
    script = flat(only(template, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"])
    assert "PROGRAM='crossover.training.calendar'" in script
    facts = "CROSSOVER_BUCKET=bucket\nCROSSOVER_RUN=x\nCROSSOVER_FLEET=crossover-spirt-fleet\nCROSSOVER_IDLE_S=900"
    assert f"ENVIRONMENT='{facts}'" in script
    assert "User=crossover" in script
    assert not resources(template, "AWS::EC2::SecurityGroup")


@pytest.mark.parametrize("name", ["program.sh", "redis.sh"])
def test_a_boot_script_parses_and_knows_no_line_too_few(name: str) -> None:
    script = boot_script(name)
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=True).stderr == ""
    assert "@" not in script.replace('"$@"', "")  # every file that it includes was found
