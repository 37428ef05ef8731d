"""Stop a run while children of it work, and redrive it: what its machine then makes of children that exist already."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from crossover.account.proofs.evidence import Evidence, Redriven
from crossover.errors import CrossoverError, RunFailed
from crossover.runtime.pauses import Pauses

POLL_S = 1.0
WAIT_S = 900.0
ACTIVE = ("RUNNING", "PENDING_REDRIVE")
ADOPTING = "adopt "  # how the states' names begin that take up a child (crossover.asl)


class _Stopper(threading.Thread):
    """Stops the run as soon as a child of it works; `run_arn` is empty until then."""

    def __init__(self, evidence: Evidence, *, run: str, children: Sequence[str]) -> None:
        super().__init__(name="stops the run", daemon=True)
        self.run_arn, self.children = "", list[str]()
        self._evidence, self._run, self._names = evidence, run, children
        self._over = threading.Event()

    def run(self) -> None:
        while not self.run_arn and not self._over.wait(POLL_S):
            with suppress(Exception):  # a listing that failed is asked again
                self._look()

    def _look(self) -> None:
        look = self._evidence.executions
        working = [each["executionArn"] for name in self._names for each in look(name, status="RUNNING")]
        parent = next(self._evidence.executions(self._run, status="RUNNING"), None)
        if not working or parent is None:
            return
        self._evidence.client("stepfunctions").stop_execution(
            executionArn=parent["executionArn"], cause="stopped to be redriven"
        )
        self.children, self.run_arn = working, parent["executionArn"]

    def end(self) -> None:
        self._over.set()
        self.join()


def redrive(
    evidence: Evidence,
    *,
    run: str,
    children: Sequence[str],
    start: Callable[[], object],
    children_first: bool,
) -> Redriven | None:
    """`start` runs the experiment and raises RunFailed when its execution is stopped. None where it ended before a child was seen.

    `children_first`: the children are redriven before the run, so that it finds them at work or done; else it finds them stopped. Raises
    CrossoverError where an execution does not end.
    """
    stopper = _Stopper(evidence, run=run, children=children)
    stopper.start()
    try:
        with suppress(RunFailed):
            start()
    finally:
        stopper.end()
    if not stopper.run_arn:
        return None
    states = evidence.client("stepfunctions")
    for each in stopper.children:  # AWS stops them with their parent; who is late is stopped here
        with suppress(states.exceptions.ExecutionDoesNotExist):
            states.stop_execution(executionArn=each, cause="stopped to be redriven")
        ended = _ended(states, each)
        if children_first and ended["status"] != "SUCCEEDED":
            states.redrive_execution(executionArn=each)
    _ended(states, stopper.run_arn)
    states.redrive_execution(executionArn=stopper.run_arn)
    found = _ended(states, stopper.run_arn)
    return Redriven(
        status=found["status"], error=str(found.get("error", "")), adopted=_adopted(states, stopper.run_arn)
    )


def _ended(states: Any, arn: str) -> Mapping[str, Any]:
    pause = Pauses(POLL_S, within_s=WAIT_S)
    while (found := states.describe_execution(executionArn=arn))["status"] in ACTIVE:
        if not pause():
            raise CrossoverError(f"{arn}: still {found['status']} after {WAIT_S / 60:.0f} minutes")
    return dict(found)


def _adopted(states: Any, arn: str) -> bool:
    pages = states.get_paginator("get_execution_history").paginate(executionArn=arn, includeExecutionData=False)
    entered = (event.get("stateEnteredEventDetails", {}).get("name", "") for page in pages for event in page["events"])
    return any(name.startswith(ADOPTING) for name in entered)
