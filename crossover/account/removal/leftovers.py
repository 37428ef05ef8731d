"""Around a stack's deletion: stop what works in it before, take away what it leaves behind after.

Left behind are: network interfaces of functions (AWS removes them 20 to 40 minutes later), log groups that a last line brought back,
buckets that were written to while they were emptied, and what a failed deletion could not delete.
"""

from collections.abc import Callable
from typing import Any

from crossover.account import Tell
from crossover.account.resources import stacks
from crossover.account.resources.inventory import FoundResource
from crossover.account.resources.listings import FLEET
from crossover.account.resources.ownership import Owner
from crossover.clients import aws_calls
from crossover.errors import CrossoverError
from crossover.runtime.pauses import Pauses

# What a stack names may be gone already: half deleted, or by hand.
GONE = (
    "StateMachineDoesNotExist",
    "ResourceNotFoundException",
    "NoSuchBucket",
    "NotFoundException",
    "ParameterNotFound",
)


def stop_running(session: Any, owner: Owner, tell: Tell) -> None:
    """Executions are stopped, fleets emptied: nothing is to write into what is being deleted. Harmless to repeat."""
    states = session.client("stepfunctions")
    for arn in owner.ids("AWS::StepFunctions::StateMachine"):
        with aws_calls.Tolerating(*GONE):
            running = {"stateMachineArn": arn, "statusFilter": "RUNNING"}
            for execution in list(
                aws_calls.entries(session, "stepfunctions", "list_executions", "executions", **running)
            ):
                tell(f"stopping execution {execution['name']}")
                states.stop_execution(executionArn=execution["executionArn"], cause="its stack is being destroyed")
    scaling = session.client("autoscaling")
    for name in owner.ids(FLEET):
        for group in scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]:
            if group["DesiredCapacity"] or group["Instances"]:
                tell(f"emptying fleet {name} of {len(group['Instances'])} instances")
                scaling.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, DesiredCapacity=0)


def empty_buckets(session: Any, owner: Owner) -> None:
    for name in owner.ids("AWS::S3::Bucket"):
        with aws_calls.Tolerating(*GONE):
            empty_bucket(session, name)


def empty_bucket(session: Any, name: str) -> None:
    """Every object and version. Raises CrossoverError naming one that stays."""
    s3 = session.client("s3")
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
        keys = [
            {"Key": each["Key"], "VersionId": each["VersionId"]}
            for kind in ("Versions", "DeleteMarkers")
            for each in page.get(kind, [])
        ]
        deleted = s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True}) if keys else {}
        for failed in deleted.get("Errors", []):
            raise CrossoverError(f"bucket {name}: {failed['Key']}: {failed.get('Message', failed['Code'])}")


def _bucket(session: Any, name: str) -> None:
    empty_bucket(session, name)
    session.client("s3").delete_bucket(Bucket=name)


def _layer(session: Any, arn: str) -> None:
    layer, _, version = arn.rpartition(":")
    session.client("lambda").delete_layer_version(LayerName=layer, VersionNumber=int(version))


def _budget(session: Any, name: str) -> None:
    account = session.client("sts").get_caller_identity()["Account"]
    session.client("budgets").delete_budget(AccountId=account, BudgetName=name)


def _address(session: Any, public: str) -> None:
    (found,) = session.client("ec2").describe_addresses(PublicIps=[public])["Addresses"]
    session.client("ec2").release_address(AllocationId=found["AllocationId"])


def _call(service: str, operation: str, argument: str, **more: Any) -> Callable[[Any, str], Any]:
    return lambda session, id: getattr(session.client(service), operation)(**{argument: id}, **more)


# How what is ours goes once no stack holds it. What others may lean on (networks, roles) is not touched here.
REMOVERS: dict[str, Callable[[Any, str], Any]] = {
    "auto scaling group": _call("autoscaling", "delete_auto_scaling_group", "AutoScalingGroupName", ForceDelete=True),
    "instance": lambda session, id: session.client("ec2").terminate_instances(InstanceIds=[id]),
    "volume": _call("ec2", "delete_volume", "VolumeId"),
    "address": _address,
    "broker": _call("mq", "delete_broker", "BrokerId"),
    "network interface": _call("ec2", "delete_network_interface", "NetworkInterfaceId"),
    "bucket": _bucket,
    "log group": _call("logs", "delete_log_group", "logGroupName"),
    "secret": _call("secretsmanager", "delete_secret", "SecretId", ForceDeleteWithoutRecovery=True),
    "parameter": _call("ssm", "delete_parameter", "Name"),
    "function": _call("lambda", "delete_function", "FunctionName"),
    "layer": _layer,
    "state machine": _call("stepfunctions", "delete_state_machine", "stateMachineArn"),
    "schedule": _call("scheduler", "delete_schedule", "Name"),
    "budget": _budget,
    "launch template": _call("ec2", "delete_launch_template", "LaunchTemplateId"),
}
BY_HAND = "no stack deletes it any more; delete it in the console"


def remove(session: Any, orphan: FoundResource) -> str:
    """Delete what no stack holds any more; why it could not be, "" where it could. Raises botocore's errors about credentials."""
    from botocore.exceptions import ClientError

    remover = REMOVERS.get(orphan.kind)
    if remover is None:
        return BY_HAND
    try:
        with aws_calls.Tolerating(*GONE):
            remover(session, orphan.id)
    except CrossoverError as error:
        return str(error)
    except ClientError as error:
        if aws_calls.code_of(error) in aws_calls.EXPIRED:
            raise
        return str(error.response["Error"].get("Message") or error)
    return ""


def reasons(session: Any, stack_id: str) -> list[str]:
    """Why a deletion failed, resource by resource: `Bucket AWS::S3::Bucket (name): the bucket is not empty`."""
    events = aws_calls.entries(session, "cloudformation", "describe_stack_events", "StackEvents", StackName=stack_id)
    found: dict[str, str] = {}  # the newest of each resource
    for event in sorted(events, key=lambda each: each["Timestamp"]):
        if event.get("ResourceStatus") == "DELETE_FAILED" and event.get("PhysicalResourceId") != stack_id:
            name, type, id = (event[key] for key in ("LogicalResourceId", "ResourceType", "PhysicalResourceId"))
            found[name] = f"{name} {type} ({id}): {event.get('ResourceStatusReason', 'no reason given')}"
    return list(found.values())


def wait_for_stack(session: Any, name: str, *, poll_s: float = 5.0, timeout_s: float = 3_600.0) -> str:
    """The stack's state once nothing is in progress; "" when there is no such stack."""
    pause = Pauses(poll_s, within_s=timeout_s)
    while (stack := stacks.look(session, name)) and stack.in_progress and pause():
        continue
    return stack.state if stack else ""
