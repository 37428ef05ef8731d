"""Deletion of a stack, the steps before and after it, and the check that nothing is left."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from crossover.errors import CrossoverError, UserError, print_line
from crossover.experiment import Experiment
from crossover.running import account
from crossover.running import account as stacks
from crossover.running.account import (
    FLEET,
    INTERFACE_DESCRIPTION,
    KINDS,
    DeployedStack,
    FoundResource,
    Owner,
    Ownership,
    ReportLine,
    explain_aws_errors,
)
from crossover.runtime import Pauses
from crossover.stores import deployed_clients
from crossover.training.gradients import build_baselines
from crossover.workflow.infrastructure import shared_stacks

# --- leftovers --------------------------------------------------------------------------------------------------------

# Errors for resources that do not exist any more, because a deletion was interrupted or they were deleted by hand.
GONE_ERRORS = (
    "StateMachineDoesNotExist",
    "ResourceNotFoundException",
    "NoSuchBucket",
    "NotFoundException",
    "ParameterNotFound",
)


def stop_running(session: Any, owner: Owner, tell: ReportLine) -> None:
    """Stop the running executions of the owner's state machines, and scale its Auto Scaling groups to zero, so that nothing writes into
    what is being deleted.

    Does not wait until they have ended. Safe to repeat. `session`: makes the AWS clients; `tell`: reports one line.
    """
    states = session.client("stepfunctions")
    for arn in owner.list_ids("AWS::StepFunctions::StateMachine"):
        with deployed_clients.ToleratedErrors(*GONE_ERRORS):
            running = {"stateMachineArn": arn, "statusFilter": "RUNNING"}
            for execution in list(
                deployed_clients.list_items(session, "stepfunctions", "list_executions", "executions", **running)
            ):
                tell(f"stopping execution {execution['name']}")
                states.stop_execution(executionArn=execution["executionArn"], cause="its stack is being destroyed")
    scaling = session.client("autoscaling")
    for name in owner.list_ids(FLEET):
        for group in scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]:
            if group["DesiredCapacity"] or group["Instances"]:
                tell(f"emptying fleet {name} of {len(group['Instances'])} instances")
                scaling.update_auto_scaling_group(AutoScalingGroupName=name, MinSize=0, DesiredCapacity=0)


def empty_buckets(session: Any, owner: Owner) -> None:
    """Delete all objects in all buckets of the owner's existing stacks. Buckets that do not exist any more are skipped. Raises
    CrossoverError at the first object that could not be deleted.
    """
    for name in owner.list_ids("AWS::S3::Bucket"):
        with deployed_clients.ToleratedErrors(*GONE_ERRORS):
            empty_bucket(session, name)


def empty_bucket(session: Any, name: str) -> None:
    """Delete every object in the bucket `name`, in all versions. Raises CrossoverError naming the first one that could not be deleted, and
    botocore's error if there is no such bucket.
    """
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


def _delete_bucket(session: Any, name: str) -> None:
    """Delete the bucket and all objects in it. Raises CrossoverError or botocore's error as `empty_bucket` does."""
    empty_bucket(session, name)
    session.client("s3").delete_bucket(Bucket=name)


def _delete_layer(session: Any, arn: str) -> None:
    """Delete the version of a Lambda layer whose ARN is `arn`."""
    layer, _, version = arn.rpartition(":")
    session.client("lambda").delete_layer_version(LayerName=layer, VersionNumber=int(version))


def _delete_budget(session: Any, name: str) -> None:
    """Delete the AWS budget `name` of the session's account."""
    account = session.client("sts").get_caller_identity()["Account"]
    session.client("budgets").delete_budget(AccountId=account, BudgetName=name)


def _release_address(session: Any, public: str) -> None:
    """Release the Elastic IP address `public`, an IPv4 address as text."""
    (found,) = session.client("ec2").describe_addresses(PublicIps=[public])["Addresses"]
    session.client("ec2").release_address(AllocationId=found["AllocationId"])


