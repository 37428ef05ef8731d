"""Why a deployment failed: what hosts had to say is in their stack's events, which outlive the hosts and the rollback."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from crossover.clients import aws_calls

CLOCKS_DIFFER = timedelta(minutes=5)  # AWS refuses requests whose clock is further off
BEGINNINGS = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
HOST = "AWS::CloudFormation::WaitCondition"


def reasons(session: Any, stacks: Iterable[str], *, since: datetime, project: str) -> list[str]:
    """What failed first in each stack's last operation, if that began after `since`, and where a host's whole log lies."""
    found = []
    for stack in stacks:
        failed = [each for each in _last_operation(session, stack, since=since) if _is_a_cause(each)]
        in_order = reversed(failed)  # they come newest first
        found += [f"{stack}: {each['LogicalResourceId']}: {each['ResourceStatusReason']}" for each in in_order]
        if any(event["ResourceType"] == HOST for event in failed):
            found.append(f"the whole log of each host's boot: log group /crossover/{project}/boot in CloudWatch")
    return found


def _last_operation(session: Any, stack: str, *, since: datetime) -> Iterator[dict[str, Any]]:
    with aws_calls.Tolerating("does not exist"):
        for event in aws_calls.entries(
            session, "cloudformation", "describe_stack_events", "StackEvents", StackName=stack
        ):
            if event["Timestamp"] < since - CLOCKS_DIFFER:
                return
            yield event
            if event["PhysicalResourceId"] == event["StackId"] and event["ResourceStatus"] in BEGINNINGS:
                return


def _is_a_cause(event: dict[str, Any]) -> bool:
    """Not the stack's own line, which only counts the others, nor what was given up because something else had failed."""
    reason = event.get("ResourceStatusReason", "")
    failed = event["ResourceStatus"] in ("CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED")
    return failed and event["PhysicalResourceId"] != event["StackId"] and "cancelled" not in reason
