"""Waiting for CloudFormation before a stack is deleted or deployed anew, and the reasons of deletions that failed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from crossover import runtime
from crossover.running import removal
from tests.clocks import Passing

SINCE = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> Iterator[Passing]:
    """Yield the process's clock, which passes only when something sleeps."""
    with runtime.use(passing := Passing()):
        yield passing


def session(*states: str) -> Any:
    """Return an account in which each question finds the stack in the next of `states`; "" if it does not exist."""
    coming = iter(states)

    def describe_stacks(*, StackName: str) -> dict[str, Any]:
        """Return the stack in its next state. Raises ClientError if it does not exist then."""
        state = next(coming)
        if not state:
            missing = {"Error": {"Code": "ValidationError", "Message": f"Stack with id {StackName} does not exist"}}
            raise ClientError(missing, "DescribeStacks")  # type: ignore[arg-type]
        stack = {"StackName": StackName, "StackId": "arn:stack", "StackStatus": state, "CreationTime": SINCE}
        return {"Stacks": [stack]}

    return SimpleNamespace(client=lambda service: SimpleNamespace(describe_stacks=describe_stacks))


def test_a_wait_for_a_stack_ends_with_its_operation(clock: Passing) -> None:
    """`wait_for_stack` polls until the stack's operation has ended, and returns the status."""
    busy = session("UPDATE_IN_PROGRESS", "UPDATE_ROLLBACK_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE")
    assert removal.wait_for_stack(busy, "x", poll_s=5.0) == "UPDATE_ROLLBACK_COMPLETE"
    assert clock.slept_s == [5.0, 5.0]


def test_a_wait_for_a_stack_ends_if_it_is_gone_or_after_its_timeout(clock: Passing) -> None:
    """`wait_for_stack` returns "" if the stack is gone, and the last status after the timeout."""
    assert removal.wait_for_stack(session("DELETE_IN_PROGRESS", ""), "x", poll_s=5.0) == ""
    endless = session(*["DELETE_IN_PROGRESS"] * 4)
    assert removal.wait_for_stack(endless, "x", poll_s=5.0, timeout_s=12.0) == "DELETE_IN_PROGRESS"
    assert clock.now_s == 17.0


def test_only_failures_of_the_newest_deletion_are_listed() -> None:
    """`list_deletion_failures` leaves out resources that an earlier deletion failed to delete, and those deleted since."""
    events = [
        ("stack", "DELETE_IN_PROGRESS", "User Initiated"),
        ("Runs", "DELETE_FAILED", "the bucket is not empty"),
        ("Topic", "DELETE_FAILED", "throttled"),
        ("stack", "DELETE_FAILED", "two resources failed"),
        ("stack", "DELETE_IN_PROGRESS", "User Initiated"),
        ("Runs", "DELETE_COMPLETE", ""),
        ("Role", "DELETE_FAILED", "throttled"),
        ("Topic", "DELETE_FAILED", "throttled"),
        ("Topic", "DELETE_FAILED", "a subscription of somebody holds it"),
        ("Role", "DELETE_COMPLETE", ""),
        ("stack", "DELETE_FAILED", "one resource failed"),
    ]
    assert removal.list_deletion_failures(session_with(events), "id") == [
        "Topic AWS::SNS::Topic (Topic): a subscription of somebody holds it"
    ]


def test_a_new_deletion_without_failures_lists_none() -> None:
    """`list_deletion_failures` does not give an earlier deletion's reason for one that has not failed."""
    events = [("Runs", "DELETE_FAILED", "the bucket is not empty"), ("stack", "DELETE_IN_PROGRESS", "User Initiated")]
    assert removal.list_deletion_failures(session_with(events), "id") == []


def session_with(events: list[tuple[str, str, str]]) -> Any:
    """Return an account with these events (name, status, reason) of the stack whose id is "id", oldest first; pairs of them have the same
    time. The stack itself is named "stack".
    """
    listed = [
        {
            "LogicalResourceId": name,
            "PhysicalResourceId": "id" if name == "stack" else name,
            "ResourceType": "AWS::CloudFormation::Stack" if name == "stack" else "AWS::SNS::Topic",
            "ResourceStatus": status,
            "ResourceStatusReason": reason,
            "Timestamp": SINCE + timedelta(seconds=number // 2),
        }
        for number, (name, status, reason) in enumerate(events)
    ]
    paginator = SimpleNamespace(
        paginate=lambda StackName: [{"StackEvents": listed[::-1]}]
    )  # CloudFormation: newest first
    return SimpleNamespace(client=lambda service: SimpleNamespace(get_paginator=lambda operation: paginator))