def _make_remover(service: str, operation: str, argument: str, **more: Any) -> Callable[[Any, str], Any]:
    """Return a function (session, id) that deletes the resource `id` by calling the boto3 operation `operation` of `service`, and returns
    AWS's answer; it raises boto3's errors. `argument`: the operation's argument for the id; `more`: its further arguments.
    """
    return lambda session, id: getattr(session.client(service), operation)(**{argument: id}, **more)


# How to delete our resources that no stack contains any more. Those that others may depend on (networks, roles) are not deleted here.
REMOVERS: dict[str, Callable[[Any, str], Any]] = {
    "auto scaling group": _make_remover(
        "autoscaling", "delete_auto_scaling_group", "AutoScalingGroupName", ForceDelete=True
    ),
    "instance": lambda session, id: session.client("ec2").terminate_instances(InstanceIds=[id]),
    "volume": _make_remover("ec2", "delete_volume", "VolumeId"),
    "address": _release_address,
    "broker": _make_remover("mq", "delete_broker", "BrokerId"),
    "network interface": _make_remover("ec2", "delete_network_interface", "NetworkInterfaceId"),
    "bucket": _delete_bucket,
    "log group": _make_remover("logs", "delete_log_group", "logGroupName"),
    "secret": _make_remover("secretsmanager", "delete_secret", "SecretId", ForceDeleteWithoutRecovery=True),
    "parameter": _make_remover("ssm", "delete_parameter", "Name"),
    "function": _make_remover("lambda", "delete_function", "FunctionName"),
    "layer": _delete_layer,
    "state machine": _make_remover("stepfunctions", "delete_state_machine", "stateMachineArn"),
    "schedule": _make_remover("scheduler", "delete_schedule", "Name"),
    "queue": _make_remover("sqs", "delete_queue", "QueueUrl"),
    "alarm": lambda session, id: session.client("cloudwatch").delete_alarms(AlarmNames=[id]),
    "budget": _delete_budget,
    "launch template": _make_remover("ec2", "delete_launch_template", "LaunchTemplateId"),
}
BY_HAND_MESSAGE = "no stack contains it any more; delete it in the console"


def remove_orphan(session: Any, orphan: FoundResource) -> str:
    """Delete a resource that no stack contains any more, and return "", also if it did not exist. If AWS refuses, or this kind of resource
    must be deleted by hand, return the reason. Raises botocore's error if AWS does not accept the credentials.
    """
    from botocore.exceptions import ClientError

    remover = REMOVERS.get(orphan.kind)
    if remover is None:
        return BY_HAND_MESSAGE
    try:
        with deployed_clients.ToleratedErrors(*GONE_ERRORS):
            remover(session, orphan.id)
    except CrossoverError as error:
        return str(error)
    except ClientError as error:
        if deployed_clients.get_error_code(error) in deployed_clients.EXPIRED_CODES:
            raise
        return str(error.response["Error"].get("Message") or error)
    return ""


def list_deletion_failures(session: Any, stack_id: str) -> list[str]:
    """Return a line for each resource that the newest deletion of the stack could not delete, with the newest reason, in the order of the
    first failures: `Bucket AWS::S3::Bucket (name): the bucket is not empty`. Empty if none failed.

    `stack_id`: id of the stack, under which a deleted one is found too. Raises botocore's ClientError if AWS refuses the question.
    """
    events = deployed_clients.list_items(
        session, "cloudformation", "describe_stack_events", "StackEvents", StackName=stack_id
    )
    found: dict[str, str] = {}  # the newest of each resource
    ordered = list(events)[::-1]  # CloudFormation lists the newest first, also of those with equal times
    ordered.sort(key=lambda each: each["Timestamp"])
    for event in ordered:
        name, status = event["LogicalResourceId"], event.get("ResourceStatus")
        if event.get("PhysicalResourceId") == stack_id:
            if status == "DELETE_IN_PROGRESS":  # a new deletion: its failures alone count
                found.clear()
        elif status == "DELETE_FAILED":
            type, id = event["ResourceType"], event["PhysicalResourceId"]
            found[name] = f"{name} {type} ({id}): {event.get('ResourceStatusReason', 'no reason given')}"
        elif status == "DELETE_COMPLETE":
            found.pop(name, None)
    return list(found.values())


