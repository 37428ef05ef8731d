"""What the reports price is what the templates make: instances, volumes, brokers, endpoints and secrets, architecture by architecture."""

import json
from pathlib import Path
from typing import Literal

import pytest

from crossover.account import standing
from crossover.architecture import architectures
from crossover.costs import infrastructure
from crossover.experiment import Experiment, Gpu, Storage
from stacks.synthesis import synthesize

WORKERS = 3


CHANNELS = [(name, "redis") for name in architectures()]
CHANNELS += [(name, "s3") for name in ("all_reduce", "scatter_reduce")]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "channel"), CHANNELS)
def test_the_bill_has_a_line_for_what_is_made(
    architecture: str, channel: Literal["redis", "s3"], tmp_path: Path
) -> None:
    gpu = Gpu(instances=WORKERS)
    experiment = Experiment(
        name="bill", architecture=architecture, workers=WORKERS, gpu=gpu, storage=Storage(channel=channel)
    )
    out = synthesize(experiment, tmp_path / "out")
    made = {path.name.split(".")[0]: json.loads(path.read_text())["Resources"] for path in out.glob("*.template.json")}
    resources = [resource for stack in made.values() for resource in stack.values()]

    def of(kind: str) -> list[dict[str, object]]:
        return [each["Properties"] for each in resources if each["Type"] == kind]

    wanted = infrastructure.of(experiment)
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
    standing_lines = standing.lines(experiment, running=True)
    assert len(endpoints) == sum("endpoint" in line.item for line in standing_lines) >= wanted.interface_endpoints
    assert bool(standing_lines) == (len(made) > 1)  # alone: a bucket, and nothing that is billed by the hour


def is_fleet(template: dict[str, object]) -> bool:
    return "BlockDeviceMappings" in json.dumps(template)


def volumes(machines: list[dict[str, object]]) -> list[int]:
    mappings = [each["BlockDeviceMappings"] for each in machines]
    return [device["Ebs"]["VolumeSize"] for mapping in mappings for device in mapping]  # type: ignore[attr-defined]
