"""Around a stack's deletion: stop what works in it before, take away what it leaves behind after.

Left behind are: network interfaces of functions (AWS removes them 20 to 40 minutes later), log groups that a last line brought back,
buckets that were written to while they were emptied, and what a failed deletion could not delete.
"""

import time
from collections.abc import Callable
from typing import Any

from crossover.cli.aws.inventory import Found
from crossover.cli.aws.ownership import Owner

Tell = Callable[[str], None]


def stop_running(session: Any, owner: Owner, tell: Tell) -> None:
    """Executions are stopped, fleets emptied: nothing is to write into what is being deleted. Harmless to repeat."""
    states = session.client("stepfunctions")
    for machine in states.get_paginator("list_state_machines").paginate().search("stateMachines[]"):
        if machine and owner.named(machine["name"]) and machine.get("type", "STANDARD") == "STANDARD":
            arn = machine["stateMachineArn"]
            running = states.list_executions(stateMachineArn=arn, statusFilter="RUNNING")["executions"]
            for execution in running:
                tell(f"stopping execution {execution['name']}")
                states.stop_execution(executionArn=execution["executionArn"], cause="its stack is being destroyed")
    scaling = session.client("autoscaling")
    for page in scaling.get_paginator("describe_auto_scaling_groups").paginate():
        for group in page["AutoScalingGroups"]:
            name = group["AutoScalingGroupName"]
            if owner.named(name) and (group["DesiredCapacity"] or group["Instances"]):
                tell(f"emptying fleet {name} of {len(group['Instances'])} instances")
                scaling.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, DesiredCapacity=0)


def empty_bucket(session: Any, name: str) -> None:
    """Every object and version."""
    s3 = session.client("s3")
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
        keys = [
            {"Key": each["Key"], "VersionId": each["VersionId"]}
            for kind in ("Versions", "DeleteMarkers")
            for each in page.get(kind, [])
        ]
        if keys:
            s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})


def _bucket(session: Any, name: str) -> None:
    empty_bucket(session, name)
    session.client("s3").delete_bucket(Bucket=name)


def _group(session: Any, name: str) -> None:
    session.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)


def _layer(session: Any, name: str) -> None:
    client = session.client("lambda")
    for version in client.list_layer_versions(LayerName=name)["LayerVersions"]:
        client.delete_layer_version(LayerName=name, VersionNumber=version["Version"])


def _machine(session: Any, name: str) -> None:
    states = session.client("stepfunctions")
    for machine in states.get_paginator("list_state_machines").paginate().search("stateMachines[]"):
        if machine and machine["name"] == name:
            states.delete_state_machine(stateMachineArn=machine["stateMachineArn"])


# Orphans that are ours by name or tag and that no stack deletes any more. What others may lean on (networks, roles) is not touched here.
REMOVERS: dict[str, Callable[[Any, str], Any]] = {
    "auto scaling group": _group,
    "instance": lambda session, name: session.client("ec2").terminate_instances(InstanceIds=[name]),
    "volume": lambda session, name: session.client("ec2").delete_volume(VolumeId=name),
    "address": lambda session, name: session.client("ec2").release_address(AllocationId=name),
    "network interface": lambda session, name: session.client("ec2").delete_network_interface(NetworkInterfaceId=name),
    "bucket": _bucket,
    "log group": lambda session, name: session.client("logs").delete_log_group(logGroupName=name),
    "secret": lambda session, name: session.client("secretsmanager").delete_secret(
        SecretId=name, ForceDeleteWithoutRecovery=True
    ),
    "parameter": lambda session, name: session.client("ssm").delete_parameter(Name=name),
    "function": lambda session, name: session.client("lambda").delete_function(FunctionName=name),
    "layer": _layer,
    "state machine": _machine,
    "launch template": lambda session, name: session.client("ec2").delete_launch_template(LaunchTemplateId=name),
}


def remove(session: Any, orphans: list[Found], tell: Tell) -> list[str]:
    """Delete what can be deleted; why the rest could not, one line each."""
    from botocore.exceptions import ClientError

    problems = []
    for orphan in sorted(orphans, key=lambda each: [*REMOVERS, each.kind].index(each.kind)):
        remover = REMOVERS.get(orphan.kind)
        if remover is None:
            problems.append(f"{orphan}: no stack deletes it; delete it in the console")
            continue
        tell(f"removing {orphan}")
        try:
            remover(session, orphan.name)
        except ClientError as error:
            problems.append(f"{orphan}: {error.response['Error'].get('Message', error)}")
    return problems


def wait_for_stack(session: Any, name: str, *, poll_s: float = 5.0, timeout_s: float = 3_600.0) -> str:
    """The stack's state once nothing is in progress; "" when there is no such stack."""
    from botocore.exceptions import ClientError

    ends = time.monotonic() + timeout_s
    while True:
        try:
            state = str(session.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])
        except ClientError as error:
            if "does not exist" in str(error):
                return ""
            raise
        moving = state.endswith("_IN_PROGRESS") and state != "REVIEW_IN_PROGRESS"
        if not moving or time.monotonic() > ends:
            return "" if state == "DELETE_COMPLETE" else state
        time.sleep(poll_s)