def wait_for_stack(session: Any, name: str, *, poll_s: float = 5.0, timeout_s: float = 3_600.0) -> str:
    """Poll the stack `name` (or its id) every `poll_s` seconds until no operation on it is in progress, or until `timeout_s` seconds have
    passed, and return its state, such as CREATE_COMPLETE; "" if there is no such stack or it has been deleted. After the timeout the state
    ends in _IN_PROGRESS.

    `session`: makes the AWS clients.
    """
    pause = Pauses(poll_s, within_s=timeout_s)
    while (stack := stacks.find_stack(session, name)) and stack.is_in_progress and pause():
        continue
    return stack.state if stack else ""


# --- network exit -----------------------------------------------------------------------------------------------------
# Before a stack is deleted, its functions leave the network while their roles exist: Lambda needs a role to remove interfaces.
#
# Only functions that CloudFormation lists for the stack are changed. An interrupted deletion leaves them outside the network, which
# CloudFormation does not notice; a deployment puts functions back that its template has in the network.


def release_functions(session: Any, stack: str, tell: ReportLine) -> None:
    """Take the Lambda functions of `stack` (name or id) out of their VPC and wait until that has happened. Problems are reported, not
    raised.

    Safe to repeat, also if there is no such stack. `session`: makes the AWS clients; `tell`: reports one line.
    """
    from botocore.exceptions import ClientError, WaiterError

    client, left = session.client("lambda"), list[str]()
    for name in _list_functions(session, stack).values():
        try:
            there = client.get_function_configuration(FunctionName=name)
            if not there.get("VpcConfig", {}).get("SubnetIds"):
                continue
            tell(f"taking function {name} out of the network")
            client.update_function_configuration(FunctionName=name, VpcConfig={"SubnetIds": [], "SecurityGroupIds": []})
            left.append(name)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                tell(f"{name}: stays in the network: {error.response['Error'].get('Message', error)}")
    for name in left:
        try:
            client.get_waiter("function_updated_v2").wait(FunctionName=name)
        except WaiterError as error:
            tell(f"{name}: did not leave the network: {error}")


def find_functions_outside(session: Any, stack: str) -> list[str]:
    """Return the names of the stack's Lambda functions that are in no VPC although the deployed template puts them into one. Empty if there
    is no such stack.
    """
    client, functions = session.client("lambda"), _list_functions(session, stack)
    if not functions:
        return []
    template = session.client("cloudformation").get_template(StackName=stack)["TemplateBody"]
    declared = (json.loads(template) if isinstance(template, str) else template)["Resources"]
    inside = [name for resource, name in functions.items() if declared[resource]["Properties"].get("VpcConfig")]
    return [
        name
        for name in inside
        if not client.get_function_configuration(FunctionName=name).get("VpcConfig", {}).get("SubnetIds")
    ]


def return_functions(session: Any, stack: str, project: str, tell: ReportLine) -> None:
    """Put those Lambda functions of `stack` back into their VPC that an interrupted deletion took out of it. Called after the stack was
    deployed again. Raises botocore's ClientError or WaiterError if that fails, because a run without the network would wait in vain.

    `session`: makes the AWS clients; `project`: names the network's parameters; `tell`: reports one line.
    """
    client = session.client("lambda")
    for name in (left := find_functions_outside(session, stack)):
        subnet, group = (
            deployed_clients.read_parameter(session, f"/crossover/{project}/network/{each}")
            for each in ("functions_subnet", "functions_group")
        )
        tell(f"putting function {name} back into the network, where an interrupted deletion took it out")
        client.update_function_configuration(
            FunctionName=name, VpcConfig={"SubnetIds": [subnet], "SecurityGroupIds": [group]}
        )
    for name in left:
        client.get_waiter("function_updated_v2").wait(FunctionName=name)


