"""What there is in the account and region, type by type, ours and everybody else's.

Every type that a template makes, or that comes along with one, is asked for through its own API: the tagging API forgets some and remembers
deleted ones. `ownership.whose` decides on each entry.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossover.account.resources import ownership
from crossover.account.resources.ownership import Listed, Owner
from crossover.clients import aws_calls
from crossover.costs.platform_reports import GROUPS

Lister = Callable[
    [Any, Owner], Iterable[Listed]
]  # (boto3 session, owner); the owner only spares entries that are surely not his
FUNCTION, FLEET, INSTANCE = "AWS::Lambda::Function", "AWS::AutoScaling::AutoScalingGroup", "AWS::EC2::Instance"
LAYER = "AWS::Lambda::LayerVersion"
INTERFACE = "AWS Lambda VPC ENI"  # how Lambda describes its interfaces
LIVE = ["pending", "running", "stopping", "stopped", "shutting-down"]


def pairs(tags: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Tags in any of AWS's spellings: Key and Value, key and value."""
    return {str(tag.get("Key", tag.get("key"))): str(tag.get("Value", tag.get("value"))) for tag in tags}


def _plain(type: str, service: str, operation: str, key: str, *, id: str, name: str = "", **arguments: Any) -> Lister:
    """A listing whose entries carry physical id and name in fields of their own, and perhaps their tags."""

    def entries(session: Any, owner: Owner) -> Iterator[Listed]:
        for entry in aws_calls.entries(session, service, operation, key, **arguments):
            tags = pairs(entry.get("Tags") or [])
            if entry.get("State") != "deleted" and not entry.get("DeletedDate"):
                yield Listed(type=type, id=entry[id], name=entry[name or id], tags=tags)

    return entries


def _stacks(session: Any, owner: Owner) -> Iterator[Listed]:
    for entry in aws_calls.entries(session, "cloudformation", "describe_stacks", "Stacks"):
        if entry["StackStatus"] != "DELETE_COMPLETE":
            tags = pairs(entry.get("Tags", []))
            yield Listed(type=ownership.STACK, id=entry["StackId"], name=entry["StackName"], tags=tags)


def _instances(session: Any, owner: Owner) -> Iterator[Listed]:
    """A fleet's carry a tag that nobody but Auto Scaling can set."""
    for each in _in_reservations(session, {"instance-state-name": LIVE}):
        tags = pairs(each.get("Tags", []))
        fleet = tags.get("aws:autoscaling:groupName")
        made_by = (FLEET, fleet) if fleet else None
        yield Listed(type=INSTANCE, id=each["InstanceId"], name=each["InstanceId"], made_by=made_by, tags=tags)


def instances(session: Any, owner: Owner, *, states: Sequence[str]) -> Iterator[Any]:
    """Those that stacks of the owner's name, as EC2 describes them; no filter by no ids, which would give everybody's."""
    if ids := owner.ids(INSTANCE):
        yield from _in_reservations(session, {"instance-id": ids, "instance-state-name": states})


