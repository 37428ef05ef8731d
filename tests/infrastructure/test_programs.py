"""The stacks of programs: who may do what, what stands in their environment, and what the network lets through."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdk.hosts import USER_DATA_LIMIT_BYTES
from crossover import validation
from crossover.user_code import DATAPLANE
from layer import lock
from layer.contents import TORCH
from stacks.synthesis import synthesize
from tests.infrastructure.assemblies import Assembly, Json, actions_of, flat, only, resources
from tests.infrastructure.conftest import NOW, ROOT

Make = Callable[..., Json]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that makes the template of an experiment's stack, once for each distinct call."""
    made: dict[str, Json] = {}

    def of(config: str, **fields: Any) -> Json:
        """Return the template of config/`config`.yaml. `fields`: sections of the experiment with the fields to replace in them."""
        key = config + repr(fields)
        if key not in made:
            experiment = validation.load(ROOT / "config" / f"{config}.yaml")
            experiment = replace(experiment, **{k: replace(getattr(experiment, k), **v) for k, v in fields.items()})
            folder = synthesize(experiment, tmp_path_factory.mktemp("assembly"), layers=Path("/nowhere"), now=NOW)
            made[key] = Assembly(folder, f"{experiment.project}-{experiment.name}").experiment
        return made[key]

    return of


def script(template: Json) -> str:
    """Return the boot script in the template's only launch template, as plain text."""
    return flat(only(template, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"])


def allowed(template: Json) -> dict[str, set[str]]:
    """Return the resources that the role of the template's only instance profile may use, by action."""
    profile = only(template, "AWS::IAM::InstanceProfile")
    found: dict[str, set[str]] = actions_of(template, {"Fn::GetAtt": [profile["Roles"][0]["Ref"], "Arn"]})
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "module", "size", "kind"),
    [
        ("p2p-instance", "peers.p2p_instance", "4", "t2.large"),
        ("p2p-serverless", "peers.p2p_serverless", "4", "t2.small"),
        ("gpu", "peers.gpu", "4", "g4dn.xlarge"),
    ],
)
def test_each_fleet_runs_its_program(template: Make, config: str, module: str, size: str, kind: str) -> None:
    """Check for each fleet its program, size, instance type and published name."""
    found = template(config)
    text = script(found)
    assert f"PROGRAM='{module}'" in text
    assert f"CROSSOVER_FLEET=crossover-{config}-fleet" in text
    assert len(text) < USER_DATA_LIMIT_BYTES
    assert "password" not in text.lower()
    group = only(found, "AWS::AutoScaling::AutoScalingGroup")
    assert (group["MinSize"], group["MaxSize"], "DesiredCapacity" in group) == ("0", size, False)
    launched = only(found, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    assert launched["InstanceType"] == kind
    assert launched.get("CreditSpecification") == ({"CpuCredits": "unlimited"} if kind.startswith("t2.") else None)
    published = {
        each["Properties"]["Name"]: each["Properties"]["Value"]
        for each in found["Resources"].values()
        if each["Type"] == "AWS::SSM::Parameter"
    }
    assert published[f"/crossover/crossover/{config}/fleet"] == f"crossover-{config}-fleet"
    assert found["Outputs"]["Fleet"]["Value"] == f"crossover-{config}-fleet"


def test_peers_may_use_the_bucket_the_broker_and_their_machines_and_nothing_else(template: Make) -> None:
    """Check the permissions of the peers' role, action by action."""
    found = allowed(template("p2p-serverless"))
    machines = found.pop("states:StartExecution")
    assert {name.rpartition(":")[2] for name in machines} == {
        "crossover-p2p-serverless-gradients",
        "crossover-p2p-serverless-averages",
    }
    assert any("fleet/*" in resource for resource in found["s3:GetObject"])
    assert not any("fleet/*" in resource for resource in found["s3:PutObject"])  # only the runner says what to join
    assert set(found) == {
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "logs:CreateLogStream", "logs:PutLogEvents",
        "events:DescribeRule", "events:PutRule", "events:PutTargets",
        "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject",
        "secretsmanager:GetSecretValue",
        "ssm:UpdateInstanceInformation",
        "ssmmessages:CreateControlChannel", "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel",
        "states:DescribeExecution", "states:StopExecution",
    }  # fmt: skip
    assert "states:StartExecution" not in allowed(template("p2p-instance"))
    assert "secretsmanager:GetSecretValue" not in allowed(template("gpu"))  # it has no broker


def test_gradient_functions_stay_outside_the_vpc(template: Make) -> None:
    """Check that the functions of P2P with Lambda have no VPC."""
    functions = resources(template("p2p-serverless"), "AWS::Lambda::Function")
    steps = [each for each in functions.values() if "p2p_serverless" in each["Handler"]]
    assert {each["Handler"].rpartition(".")[2] for each in steps} == {"compute_gradient", "average_part"}
    assert not any("VpcConfig" in each for each in steps)


@pytest.mark.parametrize(
    ("config", "torch"), [("p2p-instance", {f"torch=={TORCH}", f"torch=={TORCH}+cpu"}), ("gpu", set())]
)
def test_peers_install_the_processor_build_of_torch_and_gpus_have_the_images(
    config: str, torch: set[str], tmp_path: Path
) -> None:
    """Check that peers install torch's processor build and GPU workers none, and that every package has a pinned version and a hash."""
    experiment = validation.load(ROOT / "config" / f"{config}.yaml")
    folder = synthesize(experiment, tmp_path / "assembly", layers=Path("/nowhere"), now=NOW)
    (listed,) = folder.glob("asset.*/requirements.txt")
    lines = [line for line in listed.read_text().splitlines() if line != f"--extra-index-url {lock.INDEX}"]
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}$", line) for line in lines)
    names = {line.split(" ")[0] for line in lines}
    assert {each for each in names if each.startswith("torch")} == torch
    pinned = {line.split(" ")[0] for line in (ROOT / "requirements.txt").read_text().splitlines()}
    assert {each.partition("==")[0].replace("-", "_") for each in names & pinned} >= DATAPLANE | {"boto3"}


