"""Other people's things in the account, whose names begin with ours or whose tags say ours: none of them may ever change.

By type, in our region unless a second one is named: without tags, with another project's, or with ours by somebody's hand. The second
region holds another deployment of ours, with our names and tags.
"""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.cloud.listings import Client

HERE, FAR = "us-east-1", "eu-west-1"
THEIRS = {"project": "crossover-tiny", "experiment": "thesis", "owner": "somebody"}
BY_HAND = {"project": "crossover", "experiment": "tiny-spirt"}  # as ours, on what no stack of ours made
TAGS: Sequence[Mapping[str, str]] = ({}, THEIRS, BY_HAND)
STACKS = {"crossover-tiny-thesis", "crossover-thesis", "crossover-tiny-spirt-prod", "crossover-legacy"}

WORKING = "crossover-spirt-thesis-run"  # a state machine with an execution under way

_TOPIC = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
_ROLE = "arn:aws:iam::123456789012:role/crossover-tiny-thesis"
_MACHINE = json.dumps({"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 80_000, "End": True}}})
_IMAGE = "ami-12c6146b"  # one that moto has


def settle(client_of: Client) -> list[str]:
    """Create all of other people's resources and return one line for each: its type and name."""
    return [
        *_stacks(client_of),
        *_data(client_of),
        *_lambda(client_of),
        *_work(client_of),
        *_people(client_of),
        *_ec2(client_of),
    ]


def _pairs(tags: Mapping[str, str], key: str = "Key", value: str = "Value") -> list[dict[str, str]]:
    """Return tags as a list of mappings, as most AWS APIs expect them. `key`, `value`: names of the two fields."""
    return [{key: name, value: each} for name, each in tags.items()]


def _names() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield (name, tags) of three things of other people, each of which begins with the name of one of our stacks."""
    yield from zip(
        ("crossover-tiny-thesis", "crossover-tiny-spirt-thesis", "crossover-spirt-thesis"), TAGS, strict=True
    )


def _stacks(client_of: Client) -> Iterator[str]:
    """Create other people's CloudFormation stacks in two regions; yield the name of each."""

    def make(region: str, name: str, tags: Mapping[str, str]) -> str:
        """Create one stack, and return its name and region."""
        client = client_of("cloudformation", region)
        client.create_stack(StackName=name, TemplateBody=_TOPIC, Tags=_pairs(tags))
        return f"stack {name}, {region}"

    yield make(HERE, "crossover-tiny-thesis", THEIRS | {"stack-kind": "experiment"})
    yield make(HERE, "crossover-thesis", {})
    yield make(HERE, "crossover-tiny-spirt-prod", {"team": "web"})
    yield make(HERE, "crossover-legacy", {"project": "crossover"})  # ours in half
    for part in ("network", "broker", "tiny", "tiny-spirt", "tiny-p2p-serverless"):
        kind = part if part in ("network", "broker") else "experiment"
        yield make(FAR, f"crossover-{part}", {"project": "crossover", "experiment": part, "stack-kind": kind})


def _data(client_of: Client) -> Iterator[str]:
    """Create other people's buckets, parameters and secrets; yield the name of each."""
    s3 = client_of("s3", HERE)
    for (name, tags), region in zip(_names(), (HERE, FAR, HERE), strict=True):
        far = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != HERE else {}
        client_of("s3", region).create_bucket(Bucket=f"{name}-data", **far)
        if tags:
            s3.put_bucket_tagging(Bucket=f"{name}-data", Tagging={"TagSet": _pairs(tags)})
        for body in (b"a year", b"of results"):
            s3.put_object(Bucket=f"{name}-data", Key="thesis", Body=body)
        yield f"bucket {name}-data, {region}"
    far_client = client_of("s3", FAR)
    name = "crossover-tiny-spirt-storagerunsedeb48ff-eu"  # of the deployment there
    far_client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": FAR})
    far_client.put_bucket_tagging(Bucket=name, Tagging={"TagSet": _pairs(BY_HAND)})
    far_client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"1", b"2"):
        far_client.put_object(Bucket=name, Key="runs/a", Body=body)
    yield f"bucket {name}, {FAR}"
    for name, tags in _names():
        client_of("ssm", HERE).put_parameter(
            Name=f"/crossover/crossover/{name.removeprefix('crossover-')}/bucket", Value="x", Type="String"
        )
        yield f"parameter {name}"
        secret = client_of("secretsmanager", HERE)
        secret.create_secret(Name=f"{name}-password", SecretString="x", Tags=_pairs(tags))
        yield f"secret {name}-password"


def _lambda(client_of: Client) -> Iterator[str]:
    """Create other people's functions, roles, log groups and layers; yield the name of each."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("index.py", "def handler(event, context): return event\n")
    client_of("iam", HERE).create_role(RoleName="crossover-tiny-thesis", AssumeRolePolicyDocument="{}")
    yield "role crossover-tiny-thesis"
    client, logs = client_of("lambda", HERE), client_of("logs", HERE)
    for name, tags in _names():
        client.create_function(
            FunctionName=f"{name}-collect",
            Runtime="python3.13",
            Role=_ROLE,
            Handler="index.handler",
            Code={"ZipFile": archive.getvalue()},
            Tags=tags,
        )
        yield f"function {name}-collect"
        logs.create_log_group(logGroupName=f"/aws/lambda/{name}-collect", tags=dict(tags))
        logs.create_log_stream(logGroupName=f"/aws/lambda/{name}-collect", logStreamName="a")
        yield f"log group /aws/lambda/{name}-collect"
    for name in ("crossover-tiny-layer-torch", "crossover-tiny-spirt-layer-dataplane"):
        client.publish_layer_version(LayerName=name, Content={"ZipFile": archive.getvalue()})
        yield f"layer {name}"


def _work(client_of: Client) -> Iterator[str]:
    """Create other people's state machines, an execution, schedules and brokers; yield the name of each."""
    states, scheduler, queue = (client_of(each, HERE) for each in ("stepfunctions", "scheduler", "mq"))
    for name, tags in _names():
        arn = states.create_state_machine(
            name=f"{name}-run", definition=_MACHINE, roleArn=_ROLE, tags=_pairs(tags, "key", "value")
        )["stateMachineArn"]
        yield f"state machine {name}-run"
    states.start_execution(stateMachineArn=arn, name="of-a-week")
    yield "execution of-a-week"
    for name, group in (("crossover-expiry", "theirs"), ("crossover-tiny-thesis", "default")):
        if group != "default":
            scheduler.create_schedule_group(Name=group)
        scheduler.create_schedule(
            Name=name,
            GroupName=group,
            ScheduleExpression="rate(1 hour)",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={"Arn": arn, "RoleArn": _ROLE},
        )
        yield f"schedule {group}/{name}"
    there = client_of("mq", FAR)
    for client, name, tags in (
        (queue, "crossover-broker-thesis", THEIRS),
        (queue, "crossover-tiny-broker", {}),
        (there, "crossover-broker", BY_HAND),
    ):
        client.create_broker(
            BrokerName=name,
            EngineType="RABBITMQ",
            EngineVersion="3.13",
            HostInstanceType="mq.m7g.medium",
            DeploymentMode="SINGLE_INSTANCE",
            PubliclyAccessible=False,
            AutoMinorVersionUpgrade=True,
            Users=[{"Username": "theirs", "Password": "theirs-alone"}],
            Tags=dict(tags),
        )
        yield f"broker {name}"


def _people(client_of: Client) -> Iterator[str]:
    """Create other people's roles, instance profiles and budgets; yield the name of each."""
    iam = client_of("iam", HERE)
    for name, tags in list(_names())[1:]:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}", Tags=_pairs(tags))
        yield f"role {name}"
        iam.create_instance_profile(InstanceProfileName=name, Tags=_pairs(tags))
        yield f"instance profile {name}"
    for name in ("crossover-tiny-thesis", "crossover-thesis"):
        client_of("budgets", HERE).create_budget(
            AccountId="123456789012",
            Budget={
                "BudgetName": name,
                "BudgetType": "COST",
                "TimeUnit": "MONTHLY",
                "BudgetLimit": {"Amount": "5", "Unit": "USD"},
            },
        )
        yield f"budget {name}"