def _list_functions(session: Any, stack: str) -> dict[str, str]:
    """Return {logical id: name} of the stack's Lambda functions, {} if there is no such stack."""
    with deployed_clients.ToleratedErrors("does not exist"):
        return {
            each["LogicalResourceId"]: each["PhysicalResourceId"]
            for each in account.list_stack_resources(session, stack)
            if each["ResourceType"] == "AWS::Lambda::Function"
        }
    return {}


def wait_for_interfaces(
    session: Any,
    project: str,
    tell: ReportLine,
    *,
    poll_s: float = 15.0,
    timeout_s: float = 2_700.0,
    tell_every_s: float = 60.0,
) -> None:
    """Wait until Lambda has removed its network interfaces from the project's network, or report after `timeout_s` seconds that they still
    exist. Return at once if the project has no network. Lambda needs a role for it that is deleted with the network.

    `session`: makes the AWS clients; AWS is polled every `poll_s` seconds. `tell`: reports what is waited for, at once and every
    `tell_every_s` seconds, so that users see that the command is alive.
    """
    group = deployed_clients.read_parameter(session, f"/crossover/{project}/network/functions_group")
    if not group:
        return None
    began = time.monotonic()
    told = began - tell_every_s
    while held := _list_interface_ids(session, group):
        now = time.monotonic()
        if now - began > timeout_s:
            return tell(f"{', '.join(held)} still exist; the deletion may fail because of them")
        if now - told >= tell_every_s:
            told, waited = now, f", {(now - began) / 60:.0f} minutes so far" if told >= began else ""
            tell(f"waiting for Lambda to take away {', '.join(held)}, which may take 20 minutes{waited}")
        time.sleep(poll_s)
    return None


def _list_interface_ids(session: Any, group: str) -> list[str]:
    """Return the ids of the network interfaces that Lambda created in the security group with the id `group`."""
    mine = [{"Name": "group-id", "Values": [group]}]
    found = deployed_clients.list_items(
        session, "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=mine
    )
    return [
        each["NetworkInterfaceId"] for each in found if each.get("Description", "").startswith(INTERFACE_DESCRIPTION)
    ]


# --- destroying -------------------------------------------------------------------------------------------------------
# Destruction: stop what runs, delete the stacks and what they left, and check that nothing is left.


def list_experiment_names(experiment: Experiment) -> list[str | None]:
    """Return the names of the experiment and its baselines, none of which is None, in the order in which their stacks are deleted: the
    experiment first, since its stack depends on those of its baselines.
    """
    return [experiment.name, *(companion.name for companion in build_baselines(experiment))]


def announce_removal(session: Any, experiment: Experiment, *, shared: bool) -> Iterator[str]:
    """Yield lines on what will be removed for the experiment, what stays, and which resources look like the project's and are left alone.
    Waits first until no operation on the stacks is in progress.

    `session`: makes the AWS clients; `shared`: whether network and broker are to be removed too. Raises UserError if a stack with a name of
    ours belongs to somebody else, or if other experiments need the shared stacks.
    """
    project, names = experiment.project, list_experiment_names(experiment)
    _wait_until_idle(session, project, [*names, *(account.SHARED_KINDS if shared else ())])
    if shared:
        _check_shared_unneeded(session, experiment, going=names)
    found = []
    for owner in [account.load_owner(session, project, name) for name in ([None, *names] if shared else names)]:
        found += [
            f"  stack {each.name}{_format_owner(each)}, {len(account.list_stack_resources(session, each.id))} resources and their content"
            for each in sorted(owner.standing, key=_find_deletion_order)
        ]
        taken = account.find_resources(session, owner)
        found += [f"  {each}, left by a deleted stack" for each in taken if each.whose is Ownership.LEFT]
        yield from (f"left alone: {each}: {each.why}" for each in taken if each.whose is Ownership.UNPROVEN)
    if not shared and (parts := shared_stacks(experiment)):
        yield f"stays: {' and '.join(f'{project}-{part}' for part in parts)}; --shared removes what no experiment needs"
    yield f"to be removed from {account.describe_place(session)}:{'' if found else ' nothing'}"
    yield from dict.fromkeys(found)


