"""A deployment that failed says what the host said that did not come up, though the rollback has taken it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from crossover.running import preflight

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SAID = "WaitCondition received failed message: 'E: no package redis-server\nx-redis-1: boot failed' for uniqueId: x-redis-1"


def event(name: str, status: str, reason: str = "", *, minute: float, kind: str = "AWS::S3::Bucket") -> dict[str, Any]:
    """Return a CloudFormation event of a resource, or of the stack itself if the name is "stack". `minute`: minutes after NOW; `kind`:
    the resource's type.
    """
    own = name == "stack"
    return {
        "StackId": "id",
        "PhysicalResourceId": "id" if own else name,
        "LogicalResourceId": name,
        "ResourceType": "AWS::CloudFormation::Stack" if own else kind,
        "ResourceStatus": status,
        "ResourceStatusReason": reason,
        "Timestamp": NOW + timedelta(minutes=minute),
    }


# newest first, as CloudFormation lists them; the last three are of an earlier command
EVENTS = [
    event("stack", "ROLLBACK_COMPLETE", minute=9),
    event("Host1", "DELETE_COMPLETE", minute=8),
    event("stack", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create: [IsReady1]", minute=7),
    event("IsReady0", "CREATE_FAILED", "Resource creation cancelled", minute=6, kind=preflight.HOST_TYPE),
    event("IsReady1", "CREATE_FAILED", SAID, minute=5, kind=preflight.HOST_TYPE),
    event("stack", "CREATE_IN_PROGRESS", "User Initiated", minute=1),
    event("stack", "DELETE_COMPLETE", minute=-1),
    event("Bucket", "DELETE_FAILED", "not empty", minute=-2),
    event("stack", "DELETE_IN_PROGRESS", minute=-3),
]


class Session:
    """A boto3 session that is also its CloudFormation client and paginator. `pages`: the pages of events of each stack that exists."""

    def __init__(self, pages: dict[str, list[list[dict[str, Any]]]]) -> None:
        """Answer with these pages of events by stack."""
        self.pages = pages

    def client(self, name: str) -> "Session":
        """Return this object as the client."""
        return self

    def get_paginator(self, name: str) -> "Session":
        """Return this object as the paginator."""
        return self

    def paginate(self, StackName: str) -> Any:
        """Return the pages of the stack's events. Raises ClientError if there is no such stack."""
        if StackName not in self.pages:
            message = {"Error": {"Code": "ValidationError", "Message": f"Stack [{StackName}] does not exist"}}
            raise ClientError(message, "DescribeStackEvents")  # type: ignore[arg-type]
        return [{"StackEvents": page} for page in self.pages[StackName]]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_the_host_said_is_shown_and_nothing_older(size: int) -> None:
    """The reasons of a failed deployment are those of its own events, the host's message among them, in pages of any `size`."""
    session = Session({"x-spirt": [EVENTS[at : at + size] for at in range(0, len(EVENTS), size)]})
    told = preflight.list_failure_reasons(session, ["x-network", "x-spirt"], since=NOW, project="x")
    assert told == [
        f"x-spirt: IsReady1: {SAID}",
        "the whole log of each host's boot: log group /crossover/x/boot in CloudWatch",
    ]


def test_a_stack_that_this_command_did_not_touch_says_nothing() -> None:
    """Events from before the command give no reasons."""
    session = Session({"x-spirt": [EVENTS]})
    assert preflight.list_failure_reasons(session, ["x-spirt"], since=NOW + timedelta(hours=1), project="x") == []