# Source: Debian's and Ubuntu's package lists; AWS's release notes name /usr/bin/python3.10 for its image on Ubuntu 22.04.
PYTHON_OF = {"debian/release/13": (3, 13), "ubuntu-24.04": (3, 12), "ubuntu-22.04": (3, 10)}


@pytest.mark.parametrize("config", ["p2p-instance", "p2p-serverless", "gpu"])
def test_an_images_python_runs_the_program(template: Make, config: str) -> None:
    """Check that the Python of the fleet's machine image is at least the version that the project requires."""
    found = template(config)
    data = only(found, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    image = found["Parameters"][data["ImageId"]["Ref"]]["Default"]
    (python,) = (version for name, version in PYTHON_OF.items() if name in image)
    required = re.search(r'requires-python = ">=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    assert python >= (int(required[1]), int(required[2])), image


def test_gpu_workers(template: Make) -> None:
    """Check the fleet of GPU workers: image, PyTorch, disk size, on demand, no security group of its own."""
    found = template("gpu")
    data = only(found, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    image = found["Parameters"][data["ImageId"]["Ref"]]["Default"]
    assert image.startswith("/aws/service/deeplearning/ami/x86_64/") and "gpu" in image
    assert f"-pytorch-{TORCH.rpartition('.')[0]}-" in image
    assert "VENV='/opt/pytorch'" in script(found)
    assert data["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] >= 100
    assert "InstanceMarketOptions" not in data
    assert not resources(found, "AWS::EC2::SecurityGroup")


def test_one_large_instance_runs_a_process_per_gpu_on_spot(template: Make) -> None:
    """Check the fleet of one spot instance with four GPUs: four processes, at most one instance."""
    found = template(
        "gpu", gpu={"instances": 1, "gpus_per_instance": 4, "instance_type": "g4dn.12xlarge", "spot": True}
    )
    assert "CROSSOVER_PROCESSES=4" in script(found)
    assert only(found, "AWS::AutoScaling::AutoScalingGroup")["MaxSize"] == "1"
    data = only(found, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    assert data["InstanceMarketOptions"] == {"MarketType": "spot"}


def test_a_collective_reaches_its_own_members_alone(template: Make) -> None:
    """Check that a distributed exchange gets a security group that admits only its own members."""
    found = template("gpu", gpu={"exchange": "distributed"})
    (group,) = resources(found, "AWS::EC2::SecurityGroup")
    own = {"Fn::GetAtt": [group, "GroupId"]}
    assert own in only(found, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["SecurityGroupIds"]
    into = only(found, "AWS::EC2::SecurityGroupIngress")
    assert (into["GroupId"], into["SourceSecurityGroupId"]) == (own, own)
    out = only(found, "AWS::EC2::SecurityGroupEgress")
    assert (out["GroupId"], out["DestinationSecurityGroupId"]) == (own, own)


@pytest.mark.slow
def test_a_baseline_is_deployed_beside_an_experiment(tmp_path: Path) -> None:
    """Check that the assembly of an experiment with a baseline contains the baseline's stack."""
    experiment = replace(validation.load(ROOT / "config" / "spirt.yaml"), baseline="gpu")
    folder = synthesize(experiment, tmp_path / "assembly", layers=tmp_path, now=NOW)
    names = {path.name.removesuffix(".template.json") for path in folder.glob("*.template.json")}
    assert names == {"crossover-network", "crossover-broker", "crossover-spirt", "crossover-spirt-gpu"}
    assert Assembly(folder, "crossover-spirt-gpu").experiment["Resources"]


def test_only_spot_instances_are_told_where_to_poll_for_the_interruption_notice(template: Make) -> None:
    """Check that only programs on spot instances get the address of the instance metadata."""
    told = "CROSSOVER_METADATA=http://169.254.169.254"
    assert told in script(template("gpu", gpu={"spot": True}))
    assert told not in script(template("gpu"))
