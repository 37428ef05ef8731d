"""An execution as several requests see it at once: each test holds moto where another thread could come between."""

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from moto.stepfunctions.parser.asl.component.state.exec.state_parallel.branch_worker import BranchWorker
from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import WaitFunction
from moto.stepfunctions.parser.asl.eval.environment import Environment
from moto.stepfunctions.parser.backend.execution import Execution
from moto.stepfunctions.parser.backend.execution_worker import ExecutionWorker

from crossover.local.cloud import LocalCloud
from tests.local.parts import ROLE, eventually

HELD_S = 0.3  # beside what takes milliseconds
WAIT = {"Type": "Wait", "Seconds": 60}
_numbers = itertools.count()


class Held:
    """A meeting point: `meet()` sets `met`, then waits for `go`, HELD_S seconds at most."""

    def __init__(self) -> None:
        """Start with neither event set."""
        self.met, self.go = threading.Event(), threading.Event()

    def meet(self) -> None:
        """Set `met` and wait for `go`, HELD_S seconds at most."""
        self.met.set()
        self.go.wait(HELD_S)


@pytest.fixture
def states(cloud: LocalCloud) -> Any:
    """Return the local cloud's Step Functions client."""
    return cloud.session().client("stepfunctions")


@pytest.fixture
def started(states: Any) -> Callable[[dict[str, Any]], str]:
    """Return a function that starts an execution of a machine with one state and returns its ARN."""

    def start(state: dict[str, Any]) -> str:
        """Start an execution of a machine that has this state only, and return its ARN."""
        arn = states.create_state_machine(
            name=f"executions-{next(_numbers)}", definition=json.dumps(one(state)), roleArn=ROLE
        )["stateMachineArn"]
        return str(states.start_execution(stateMachineArn=arn)["executionArn"])

    return start


def one(state: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a state machine that has this state only, as its last one."""
    return {"StartAt": "only", "States": {"only": state if state["Type"] == "Fail" else {**state, "End": True}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("output", {"Type": "Pass"}, {"status": "SUCCEEDED", "output": "{}"}),
        ("error", {"Type": "Fail", "Error": "E", "Cause": "c"}, {"status": "FAILED", "error": "E", "cause": "c"}),
    ],
)
def test_status_and_result_are_seen_together(
    states: Any, started: Any, monkeypatch: pytest.MonkeyPatch, name: str, state: Any, expected: dict[str, str]
) -> None:
    """Hold moto while it stores the result: an execution that is no longer described as running has its result, `expected`. `name`: the
    attribute of the result.
    """
    held = Held()

    def put(execution: Execution, value: Any) -> None:
        """Set the execution's value after the meeting, unless it is None."""
        if value is not None:
            held.meet()
        execution.__dict__[f"_{name}"] = value

    slot = property(lambda execution: execution.__dict__.get(f"_{name}"), put)
    monkeypatch.setattr(Execution, name, slot, raising=False)
    arn = started(state)
    assert held.met.wait(30)
    eventually(lambda: states.describe_execution(executionArn=arn)["status"] != "RUNNING", what="it ended")
    described = states.describe_execution(executionArn=arn)
    assert {key: described.get(key) for key in expected} == expected


def test_a_stop_before_the_first_state_is_heeded(states: Any, started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop an execution before its first state: it ends as ABORTED."""
    held, begin = Held(), ExecutionWorker._get_evaluation_environment

    def late(worker: ExecutionWorker) -> Environment:
        """Begin the execution after the meeting."""
        held.meet()
        return begin(worker)

    monkeypatch.setattr(ExecutionWorker, "_get_evaluation_environment", late)
    arn = started(WAIT)
    assert held.met.wait(30)
    states.stop_execution(executionArn=arn)
    eventually(lambda: states.describe_execution(executionArn=arn)["status"] == "ABORTED", what="it is stopped")


def test_a_stop_is_told_while_a_function_is_still_at_work(
    states: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop an execution in a state that does not end: its status is ABORTED at once."""
    begun, go = threading.Event(), threading.Event()

    def works(*_: Any, **__: Any) -> None:
        """Note that the state has begun, and wait until the test is through."""
        begun.set()
        go.wait(60)

    monkeypatch.setattr(WaitFunction, "_wait_interval", works)  # a state that does not look up
    arn = started(WAIT)
    assert begun.wait(30)
    states.stop_execution(executionArn=arn)
    status = states.describe_execution(executionArn=arn)["status"]
    go.set()
    assert status == "ABORTED"


def test_a_list_beside_a_start_knows_every_status(states: Any, started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """List executions while one is being started: the list succeeds, and contains both afterwards."""
    machine = states.describe_execution(executionArn=started({"Type": "Pass"}))["stateMachineArn"]
    held, make = Held(), Execution._get_start_execution_worker

    def late(execution: Execution) -> ExecutionWorker:
        """Make the execution's worker after the meeting."""
        held.meet()
        return make(execution)

    monkeypatch.setattr(Execution, "_get_start_execution_worker", late)
    second = threading.Thread(target=states.start_execution, kwargs={"stateMachineArn": machine})
    second.start()
    assert held.met.wait(30)
    states.list_executions(stateMachineArn=machine, statusFilter="RUNNING")
    second.join()
    assert len(states.list_executions(stateMachineArn=machine)["executions"]) == 2


def test_a_branch_that_begins_after_anothers_failure_is_through(
    states: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let one branch of a Parallel state begin when the other has failed: the execution ends as FAILED instead of waiting forever."""
    held, routine = Held(), BranchWorker._thread_routine

    def late(worker: BranchWorker) -> None:
        """Run a branch; the late one begins when the other has failed."""
        if "late" in worker._program.states.states:
            eventually(lambda: not worker.env.is_running(), what="the other has failed")
            held.met.set()
        routine(worker)

    monkeypatch.setattr(BranchWorker, "_thread_routine", late)
    fails = one({"Type": "Fail", "Error": "E", "Cause": "c"})
    passes = {"StartAt": "late", "States": {"late": {"Type": "Pass", "End": True}}}
    arn = started({"Type": "Parallel", "Branches": [fails, passes]})
    assert held.met.wait(30)
    eventually(lambda: states.describe_execution(executionArn=arn)["status"] == "FAILED", what="it failed")