def _ec2(client_of: Client) -> Iterator[str]:
    """Create other people's networks, instances and all that belongs to them; yield the name of each."""
    ec2 = client_of("ec2", HERE)
    network = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=_given("vpc", BY_HAND))["Vpc"]["VpcId"]
    yield f"network {network}"
    subnet = ec2.create_subnet(VpcId=network, CidrBlock="10.9.0.0/20", AvailabilityZone="us-east-1a")["Subnet"][
        "SubnetId"
    ]
    yield f"subnet {subnet}"
    yield f"route table {ec2.create_route_table(VpcId=network)['RouteTable']['RouteTableId']}"
    gateway = ec2.create_internet_gateway(TagSpecifications=_given("internet-gateway", BY_HAND))
    yield f"internet gateway {gateway['InternetGateway']['InternetGatewayId']}"
    group = ec2.create_security_group(
        GroupName="crossover-tiny-spirt-hosts",
        Description="theirs",
        VpcId=network,
        TagSpecifications=_given("security-group", BY_HAND),
    )["GroupId"]
    yield f"security group {group}"
    endpoint = ec2.create_vpc_endpoint(
        VpcId=network, ServiceName="com.amazonaws.us-east-1.s3", TagSpecifications=_given("vpc-endpoint", BY_HAND)
    )["VpcEndpoint"]["VpcEndpointId"]
    yield f"endpoint {endpoint}"
    for name in (
        "crossover-tiny-collect",
        "crossover-tiny-spirt-initialise",
    ):  # as of functions of ours, in another network
        words = f"AWS Lambda VPC ENI-{name}-6a1b2c3d-0000-4000-8000-123456789abc"
        made = ec2.create_network_interface(SubnetId=subnet, Description=words)["NetworkInterface"]
        yield f"network interface {made['NetworkInterfaceId']}"
    for tags in TAGS:
        made = ec2.run_instances(
            ImageId=_IMAGE,
            InstanceType="t3.micro",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnet,
            TagSpecifications=_given("instance", {**tags, "crossover:role": "theirs"}),
        )
        yield f"instance {made['Instances'][0]['InstanceId']}"
        made = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=_given("volume", tags))
        yield f"volume {made['VolumeId']}"
    yield from _machines_to_be(client_of, subnet)