def _format_owner(stack: DeployedStack) -> str:
    """Return the stack's owner as a part of a line, such as ` of alice`; "" if the stack has no owner tag."""
    return f" of {stack.tags[account.OWNER_TAG]}" if account.OWNER_TAG in stack.tags else ""


def _wait_until_idle(session: Any, project: str, names: list[str | None]) -> None:
    """Wait until no operation on the project's stacks called `names` (without the project's name) is in progress. Raises UserError before
    waiting if a stack with such a name does not belong to the project.
    """
    for name in names:
        account.check_ours(session, f"{project}-{name}", project=project)
    for name in names:
        wait_for_stack(session, f"{project}-{name}")


def _check_shared_unneeded(session: Any, experiment: Experiment, *, going: list[str | None]) -> None:
    """Raise UserError if the project has stacks that need the shared network and broker, other than those of the experiments named in
    `going`.
    """
    project = experiment.project
    unneeded = [f"{project}-{name}" for name in (*account.SHARED_KINDS, *going)]
    if others := [each.name for each in account.load_owner(session, project).standing if each.name not in unneeded]:
        raise UserError(f"--shared: {', '.join(others)} still exist and need network and broker; destroy them first")


def delete_experiment(session: Any, experiment: Experiment) -> None:
    """Delete the experiment's stack, whatever its state, then those of its baselines, and what they leave behind. Running executions and
    fleets are stopped first; the buckets' content is lost. Waits until each stack is gone, which takes minutes, at most about an hour for
    each attempt to delete it. Stacks that do not exist are skipped.

    The first failure ends it: raises UserError if a stack belongs to somebody else, CrossoverError if a deletion fails. The message says
    what was removed of the experiment or baseline that failed, and what was not.
    """
    for name in list_experiment_names(experiment):
        _delete_stacks(session, experiment.project, name)


def delete_shared(session: Any, experiment: Experiment) -> None:
    """Delete the broker's and then the network's stack, which all experiments of the project share, and what they leave behind. Raises
    UserError if an experiment that needs them still exists, CrossoverError if a deletion fails.
    """
    _check_shared_unneeded(session, experiment, going=[])
    _delete_stacks(session, experiment.project, None)


def _delete_stacks(session: Any, project: str, experiment: str | None) -> None:
    """Delete the stack of the experiment named `experiment`, or with None the shared stacks of the project, and then the resources that the
    stacks leave behind.

    Raises CrossoverError or UserError; the message says what was removed and what was not.
    """
    from botocore.exceptions import ClientError

    gone, wanted = list[str](), list[str]()
    try:
        with explain_aws_errors():
            _wait_until_idle(session, project, [experiment] if experiment else list(account.SHARED_KINDS))
            owner = account.load_owner(session, project, experiment)
            standing = sorted(
                (each for each in owner.standing if experiment or _find_deletion_order(each) >= 0),
                key=_find_deletion_order,
            )
            wanted += [f"stack {stack.name}" for stack in standing]
            for stack in standing:
                _delete_stack(session, owner, stack)
                gone.append(f"stack {stack.name}")
            owner = account.load_owner(session, project, experiment)
            orphans = [each for each in account.find_resources(session, owner) if each.whose is Ownership.LEFT]
            wanted += map(str, orphans)
            _remove_orphans(session, orphans, gone)
    except (CrossoverError, ClientError) as error:
        status = type(error) if isinstance(error, UserError) else CrossoverError
        kept = ", ".join(each for each in wanted if each not in gone)
        raise status(
            f"{error}\nremoved: {', '.join(gone) or 'nothing'}; repeat the command to continue\nnot removed: {kept or 'nothing else'}"
        ) from error


