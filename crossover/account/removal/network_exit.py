"""Before a stack is deleted its functions leave the network, while their roles are there: Lambda needs one to take interfaces away.

Which functions: those that CloudFormation lists for the stack, and no other. A deletion that was interrupted leaves them outside, which
CloudFormation does not see: a deployment puts back what its template has in the network.
"""

import json
import time
from typing import Any

from crossover.account import Tell
from crossover.account.resources import ownership
from crossover.account.resources.listings import INTERFACE
from crossover.clients import aws_calls


def release_functions(session: Any, stack: str, tell: Tell) -> None:
    """Returns when each function's update has ended. Harmless to repeat, and where there is no such stack."""
    from botocore.exceptions import ClientError, WaiterError

    client, left = session.client("lambda"), list[str]()
    for name in _functions(session, stack).values():
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


def outside(session: Any, stack: str) -> list[str]:
    """The stack's functions that its template has in the network and that are not there; none where there is no such stack."""
    client, functions = session.client("lambda"), _functions(session, stack)
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


def return_functions(session: Any, stack: str, project: str, tell: Tell) -> None:
    """Once the stack is deployed. Raises botocore's ClientError, WaiterError: without the network a run would wait in vain."""
    client = session.client("lambda")
    for name in (left := outside(session, stack)):
        subnet, group = (
            aws_calls.parameter(session, f"/crossover/{project}/network/{each}")
            for each in ("functions_subnet", "functions_group")
        )
        tell(f"putting function {name} back into the network, where an interrupted deletion took it out")
        client.update_function_configuration(
            FunctionName=name, VpcConfig={"SubnetIds": [subnet], "SecurityGroupIds": [group]}
        )
    for name in left:
        client.get_waiter("function_updated_v2").wait(FunctionName=name)


def _functions(session: Any, stack: str) -> dict[str, str]:
    """By the names that the template gives them."""
    with aws_calls.Tolerating("does not exist"):
        return {
            each["LogicalResourceId"]: each["PhysicalResourceId"]
            for each in ownership.resources(session, stack)
            if each["ResourceType"] == "AWS::Lambda::Function"
        }
    return {}


def wait_for_interfaces(
    session: Any,
    project: str,
    tell: Tell,
    *,
    poll_s: float = 15.0,
    timeout_s: float = 2_700.0,
    tell_every_s: float = 60.0,
) -> None:
    """Until Lambda has taken its interfaces out of the project's network, with the keeper's role, which goes with the network. What it
    waits for is told at once, and again while it waits: nobody is to take it for dead.
    """
    group = aws_calls.parameter(session, f"/crossover/{project}/network/functions_group")
    if not group:
        return None
    began = time.monotonic()
    told = began - tell_every_s
    while held := _interfaces(session, group):
        now = time.monotonic()
        if now - began > timeout_s:
            return tell(f"{', '.join(held)} still there; the deletion may fail on them")
        if now - told >= tell_every_s:
            told, waited = now, f", {(now - began) / 60:.0f} minutes so far" if told >= began else ""
            tell(f"waiting for Lambda to take away {', '.join(held)}, which may take 20 minutes{waited}")
        time.sleep(poll_s)
    return None


def _interfaces(session: Any, group: str) -> list[str]:
    mine = [{"Name": "group-id", "Values": [group]}]
    found = aws_calls.entries(session, "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=mine)
    return [each["NetworkInterfaceId"] for each in found if each.get("Description", "").startswith(INTERFACE)]
