"""Everything that a run leaves behind or shows, to look for secrets in: what AWS shows to whoever may look, and files."""

import base64
import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from crossover.local import servers
from crossover.local.cloud import LocalCloud

SERVERS_OWN = ("redis.conf",)  # a server has to read its password somewhere: a file of the owner's alone


def list_encodings(secret: str) -> set[bytes]:
    """Return the secret as bytes, as it is and in the encodings in which it could appear."""
    plain = secret.encode()
    return {plain, base64.b64encode(plain), plain.hex().encode(), json.dumps(secret)[1:-1].encode()}


def find_secrets(secrets: Iterable[str], places: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return the sorted names of the places that contain any of the secrets. `places`: pairs (name, content)."""
    wanted = [form for secret in secrets for form in list_encodings(secret)]
    return sorted({where for where, content in places if any(form in content for form in wanted)})


def read_everything(cloud: LocalCloud, *folders: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (where, content) of everything readable while the stacks exist: files, objects, logs, executions, descriptions."""
    for folder in (cloud.workspace, *folders):
        yield from read_files(folder)
    yield from _objects(cloud)
    yield from _logs(cloud)
    yield from _executions(cloud)
    yield from _descriptions(cloud)
    yield from read_environments()


def read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield ("file PATH", content) of each file below a folder. Files that are deleted meanwhile, and configurations of servers that only
    their owner can read, are left out; fails if others can read such a configuration.
    """
    for place, _, names in os.walk(folder):  # bears folders that go, as rglob does not
        for path in (Path(place, name) for name in names):
            try:
                if not path.is_file():
                    continue
                mode, content = path.stat().st_mode, path.read_bytes()
            except FileNotFoundError:
                continue
            if path.name in SERVERS_OWN:
                assert mode & 0o077 == 0, f"{path}: others can read it"
                continue
            yield f"file {path}", content


def read_environments() -> Iterator[tuple[str, bytes]]:
    """Yield environment and command line of every process that this process's local cloud has started."""
    (mark,) = (f"{name}={value}".encode() for name, value in servers.mark_variable().items())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (process / "environ").read_bytes()
            if mark in environment:
                name = (process / "comm").read_text().strip()
                yield f"environment of {name}", environment
                yield f"command line of {name}", (process / "cmdline").read_bytes()


def _objects(cloud: LocalCloud) -> Iterator[tuple[str, bytes]]:
    """Yield (where, content) of each object in S3."""
    s3 = cloud.session().client("s3")
    for bucket in s3.list_buckets()["Buckets"]:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket["Name"]):
            for each in page.get("Contents", []):
                body = s3.get_object(Bucket=bucket["Name"], Key=each["Key"])["Body"].read()
                yield f"s3://{bucket['Name']}/{each['Key']}", body


def _logs(cloud: LocalCloud) -> Iterator[tuple[str, bytes]]:
    """Yield (where, text) of each log event."""
    logs = cloud.session().client("logs")
    for group in logs.describe_log_groups()["logGroups"]:
        for page in logs.get_paginator("filter_log_events").paginate(logGroupName=group["logGroupName"]):
            for event in page["events"]:
                yield f"log group {group['logGroupName']}", event["message"].encode()


def _executions(cloud: LocalCloud) -> Iterator[tuple[str, bytes]]:
    """Yield (where, JSON text) of each state machine, execution and history."""
    states = cloud.session().client("stepfunctions")
    for machine in states.list_state_machines()["stateMachines"]:
        yield _encode_answer("machine", states.describe_state_machine(stateMachineArn=machine["stateMachineArn"]))
        for execution in states.list_executions(stateMachineArn=machine["stateMachineArn"])["executions"]:
            arn = execution["executionArn"]
            yield _encode_answer(f"execution {arn}", states.describe_execution(executionArn=arn))
            yield _encode_answer(f"history of {arn}", states.get_execution_history(executionArn=arn))


def _descriptions(cloud: LocalCloud) -> Iterator[tuple[str, bytes]]:
    """Yield what AWS's APIs show of deployed resources, with user data and templates decoded."""
    session = cloud.session()
    functions = session.client("lambda")
    for function in functions.list_functions()["Functions"]:
        yield _encode_answer("function", functions.get_function(FunctionName=function["FunctionName"]))
    parameters = session.client("ssm").get_paginator("describe_parameters").paginate()
    for name in [each["Name"] for page in parameters for each in page["Parameters"]]:
        yield _encode_answer(f"parameter {name}", session.client("ssm").get_parameter(Name=name))
    ec2 = session.client("ec2")
    for reservation in ec2.describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            yield _encode_answer("instance", instance)
            attribute = ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
            yield "user data", base64.b64decode(attribute.get("UserData", {}).get("Value", ""))
    for template in ec2.describe_launch_templates()["LaunchTemplates"]:
        versions = ec2.describe_launch_template_versions(LaunchTemplateId=template["LaunchTemplateId"])
        for version in versions["LaunchTemplateVersions"]:
            yield "user data", base64.b64decode(version["LaunchTemplateData"].get("UserData", ""))
    yield _encode_answer("brokers", session.client("mq").list_brokers())
    yield _encode_answer("secrets' descriptions", session.client("secretsmanager").list_secrets())
    stacks = session.client("cloudformation")
    for stack in stacks.describe_stacks()["Stacks"]:
        yield _encode_answer("stack", stack)
        yield _encode_answer("template", stacks.get_template(StackName=stack["StackName"]))
        yield _encode_answer("stack events", stacks.describe_stack_events(StackName=stack["StackName"]))


def _encode_answer(where: str, answer: Any) -> tuple[str, bytes]:
    """Return (`where`, an API's answer as JSON text)."""
    return where, json.dumps(answer, default=str).encode()