def _find_deletion_order(stack: Any) -> int:
    """Return the stack's position in the order of deletion: -1 for an experiment, 0 for the broker, 1 for the network."""
    return account.SHARED_KINDS.index(stack.kind) if stack.kind in account.SHARED_KINDS else -1


def _delete_stack(session: Any, owner: Any, stack: Any, *, tries: int = 2) -> None:
    """Stop all executions and fleets of `owner`, take the functions of `stack` out of the network, then delete this stack, by its id, and
    wait until it is gone.

    `owner`: experiment or project that has the stack; `stack`: a deployed stack; `tries`: number of attempts; before each further one all
    buckets of the owner are emptied. Raises CrossoverError with the reasons if the deletion fails or takes longer than an hour.
    """
    stop_running(session, owner, print_line)
    release_functions(session, stack.id, print_line)
    if stack.kind == "network":
        wait_for_interfaces(session, owner.project, print_line)
    for attempt in range(tries):
        print_line(f"deleting stack {stack.name}")
        session.client("cloudformation").delete_stack(StackName=stack.id)
        state = wait_for_stack(session, stack.id)
        if not state:
            return
        why = "; ".join(list_deletion_failures(session, stack.id)) or "CloudFormation gives no reason"
        if state != "DELETE_FAILED" or attempt + 1 == tries:
            raise CrossoverError(f"{stack.name}: is {state}, {attempt + 1} attempts: {why}")
        print_line(f"{stack.name}: the deletion failed: {why}; emptying its buckets, then trying again")
        empty_buckets(session, owner)


def _remove_orphans(session: Any, orphans: list[Any], gone: list[str]) -> None:
    """Delete resources that no stack contains any more, and append the names of the deleted ones to `gone`. Raises CrossoverError naming
    those that could not be deleted; network interfaces of functions are only reported, because AWS removes them itself.
    """
    problems = []
    for orphan in sorted(orphans, key=lambda each: [*REMOVERS, each.kind].index(each.kind)):
        print_line(f"removing {orphan}")
        problem = remove_orphan(session, orphan)
        if not problem:
            gone.append(str(orphan))
        elif orphan.kind == "network interface":
            print_line(f"left: {orphan}: {problem}; AWS removes it within 40 minutes")
        else:
            problems.append(f"{orphan}: {problem}")
    if problems:
        raise CrossoverError(f"could not be removed: {'; '.join(problems)}")


# The CDK uploads the templates' files to the bucket of `cdk bootstrap` and never deletes them.
UPLOADS_NOTE = (
    "what deployments uploaded to the CDK's own bucket, cents a month: 79 MB for each state of the layers; "
    ".venv/bin/cdk gc --unstable=gc deletes what no stack uses"
)


def verify_removed(session: Any, project: str, experiment: str | None) -> str:
    """Search the account for anything that is left of one `experiment`, or of the whole `project` if that is None. Return a text of five
    lines on what was checked, what was not, and what looks like ours without proof, which does not count as left.

    Raises CrossoverError naming every resource of ours that is left, the billed ones first. `session`: makes the AWS clients.
    """
    owner = account.load_owner(session, project, experiment)
    taken = account.find_resources(session, owner)
    left = [each for each in taken if each.whose is not Ownership.UNPROVEN]
    if left:
        billed = ", ".join(str(each) for each in left if each.billable)
        free = ", ".join(str(each) for each in left if not each.billable)
        parts = [f"billed: {billed}" if billed else "", f"not billed: {free}" if free else ""]
        raise CrossoverError(f"{owner.stack}: left on AWS: {'; '.join(part for part in parts if part)}")
    unproven = ", ".join(str(each) for each in taken if each.whose is Ownership.UNPROVEN)
    return (
        f"{owner.stack}: nothing is left of ours in {account.describe_place(session)}\n"
        f"  checked: {', '.join(KINDS)}\n"
        "  not checked: other regions and accounts, the CDK's own bucket and roles, what stacks deleted over 90 days ago left\n"
        f"  stays: {UPLOADS_NOTE}\n"
        f"  looks like ours without proof, left alone: {unproven or 'nothing'}"
    )
