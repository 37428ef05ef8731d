"""Before a stack is deleted its functions leave the network, while their roles are there: Lambda needs one to take interfaces away.

Which functions: those that CloudFormation lists for the stack, and no other.
"""

import time
from collections.abc import Callable
from typing import Any

INTERFACE = "AWS Lambda VPC ENI"  # how Lambda describes its interfaces
Tell = Callable[[str], None]


def release_functions(session: Any, stack: str, tell: Tell) -> None:
    """Returns when each function's update has ended. Harmless to repeat, and where there is no such stack."""
    from botocore.exceptions import ClientError, WaiterError

    client, left = session.client("lambda"), list[str]()
    for name in _functions(session, stack):
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


def _functions(session: Any, stack: str) -> list[str]:
    from botocore.exceptions import ClientError

    pages = session.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    try:
        listed = [each for page in pages for each in page["StackResourceSummaries"]]
    except ClientError as error:
        if "does not exist" in str(error):
            return []
        raise
    return [
        each["PhysicalResourceId"]
        for each in listed
        if each["ResourceType"] == "AWS::Lambda::Function" and each.get("PhysicalResourceId")
    ]


def wait_for_interfaces(
    session: Any, project: str, tell: Tell, *, poll_s: float = 15.0, timeout_s: float = 2_700.0
) -> None:
    """Until Lambda has taken its interfaces out of the project's network, with the keeper's role, which goes with the network."""
    ssm = session.client("ssm")
    try:
        path = f"/crossover/{project}/network/functions_group"
        group = ssm.get_parameter(Name=path)["Parameter"]["Value"]
    except ssm.exceptions.ParameterNotFound:
        return None
    ends, told = time.monotonic() + timeout_s, False
    while held := _interfaces(session, group):
        if time.monotonic() > ends:
            return tell(f"{', '.join(held)} still there; the deletion may fail on them")
        if not told:
            tell(f"waiting for Lambda to take away {', '.join(held)}, which may take 20 minutes")
            told = True
        time.sleep(poll_s)
    return None


def _interfaces(session: Any, group: str) -> list[str]:
    pages = (
        session.client("ec2")
        .get_paginator("describe_network_interfaces")
        .paginate(Filters=[{"Name": "group-id", "Values": [group]}])
    )
    found = [each for page in pages for each in page["NetworkInterfaces"]]
    return [each["NetworkInterfaceId"] for each in found if each.get("Description", "").startswith(INTERFACE)]
