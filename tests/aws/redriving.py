"""Stop a run while children of it work, and redrive it: what its machine then makes of children that exist already."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from crossover.errors import CrossoverError, RunFailed
from crossover.runtime import Pauses
from tests.aws.evidence import Evidence, Redriven

POLL_S = 1.0
WAIT_S = 900.0
ACTIVE = ("RUNNING", "PENDING_REDRIVE")
ADOPTING = "adopt "  # how the states' names begin that take up a child (crossover.workflow.state_machines)


def _stopped(evidence: Evidence, *, run: str, children: Sequence[str], over: threading.Event) -> list[str]:
    """Stop the run as soon as a child of it works, and return the ARN of the run and those of its working children. Returns none if `over`
    is set before.
    """
    while not over.wait(POLL_S):
        with suppress(Exception):  # a listing that failed is asked again
            working = [
                each["executionArn"] for name in children for each in evidence.executions(name, status="RUNNING")
            ]
            parent = next(evidence.executions(run, status="RUNNING"), None)
            if working and parent is not None:
                _stop(evidence.client("stepfunctions"), parent["executionArn"])
                return [parent["executionArn"], *working]
    return []


def _stop(states: Any, arn: str) -> None:
    """Stop one execution."""
    states.stop_execution(executionArn=arn, cause="stopped to be redriven")


def redrive(
    evidence: Evidence,
    *,
    run: str,
    children: Sequence[str],
    start: Callable[[], object],
    children_first: bool,
) -> Redriven | None:
    """Run the experiment, stop it while a child works, redrive it, and return what was seen; None if it ended before a child was seen.

    `start`: runs the experiment and raises RunFailed when its execution is stopped; `children_first`: redrive the children before the run,
    so that the run finds them working or done; else it finds them stopped. Raises CrossoverError if an execution does not end.
    """
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(_stopped, evidence, run=run, children=children, over=over)
        try:
            with suppress(RunFailed):
                start()
        finally:
            over.set()
    if not stopping.result():
        return None
    states, (parent, *working) = evidence.client("stepfunctions"), stopping.result()
    for each in working:  # AWS stops them with their parent; who is late is stopped here
        with suppress(states.exceptions.ExecutionDoesNotExist):
            _stop(states, each)
        ended = _ended(states, each)
        if children_first and ended["status"] != "SUCCEEDED":
            states.redrive_execution(executionArn=each)
    _ended(states, parent)
    states.redrive_execution(executionArn=parent)
    found = _ended(states, parent)
    return Redriven(status=found["status"], error=str(found.get("error", "")), adopted=_adopted(states, parent))


def _ended(states: Any, arn: str) -> Mapping[str, Any]:
    """Wait until an execution has ended, and return its description. Raises CrossoverError if it does not end."""
    pause = Pauses(POLL_S, within_s=WAIT_S)
    while (found := states.describe_execution(executionArn=arn))["status"] in ACTIVE:
        if not pause():
            raise CrossoverError(f"{arn}: still {found['status']} after {WAIT_S / 60:.0f} minutes")
    return dict(found)


def _adopted(states: Any, arn: str) -> bool:
    """Return True if the execution entered a state that waits for a child which exists already."""
    pages = states.get_paginator("get_execution_history").paginate(executionArn=arn, includeExecutionData=False)
    entered = (event.get("stateEnteredEventDetails", {}).get("name", "") for page in pages for event in page["events"])
    return any(name.startswith(ADOPTING) for name in entered)
