"""What the reports price is what the templates make: instances, volumes, brokers, endpoints and secrets, architecture by architecture."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from crossover.experiment import Experiment, Gpu, Storage
from crossover.reports import bill
from crossover.running import running_costs
from crossover.workflow.architecture import architectures
from stacks.synthesis import synthesize
from tests.infrastructure.assemblies import Assembly
from tests.infrastructure.cases import Case
from tests.infrastructure.conftest import NOW

WORKERS = 3


CHANNELS = [(name, "redis") for name in architectures()]
CHANNELS += [(name, "s3") for name in ("all_reduce", "scatter_reduce")]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "channel"), CHANNELS)
def test_the_bill_has_a_line_for_what_is_made(
    architecture: str, channel: Literal["redis", "s3"], tmp_path: Path
) -> None:
    """Check that a bill has a line for everything in the templates that costs money."""
    gpu = Gpu(instances=WORKERS)
    experiment = Experiment(
        name="bill", architecture=architecture, workers=WORKERS, gpu=gpu, storage=Storage(channel=channel)
    )
    out = synthesize(experiment, tmp_path / "out")
    made = {path.name.split(".")[0]: json.loads(path.read_text())["Resources"] for path in out.glob("*.template.json")}
    resources = [resource for stack in made.values() for resource in stack.values()]

    def of(kind: str) -> list[dict[str, object]]:
        """Return the properties of all resources of one type."""
        return [each["Properties"] for each in resources if each["Type"] == kind]

    wanted = bill.infrastructure_of(experiment)
    databases = [fleet for fleet in wanted.fleets if fleet.purpose == "tensor database"]
    fleets = [fleet for fleet in wanted.fleets if fleet.purpose != "tensor database"]
    hosts = of("AWS::EC2::Instance")
    assert [each["InstanceType"] for each in hosts] == [d.instance_type for d in databases for _ in range(d.count)]
    assert volumes(hosts) == [d.volume_gb for d in databases for _ in range(d.count)]
    launched = [each["LaunchTemplateData"] for each in of("AWS::EC2::LaunchTemplate") if is_fleet(each)]
    assert volumes(launched) == [fleet.volume_gb for fleet in fleets]
    assert [str(each["MaxSize"]) for each in of("AWS::AutoScaling::AutoScalingGroup")] == [str(f.count) for f in fleets]
    brokers = [each["HostInstanceType"] for each in of("AWS::AmazonMQ::Broker")]
    assert brokers == ([wanted.broker_instance_type] if wanted.broker_instance_type else [])
    assert len(of("AWS::SecretsManager::Secret")) == wanted.secrets
    endpoints = [each for each in of("AWS::EC2::VPCEndpoint") if each["VpcEndpointType"] == "Interface"]
    standing_lines = running_costs.list_hourly_costs(experiment, running=True)
    assert len(endpoints) == sum("endpoint" in line.item for line in standing_lines) >= wanted.interface_endpoints
    assert bool(standing_lines) == (len(made) > 1)  # alone: a bucket, and nothing that is billed by the hour


def is_fleet(template: dict[str, object]) -> bool:
    """Return True if the launch template sets block devices, as those of fleets do."""
    return "BlockDeviceMappings" in json.dumps(template)


def volumes(machines: list[dict[str, object]]) -> list[int]:
    """Return the size in GB of every volume of the given instances or launch template data, in order."""
    mappings = [each["BlockDeviceMappings"] for each in machines]
    return [device["Ebs"]["VolumeSize"] for mapping in mappings for device in mapping]  # type: ignore[attr-defined]


def test_nothing_of_the_smallest_deployment_is_billed_by_the_hour(tmp_path: Path) -> None:
    """Check that a deployment which exchanges through the bucket has no hourly cost, and only resource types that have none."""
    experiment = Case.of("all-reduce over s3").experiment
    assert running_costs.list_hourly_costs(experiment, running=True) == []
    folder = synthesize(experiment, tmp_path / "assembly", now=NOW)
    kinds: set[Any] = {
        each["Type"] for each in Assembly(folder, "crossover-all-reduce-s3").experiment["Resources"].values()
    }
    free = {
        "AWS::IAM::Role",
        "AWS::Lambda::Function",
        "AWS::Lambda::LayerVersion",
        "AWS::Logs::LogGroup",
        "AWS::S3::Bucket",
    }
    free |= {
        "AWS::S3::BucketPolicy",
        "AWS::SSM::Parameter",
        "AWS::StepFunctions::StateMachine",
        "AWS::Scheduler::Schedule",
        "AWS::SQS::Queue",
        "AWS::SQS::QueuePolicy",
    }
    assert kinds <= free | {"AWS::IAM::Policy", "Custom::S3AutoDeleteObjects"}  # no alarm, which is
