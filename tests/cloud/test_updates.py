"""Deploying again what stands: another number of workers, a newer image, another boot. CloudFormation's own rules, and then the cloud on
one machine that follows them.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from botocore.exceptions import ClientError

from cdk import hosts
from crossover import validation
from crossover.experiment import Experiment
from crossover.local import cloud as assemblies
from crossover.local.servers import RedisServer
from stacks.synthesis import synthesize
from tests.cloud.made import clear
from tests.moto_patches import AccountCloud

pytestmark = pytest.mark.slow
STACK = "crossover-spirt"


@pytest.fixture
def spirt(cloud: AccountCloud) -> Iterator[Experiment]:
    """Yield the experiment of config/spirt.yaml with two workers; the cloud is cleared afterwards."""
    yield replace(validation.load(Path("config/spirt.yaml")), workers=2)
    clear(cloud)


Deploy = Callable[[Experiment], None]


@pytest.fixture
def deploy(cloud: AccountCloud, tmp_path: Path) -> Deploy:
    """Return a function that creates or updates the experiment's stack alone, as `cdk deploy --method=direct` does."""
    client = cloud.session().client("cloudformation")

    def call(experiment: Experiment) -> None:
        """Synthesize the experiment, publish the shared stacks' values and the assets, and create or update its stack."""
        folder = tmp_path / f"assembly-{len(list(tmp_path.iterdir()))}"
        made, assets = assemblies.read_assembly(synthesize(experiment, folder, layers=tmp_path / "unbuilt"))
        publish(cloud, made)
        cloud._upload(made, assets)
        (stack,) = (each for each in made if each.name == STACK)
        if STACK not in cloud.stacks():
            return cloud._create(stack)
        client.update_stack(StackName=STACK, TemplateBody=stack.template, Capabilities=["CAPABILITY_NAMED_IAM"])
        return None

    return call


def publish(cloud: AccountCloud, made: list[assemblies.Stack]) -> None:
    """Publish a value under every parameter of the shared stacks that the experiment's template looks up, and export what it imports."""
    ssm, shared = cloud.session().client("ssm"), ("network", "broker")
    if "shared" not in cloud.stacks():
        exports = {each: {"Value": each, "Export": {"Name": f"crossover-{each}"}} for each in shared}
        body = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}, "Outputs": exports}
        cloud.session().client("cloudformation").create_stack(StackName="shared", TemplateBody=json.dumps(body))
    for stack in made:
        if stack.name == STACK:
            for parameter in json.loads(stack.template)["Parameters"].values():
                path = str(parameter.get("Default", ""))
                if path.startswith(("/crossover/crossover/network/", "/crossover/crossover/broker/")):
                    ssm.put_parameter(Name=path, Value=value(cloud, path), Type="String", Overwrite=True)


def value(cloud: AccountCloud, path: str) -> str:
    """Return a value of the right form for a parameter of the shared stacks, by the parameter's path."""
    if path.endswith("_subnet"):
        found: str = cloud.session().client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
        return found
    return "amqps://10.0.0.9:5671" if path.endswith("endpoint") else "sg-1"


def client(server: RedisServer) -> Any:
    """Return a client that is logged in at the server."""
    return redis.Redis.from_url(server.url, password=server._password)


def instances(cloud: AccountCloud) -> dict[str, tuple[str, str]]:
    """Return (instance id, image id) of every running Redis host, by its rank."""
    hosts_alone = [
        {"Name": "tag:crossover:role", "Values": ["redis"]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    listed = cloud.session().client("ec2").describe_instances(Filters=hosts_alone)["Reservations"]
    alive = [each for r in listed for each in r["Instances"]]
    tags = [{tag["Key"]: tag["Value"] for tag in each["Tags"]} for each in alive]
    return {
        mine["crossover:rank"]: (each["InstanceId"], each["ImageId"]) for each, mine in zip(alive, tags, strict=True)
    }


def test_from_two_workers_to_three(cloud: AccountCloud, spirt: Experiment, deploy: Deploy) -> None:
    """Check that a deployment with one more worker adds a host, keeps the others and their data, and tells the functions."""
    deploy(spirt)
    before = instances(cloud)
    servers = dict(cloud.servers.redis)
    for server in servers.values():
        client(server).set("kept", "1")
    deploy(replace(spirt, workers=3))
    after = instances(cloud)
    assert set(after) == {"0", "1", "2"} and {rank: after[rank] for rank in before} == before
    assert all(client(cloud.servers.redis[identity]).get("kept") == b"1" for identity in servers)
    ssm = cloud.session().client("ssm")
    assert len(ssm.get_parameter(Name="/crossover/crossover/spirt/redis")["Parameter"]["Value"].split()) == 3
    functions = cloud.session().client("lambda").list_functions()["Functions"]
    told = [each["Environment"]["Variables"].get("CROSSOVER_REDIS") for each in functions if "Environment" in each]
    assert {len(urls.split()) for urls in told if urls} == {3}


def test_another_boot_script_makes_other_hosts(
    cloud: AccountCloud, spirt: Experiment, deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a changed boot script replaces every Redis host."""
    deploy(spirt)
    before = instances(cloud)
    shutil.copytree(hosts.BOOT, tmp_path / "boot")
    (tmp_path / "boot" / "redis.sh").write_text((hosts.BOOT / "redis.sh").read_text() + "true\n")
    monkeypatch.setattr(hosts, "BOOT", tmp_path / "boot")
    deploy(spirt)
    after = instances(cloud)
    assert set(after) == set(before) and not set(after.values()) & set(before.values())


def test_a_newer_image_is_taken_when_it_is_asked_for(cloud: AccountCloud, spirt: Experiment, deploy: Deploy) -> None:
    """Check that a newer image of Debian replaces no host until the file asks for another generation of images."""
    deploy(spirt)
    before = instances(cloud)
    cloud.account.newest_image = "ami-12c6146b"
    try:
        deploy(replace(spirt, owner="somebody else"))
        assert instances(cloud) == before
        deploy(replace(spirt, workers=3))
        assert {rank: each for rank, each in instances(cloud).items() if rank in before} == before
        deploy(replace(spirt, database=replace(spirt.database, image_generation=2)))
        assert {image for _, image in instances(cloud).values()} == {"ami-12c6146b"}
    finally:
        cloud.account.newest_image = ""


def test_a_host_that_does_not_boot_fails_the_deployment(
    cloud: AccountCloud, spirt: Experiment, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a deployment fails if a new host of an update does not report that it has booted."""
    deploy(spirt)
    user_data = hosts.user_data
    monkeypatch.setattr(
        "cdk.redis_hosts.user_data",
        lambda script, facts: user_data(script, {**facts, "SIGNAL_URL": ""} if facts["RANK"] == "2" else facts),
    )
    with pytest.raises(ClientError, match=r"WaitCondition timed out\. Received 0 conditions when expecting 1"):
        deploy(replace(spirt, workers=3))
