"""Waiting for CloudFormation before a stack is deleted or deployed anew."""

from collections.abc import Iterator
from datetime import UTC, datetime
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