def _given(kind: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return EC2's tag specification for a kind of resource; [] if there are no tags."""
    return [{"ResourceType": kind, "Tags": _pairs(tags)}] if tags else []


def _machines_to_be(client_of: Client, subnet: str) -> Iterator[str]:
    """Create other people's addresses, launch templates and Auto Scaling groups; yield the name of each."""
    ec2 = client_of("ec2", HERE)
    for tags in TAGS[1:]:
        made = ec2.allocate_address(Domain="vpc", TagSpecifications=_given("elastic-ip", tags))
        yield f"address {made['AllocationId']}"
    for name, tags in _names():
        ec2.create_launch_template(
            LaunchTemplateName=f"{name}-template",
            LaunchTemplateData={"ImageId": _IMAGE, "InstanceType": "t3.micro"},
            TagSpecifications=_given("launch-template", tags),
        )
        yield f"launch template {name}-template"
    for name, tags in list(_names())[:2]:
        scaling = client_of("autoscaling", HERE)
        scaling.create_auto_scaling_group(
            AutoScalingGroupName=f"{name}-fleet",
            LaunchTemplate={"LaunchTemplateName": f"{name}-template", "Version": "1"},
            MinSize=0,
            MaxSize=3,
            VPCZoneIdentifier=subnet,
            Tags=[{**each, "PropagateAtLaunch": True} for each in _pairs(tags)],
        )
        _working(f"{name}-fleet")
        yield f"auto scaling group {name}-fleet"


def _working(group: str) -> None:
    """Set a group's desired capacity to two without starting instances, so that a change of it would show."""
    from moto.autoscaling.models import autoscaling_backends

    autoscaling_backends["123456789012"][HERE].autoscaling_groups[group].desired_capacity = 2