def _in_reservations(session: Any, wanted: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    filters = [{"Name": name, "Values": list(values)} for name, values in wanted.items()]
    for reservation in aws_calls.entries(session, "ec2", "describe_instances", "Reservations", Filters=filters):
        yield from reservation["Instances"]


def _volumes(session: Any, owner: Owner) -> Iterator[Listed]:
    """They come with an instance and name it while they are attached."""
    for each in aws_calls.entries(session, "ec2", "describe_volumes", "Volumes"):
        by = next((one["InstanceId"] for one in each.get("Attachments", []) if one.get("InstanceId")), None)
        made_by = (INSTANCE, by) if by else None
        tags = pairs(each.get("Tags", []))
        yield Listed(type="AWS::EC2::Volume", id=each["VolumeId"], name=each["VolumeId"], made_by=made_by, tags=tags)


def _addresses(session: Any, owner: Owner) -> Iterator[Listed]:
    for each in session.client("ec2").describe_addresses()["Addresses"]:
        tags = pairs(each.get("Tags", []))
        yield Listed(type="AWS::EC2::EIP", id=each["PublicIp"], name=each["PublicIp"], tags=tags)


def _interfaces(session: Any, owner: Owner) -> Iterator[Listed]:
    """Lambda makes those of functions without our tags; they outlive their function. Ours: of a function of ours, in a network of ours."""
    for each in aws_calls.entries(session, "ec2", "describe_network_interfaces", "NetworkInterfaces"):
        tags, words, made_by = pairs(each.get("TagSet", [])), str(each.get("Description", "")), None
        if words.startswith(f"{INTERFACE}-"):
            name = words.removeprefix(f"{INTERFACE}-")
            function = name[:-37] if name[-37:-36] == "-" and name.count("-") >= 5 else name  # Lambda adds a UUID
            known = each["VpcId"] in owner.networks
            made_by = (FUNCTION, function) if known else None
        else:
            function = ""
        id = each["NetworkInterfaceId"]
        yield Listed(type="AWS::EC2::NetworkInterface", id=id, name=id, made_by=made_by, like=function, tags=tags)


def _log_groups(session: Any, owner: Owner) -> Iterator[Listed]:
    """Of functions: a last line may bring one back after its stack; CloudFormation knows it by the same name."""
    for each in aws_calls.entries(session, "logs", "describe_log_groups", "logGroups"):
        name = each["logGroupName"]
        yield Listed(type="AWS::Logs::LogGroup", id=name, name=name, like=name.removeprefix(GROUPS))


def _layers(session: Any, owner: Owner) -> Iterator[Listed]:
    """Version by version, which is what CloudFormation names."""
    mine = {arn.rpartition(":")[0] for ids in (owner.held, owner.left) for arn in ids.get(LAYER, ())}
    for each in aws_calls.entries(session, "lambda", "list_layers", "Layers"):
        if each["LayerArn"] in mine or owner.resembles(each["LayerName"]):
            for version in aws_calls.entries(
                session, "lambda", "list_layer_versions", "LayerVersions", LayerName=each["LayerName"]
            ):
                name = f"{each['LayerName']}:{version['Version']}"
                yield Listed(type=LAYER, id=version["LayerVersionArn"], name=name)


def _schedules(session: Any, owner: Owner) -> Iterator[Listed]:
    """CloudFormation names them without their group; ours are in the default one."""
    for each in aws_calls.entries(session, "scheduler", "list_schedules", "Schedules"):
        group = "" if each["GroupName"] == "default" else f"{each['GroupName']}/"
        yield Listed(type="AWS::Scheduler::Schedule", id=group + each["Name"], name=each["Name"])


def _parameters(session: Any, owner: Owner) -> Iterator[Listed]:
    """Below the path of the project or experiment: all that is there looks like ours."""
    path = f"/crossover/{owner.project}/" + (f"{owner.experiment}/" if owner.experiment else "")
    for each in aws_calls.entries(session, "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True):
        yield Listed(type="AWS::SSM::Parameter", id=each["Name"], name=each["Name"], like=owner.stack)


def _budgets(session: Any, owner: Owner) -> Iterator[Listed]:
    account = session.client("sts").get_caller_identity()["Account"]
    for each in aws_calls.entries(session, "budgets", "describe_budgets", "Budgets", AccountId=account):
        yield Listed(type="AWS::Budgets::Budget", id=each["BudgetName"], name=each["BudgetName"])


def _tagged(session: Any, owner: Owner) -> Iterator[Listed]:
    """Resources with our tags whose types have no listing here: shown, never removed. All others are left to their own listings, since the
    tagging API goes on naming what was deleted.
    """
    covered = ("ec2", "lambda", "logs", "secretsmanager", "ssm", "states", "s3", "cloudformation", "mq", "iam")
    mine = [{"Key": "project", "Values": [owner.project]}]
    mine += [{"Key": "experiment", "Values": [owner.experiment]}] if owner.experiment else []
    for each in aws_calls.entries(
        session, "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=mine
    ):
        arn = each["ResourceARN"]
        if arn.split(":")[2] not in (*covered, "scheduler", "autoscaling", "budgets"):
            yield Listed(type="", id=arn, name=arn, tags=pairs(each["Tags"]))


def _bucket_tags(session: Any, name: str) -> dict[str, str]:
    with aws_calls.Tolerating("NoSuchTagSet"):
        return pairs(session.client("s3").get_bucket_tagging(Bucket=name)["TagSet"])
    return {}


def _fleet(session: Any, name: str) -> dict[str, Any]:
    found = session.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    return next(iter(found["AutoScalingGroups"]), {})


@dataclass(frozen=True)
class ResourceKind:
    """`billable`: it costs money by standing there. `tags`: of one by its id, a second witness where a name can be given again."""

    entries: Lister
    billable: bool = False
    tags: Callable[[Any, str], dict[str, str]] | None = None


def _ec2(type: str, operation: str, key: str, id: str) -> Lister:
    return _plain(f"AWS::EC2::{type}", "ec2", operation, key, id=id)


KINDS: dict[str, ResourceKind] = {
    "stack": ResourceKind(_stacks),
    "instance": ResourceKind(_instances, billable=True),
    "auto scaling group": ResourceKind(
        _plain(FLEET, "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", id="AutoScalingGroupName"),
        True,
        lambda session, name: pairs(_fleet(session, name).get("Tags", [])),
    ),
    "volume": ResourceKind(_volumes, billable=True),
    "address": ResourceKind(_addresses, billable=True),
    "endpoint": ResourceKind(
        _ec2("VPCEndpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"), billable=True
    ),
    "broker": ResourceKind(
        _plain("AWS::AmazonMQ::Broker", "mq", "list_brokers", "BrokerSummaries", id="BrokerId", name="BrokerName"),
        billable=True,
    ),
    "secret": ResourceKind(
        _plain("AWS::SecretsManager::Secret", "secretsmanager", "list_secrets", "SecretList", id="ARN", name="Name"),
        billable=True,
    ),
    "bucket": ResourceKind(_plain("AWS::S3::Bucket", "s3", "list_buckets", "Buckets", id="Name"), True, _bucket_tags),
    "log group": ResourceKind(_log_groups, billable=True),
    "function": ResourceKind(
        _plain(FUNCTION, "lambda", "list_functions", "Functions", id="FunctionName"),
        False,
        lambda session, name: dict(session.client("lambda").get_function(FunctionName=name).get("Tags", {})),
    ),
    "layer": ResourceKind(_layers),
    "state machine": ResourceKind(
        _plain(
            "AWS::StepFunctions::StateMachine",
            "stepfunctions",
            "list_state_machines",
            "stateMachines",
            id="stateMachineArn",
            name="name",
        ),
        False,
        lambda session, arn: pairs(session.client("stepfunctions").list_tags_for_resource(resourceArn=arn)["tags"]),
    ),
    "schedule": ResourceKind(_schedules),
    "parameter": ResourceKind(
        _parameters,
        False,
        lambda session, name: pairs(
            session.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=name)["TagList"]
        ),
    ),
    "role": ResourceKind(_plain("AWS::IAM::Role", "iam", "list_roles", "Roles", id="RoleName")),
    "instance profile": ResourceKind(
        _plain(
            "AWS::IAM::InstanceProfile", "iam", "list_instance_profiles", "InstanceProfiles", id="InstanceProfileName"
        )
    ),
    "launch template": ResourceKind(
        _plain(
            "AWS::EC2::LaunchTemplate",
            "ec2",
            "describe_launch_templates",
            "LaunchTemplates",
            id="LaunchTemplateId",
            name="LaunchTemplateName",
        )
    ),
    "network interface": ResourceKind(_interfaces),
    "security group": ResourceKind(_ec2("SecurityGroup", "describe_security_groups", "SecurityGroups", "GroupId")),
    "internet gateway": ResourceKind(
        _ec2("InternetGateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId")
    ),
    "network": ResourceKind(_ec2("VPC", "describe_vpcs", "Vpcs", "VpcId")),
    "budget": ResourceKind(_budgets),
    "tagged resource": ResourceKind(_tagged, billable=True),
}
