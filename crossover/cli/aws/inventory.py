"""What an experiment or a project has on AWS, by type and by tag.

Every type that a template makes, or that comes along with one, is asked for through its own API: the tagging API forgets some and remembers
deleted ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crossover.cli.aws.ownership import Owner

Lister = Callable[[Any, Owner], Iterable[str]]  # (boto3 session, owner) -> names
FUNCTIONS_INTERFACE = "AWS Lambda VPC ENI-"
LIVE = ["pending", "running", "stopping", "stopped", "shutting-down"]


@dataclass(frozen=True)
class Found:
    """One resource. `billable`: it costs money by standing there."""

    kind: str
    name: str
    billable: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def take(session: Any, owner: Owner) -> list[Found]:
    """All there is, kind by kind. Raises botocore's errors, so that an API that does not answer is never taken for an empty one."""
    return [
        Found(kind, name, billable)
        for kind, (lister, billable) in LISTERS.items()
        for name in sorted(set(lister(session, owner)))
    ]


def _pages(session: Any, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    for page in session.client(service).get_paginator(operation).paginate(**arguments):
        yield from page.get(key, [])


def _named(service: str, operation: str, key: str, field: str, **arguments: Any) -> Lister:
    """A listing whose entries carry the name in `field`."""

    def names(session: Any, owner: Owner) -> Iterator[str]:
        for entry in _pages(session, service, operation, key, **arguments):
            if owner.named(entry[field]):
                yield entry[field]

    return names


def _ec2(operation: str, key: str, field: str, *, state: str = "") -> Lister:
    """An EC2 listing, filtered by tag; `state`: a filter that leaves out what has ended already."""

    def ids(session: Any, owner: Owner) -> Iterator[str]:
        filters = owner.ec2_filters() + ([{"Name": state, "Values": LIVE}] if state else [])
        for entry in _pages(session, "ec2", operation, key, Filters=filters):
            for each in entry["Instances"] if key == "Reservations" else [entry]:
                if each.get("State") != "deleted":
                    yield each[field]

    return ids


def _addresses(session: Any, owner: Owner) -> Iterator[str]:
    for entry in session.client("ec2").describe_addresses(Filters=owner.ec2_filters())["Addresses"]:
        yield entry["AllocationId"]


def _interfaces(session: Any, owner: Owner) -> Iterator[str]:
    for entry in _pages(session, "ec2", "describe_network_interfaces", "NetworkInterfaces"):
        if owner.tagged(entry.get("TagSet", [])) or _of_a_function(entry, owner):
            yield entry["NetworkInterfaceId"]


def interfaces_of_functions(session: Any, owner: Owner) -> Iterator[str]:
    """Lambda makes them without our tags, and they outlive their function by 20 to 40 minutes."""
    for entry in _pages(session, "ec2", "describe_network_interfaces", "NetworkInterfaces"):
        if _of_a_function(entry, owner):
            yield entry["NetworkInterfaceId"]


def _of_a_function(interface: Mapping[str, Any], owner: Owner) -> bool:
    """By its description, which names the function."""
    words = str(interface.get("Description", ""))
    return words.startswith(FUNCTIONS_INTERFACE) and owner.named(words.removeprefix(FUNCTIONS_INTERFACE))


def _log_groups(session: Any, owner: Owner) -> Iterator[str]:
    for entry in _pages(session, "logs", "describe_log_groups", "logGroups", logGroupNamePrefix="/aws/lambda/"):
        if owner.named(entry["logGroupName"].removeprefix("/aws/lambda/")):
            yield entry["logGroupName"]


def _parameters(session: Any, owner: Owner) -> Iterator[str]:
    path = f"/crossover/{owner.project}/" + (f"{owner.experiment}/" if owner.experiment else "")
    for entry in _pages(session, "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True):
        yield entry["Name"]


def _secrets(session: Any, owner: Owner) -> Iterator[str]:
    for entry in _pages(session, "secretsmanager", "list_secrets", "SecretList"):
        if not entry.get("DeletedDate") and owner.tagged(entry.get("Tags", [])):
            yield entry["Name"]


def _stacks(session: Any, owner: Owner) -> Iterator[str]:
    for entry in _pages(session, "cloudformation", "describe_stacks", "Stacks"):
        mine = entry["StackName"] == owner.stack if owner.experiment else owner.named(entry["StackName"])
        if mine and entry["StackStatus"] != "DELETE_COMPLETE":
            yield entry["StackName"]


def _budgets(session: Any, owner: Owner) -> Iterator[str]:
    account = session.client("sts").get_caller_identity()["Account"]
    for entry in _pages(session, "budgets", "describe_budgets", "Budgets", AccountId=account):
        if entry["BudgetName"] == owner.stack if owner.experiment else owner.named(entry["BudgetName"]):
            yield entry["BudgetName"]


def _tagged(session: Any, owner: Owner) -> Iterator[str]:
    """Of types that nobody thought of; what a listing of its own covers is left to that, which knows what has been deleted."""
    covered = ("ec2", "lambda", "logs", "secretsmanager", "ssm", "states", "s3", "cloudformation", "mq", "iam")
    arns = _pages(
        session, "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=owner.tag_filters()
    )
    for entry in arns:
        if entry["ResourceARN"].split(":")[2] not in (*covered, "scheduler", "autoscaling", "budgets"):
            yield entry["ResourceARN"]


def _buckets(session: Any, owner: Owner) -> Iterator[str]:
    for entry in session.client("s3").list_buckets()["Buckets"]:
        if owner.named(entry["Name"]):
            yield entry["Name"]


# kind -> (what lists it, whether it is billed for standing there)
LISTERS: dict[str, tuple[Lister, bool]] = {
    "stack": (_stacks, False),
    "instance": (_ec2("describe_instances", "Reservations", "InstanceId", state="instance-state-name"), True),
    "auto scaling group": (
        _named("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"),
        True,
    ),
    "volume": (_ec2("describe_volumes", "Volumes", "VolumeId"), True),
    "address": (_addresses, True),
    "endpoint": (_ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"), True),
    "broker": (_named("mq", "list_brokers", "BrokerSummaries", "BrokerName"), True),
    "secret": (_secrets, True),
    "bucket": (_buckets, True),
    "log group": (_log_groups, True),
    "function": (_named("lambda", "list_functions", "Functions", "FunctionName"), False),
    "layer": (_named("lambda", "list_layers", "Layers", "LayerName"), False),
    "state machine": (_named("stepfunctions", "list_state_machines", "stateMachines", "name"), False),
    "schedule": (_named("scheduler", "list_schedules", "Schedules", "Name"), False),
    "parameter": (_parameters, False),
    "role": (_named("iam", "list_roles", "Roles", "RoleName"), False),
    "instance profile": (_named("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"), False),
    "launch template": (_ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"), False),
    "network interface": (_interfaces, False),
    "security group": (_ec2("describe_security_groups", "SecurityGroups", "GroupId"), False),
    "internet gateway": (_ec2("describe_internet_gateways", "InternetGateways", "InternetGatewayId"), False),
    "network": (_ec2("describe_vpcs", "Vpcs", "VpcId"), False),
    "budget": (_budgets, False),
    "tagged resource": (_tagged, True),
}
