"""What a generated state machine may use, each checked on the interpreter that runs it locally; and the seams that mend it.

The expectations are the AWS Step Functions Developer Guide's.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches import step_functions
from tests.local.parts import HANDLERS, ROLE, eventually, zipped

Run = Callable[..., dict[str, Any]]
FUNCTIONS = ("echo", "fail", "sometimes", "sleep")


@pytest.fixture(scope="module")
def functions(cloud: LocalCloud) -> dict[str, str]:
    """Create the Lambda functions of HANDLERS and return their ARNs by handler."""
    client = cloud.session().client("lambda")
    code = {"ZipFile": zipped(handlers=HANDLERS)}
    return {
        name: client.create_function(
            FunctionName=f"sf-{name}",
            Runtime="python3.13",
            Role=ROLE,
            Handler=f"handlers.{name}",
            Code=code,
            Timeout=2 if name == "sleep" else 60,
            Tags={"crossover:waits": "true"},
        )["FunctionArn"]
        for name in FUNCTIONS
    }


_numbers = itertools.count()


@pytest.fixture(scope="module")
def machine(cloud: LocalCloud) -> Callable[[dict[str, Any]], str]:
    """Return a function that creates a state machine and returns its ARN."""
    states = cloud.session().client("stepfunctions")

    def make(definition: dict[str, Any]) -> str:
        """Create a state machine and return its ARN."""
        name = f"machine-{next(_numbers)}"
        arn = states.create_state_machine(name=name, definition=json.dumps(definition), roleArn=ROLE)["stateMachineArn"]
        return str(arn)

    return make


@pytest.fixture(scope="module")
def run(cloud: LocalCloud, machine: Callable[[dict[str, Any]], str]) -> Run:
    """Return a function that executes a definition, or the machine of an ARN, to its end and returns how it ended."""
    states = cloud.session().client("stepfunctions")

    def execute(definition: dict[str, Any] | str, event: Any = None, *, name: str | None = None) -> dict[str, Any]:
        """Execute a definition, or the machine of an ARN, to its end. Return the answer of DescribeExecution with the output decoded from
        JSON, None if it has none.
        """
        arn = definition if isinstance(definition, str) else machine(definition)
        execution = states.start_execution(
            stateMachineArn=arn, name=name or f"e-{next(_numbers)}", input=json.dumps({} if event is None else event)
        )["executionArn"]
        described: dict[str, Any] = {}

        def ended() -> bool:
            """Describe the execution, and return whether it has ended."""
            described.update(states.describe_execution(executionArn=execution))
            return bool(described["status"] != "RUNNING")

        eventually(ended, what="execution ended")
        return {**described, "output": json.loads(described.get("output", "null"))}

    return execute


def one(state: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of a state machine that has this state only, as its last one."""
    return {"StartAt": "only", "States": {"only": {**state, "End": True}}}


def output(described: dict[str, Any]) -> Any:
    """Return the output of a described execution; fail if it did not succeed."""
    assert described["status"] == "SUCCEEDED", described
    return described["output"]


def task(arn: str, **more: Any) -> dict[str, Any]:
    """Return a task state for the resource; `more` sets further fields."""
    return {"Type": "Task", "Resource": arn, **more}


def test_waits_are_measured_in_fractions(cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for 1 s on a clock that passes half as fast as the waits ask for: the interpreter waits 0.5 s at a time, and at last only for
    the rest. It polls because moto's event does not wake a waiter that has polled and does not wait yet.
    """
    from moto.stepfunctions.parser.asl.component.state.wait.wait_function.seconds import Seconds

    waits: list[float] = []
    event = SimpleNamespace(wait=lambda seconds: waits.append(seconds))
    environment: Any = SimpleNamespace(program_state_event=event, is_running=lambda: len(waits) < 4)
    monkeypatch.setattr(step_functions, "time", SimpleNamespace(monotonic=lambda: sum(waits) / 2))
    Seconds(1)._wait_interval(environment, 1)
    assert waits == [0.5, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("mode", ["INLINE", "DISTRIBUTED"])
def test_a_failing_iteration_fails_the_map(run: Run, functions: dict[str, str], mode: str) -> None:
    """Run a Map whose iterations fail: the execution fails, with the iteration's error or, if it is distributed, with that of the Map."""
    config = {"Mode": mode, **({"ExecutionType": "STANDARD"} if mode == "DISTRIBUTED" else {})}
    state = {
        "Type": "Map",
        "ItemsPath": "$.items",
        "ItemProcessor": {"ProcessorConfig": config, **one(task(functions["fail"]))},
    }
    described = run(one(state), {"items": [1, 2]})
    assert described["status"] == "FAILED"
    assert described["error"] == {"INLINE": "ValueError", "DISTRIBUTED": "States.ExceedToleratedFailureThreshold"}[mode]
    assert "no such luck" in described["cause"]


@pytest.mark.parametrize("mode", ["INLINE", "DISTRIBUTED"])
def test_a_failing_map_is_caught(run: Run, functions: dict[str, str], mode: str) -> None:
    """Run a failing Map with a Catch: the execution succeeds, and the caught cause is the iteration's."""
    config = {"Mode": mode, **({"ExecutionType": "STANDARD"} if mode == "DISTRIBUTED" else {})}
    definition = {
        "StartAt": "map",
        "States": {
            "map": {
                "Type": "Map",
                "ItemsPath": "$.items",
                "ItemProcessor": {"ProcessorConfig": config, **one(task(functions["fail"]))},
                "Catch": [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure", "Next": "caught"}],
                "End": True,
            },
            "caught": {"Type": "Pass", "End": True},
        },
    }
    assert "no such luck" in output(run(definition, {"items": [1, 2]}))["failure"]["Cause"]


def make_waits_last(monkeypatch: pytest.MonkeyPatch, until: Callable[[], object]) -> None:
    """Make each Wait state end when `until` returns, whatever its seconds."""
    from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import WaitFunction

    monkeypatch.setattr(WaitFunction, "_wait_interval", lambda self, env, wait_seconds: until())


def test_parallel_branches_run_side_by_side(
    cloud: LocalCloud, run: Run, functions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a Parallel state of two waits and a function: both waits begin before either ends, and the results are dropped."""
    both_wait = threading.Barrier(2, timeout=20)
    make_waits_last(monkeypatch, both_wait.wait)
    branches = [one({"Type": "Wait", "Seconds": 1}), one({"Type": "Wait", "Seconds": 1}), one(task(functions["echo"]))]
    described = run(one({"Type": "Parallel", "Branches": branches, "ResultPath": None}), {"x": 1})
    assert output(described) == {"x": 1}
    states = cloud.session().client("stepfunctions")
    history = states.get_execution_history(executionArn=described["executionArn"])["events"]
    kinds = [event["type"] for event in history if event["type"].startswith("WaitState")]
    assert kinds == ["WaitStateEntered"] * 2 + ["WaitStateExited"] * 2


def test_a_definition_is_parsed_once(run: Run, machine: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one state machine twice: its definition is parsed once."""
    import moto.stepfunctions.parser.asl.parse.asl_parser as asl_parser

    parser: Any = asl_parser

    parses: list[Any] = []
    preprocessor = parser.Preprocessor

    def counting() -> Any:
        """Make a parser's preprocessor, and note it."""
        parses.append(preprocessor())
        return parses[-1]

    monkeypatch.setattr(parser, "Preprocessor", counting)
    arn = machine(one({"Type": "Pass", "Comment": "parsed once"}))
    for _ in range(2):
        assert output(run(arn, {"x": 1})) == {"x": 1}
    assert len(parses) == 1


def test_a_path_is_parsed_once(run: Run, functions: dict[str, str]) -> None:
    """Use one JSON path in two executions: it is parsed once."""
    from moto.stepfunctions.parser.asl.utils import json_path

    paths: Any = json_path
    asking = one(task(functions["echo"], Parameters={"parsed.$": "$.parsed_once"}))
    for parses in (1, 0):
        before = paths.parse.cache_info().misses
        assert output(run(asking, {"parsed_once": 1}))["parsed"] == 1
        assert paths.parse.cache_info().misses - before >= parses
    assert paths.parse.cache_info().misses == before


@pytest.mark.slow
@pytest.mark.parametrize("resource", ["plain", "invoke"])
def test_a_time_out_has_a_name_that_retry_and_catch_see(
    run: Run, functions: dict[str, str], tmp_path: Path, resource: str
) -> None:
    """Run a task whose function exceeds its timeout: a Catch of Sandbox.Timedout applies. `resource`: form of the task."""
    arn = functions["sleep"]
    parameters = {"FunctionName": arn, "Payload.$": "$"}
    state = task(arn) if resource == "plain" else task("arn:aws:states:::lambda:invoke", Parameters=parameters)
    definition = {
        "StartAt": "task",
        "States": {
            "task": {**state, "Catch": [{"ErrorEquals": ["Sandbox.Timedout"], "Next": "caught"}], "End": True},
            "caught": {"Type": "Pass", "End": True},
        },
    }
    caught = output(run(definition, {"file": str(tmp_path / "file")}))
    assert caught["Error"] == "Sandbox.Timedout"
    assert "Task timed out after 2.00 seconds" in caught["Cause"]


@pytest.mark.parametrize("resource", ["plain", "invoke"])
def test_throttling_has_a_name(
    run: Run, functions: dict[str, str], cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch, resource: str
) -> None:
    """Run a task while Lambda refuses invocations: its error is Lambda.TooManyRequestsException. `resource`: form of the task."""
    monkeypatch.setattr(cloud.lambdas._concurrency, "acquire", lambda *, blocking: False)
    arn = functions["echo"]
    parameters = {"FunctionName": arn, "Payload.$": "$"}
    state = task(arn) if resource == "plain" else task("arn:aws:states:::lambda:invoke", Parameters=parameters)
    assert run(one(state))["error"] == "Lambda.TooManyRequestsException"


# --- child executions -----------------------------------------------------------------------------------------------------


def build_child_state(arn: str, *, sync: str = ".sync:2", **more: Any) -> dict[str, Any]:
    """Return a state that starts an execution of the machine at `arn`. `sync`: ending of the integration's name, by default the one that
    waits for the result.
    """
    parameters = {"StateMachineArn": arn, "Name.$": "$.child", "Input": {"x.$": "$.x"}}
    return task(f"arn:aws:states:::states:startExecution{sync}", Parameters=parameters, **more)


def test_a_child_execution(run: Run, machine: Callable[..., str], functions: dict[str, str]) -> None:
    """Start a child by each form of startExecution: the answer has the service's fields, with the output as JSON, as text, or absent."""
    child = machine(one(task(functions["echo"], ResultSelector={"x.$": "$.x"})))
    result = output(run(one(build_child_state(child)), {"child": "child-a", "x": 5}))
    assert (result["Output"], result["Input"], result["Name"], result["Status"]) == (
        {"x": 5},
        {"x": 5},
        "child-a",
        "SUCCEEDED",
    )
    assert result["ExecutionArn"].endswith(":child-a")
    assert abs(result["StartDate"] - time.time()) < 60
    assert output(run(one(build_child_state(child, OutputPath="$.Output")), {"child": "child-b", "x": 6})) == {"x": 6}
    as_text = output(run(one(build_child_state(child, sync=".sync")), {"child": "child-c", "x": 7}))
    assert json.loads(as_text["Output"]) == {"x": 7}
    assert "ExecutionArn" in output(run(one(build_child_state(child, sync="")), {"child": "child-d", "x": 7}))


def test_a_failing_child_fails_its_parent(run: Run, machine: Callable[..., str], functions: dict[str, str]) -> None:
    """Start a child that fails: the parent fails with States.TaskFailed, and its cause has the child's error."""
    described = run(one(build_child_state(machine(one(task(functions["fail"]))))), {"child": "failing", "x": 1})
    assert (described["status"], described["error"]) == ("FAILED", "States.TaskFailed")
    assert json.loads(described["cause"])["Error"] == "ValueError"


def test_a_name_that_exists_is_an_error_that_can_be_caught(
    run: Run, machine: Callable[..., str], functions: dict[str, str]
) -> None:
    """Start a child under the name of an ended execution: the error can be caught, and the ended execution described."""
    child = machine(one({"Type": "Pass"}))
    already = {"ErrorEquals": ["StepFunctions.ExecutionAlreadyExistsException"], "ResultPath": None, "Next": "describe"}
    describe = task(
        "arn:aws:states:::aws-sdk:sfn:describeExecution",
        Parameters={"ExecutionArn.$": "States.Format('{}:{}', $.prefix, $.child)"},
        ResultSelector={"status.$": "$.Status", "output.$": "$.Output"},
        ResultPath="$.adopted",
    )
    definition = {
        "StartAt": "start",
        "States": {
            "start": build_child_state(child, OutputPath="$.Output", Catch=[already], End=True),
            "describe": {**describe, "End": True},
        },
    }
    event = {"child": "same", "x": 1, "prefix": child.replace(":stateMachine:", ":execution:")}
    assert output(run(definition, event)) == {"x": 1}
    adopted = output(run(definition, event))["adopted"]
    assert (adopted["status"], json.loads(adopted["output"])) == ("SUCCEEDED", {"x": 1})


def test_a_running_child_of_the_same_name_and_input_is_joined(
    run: Run, machine: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start a child twice under one name with the same input while it runs: both iterations of the Map get the result of one execution."""
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend

    starts, both_started, start = list[str | None](), threading.Event(), StepFunctionsParserBackend.start_execution

    def counted(self: Any, state_machine_arn: str, name: str | None = None, *rest: Any, **named: Any) -> Any:
        """Start an execution, note its name, and set `both_started` when the shared one was asked for twice."""
        try:
            return start(self, state_machine_arn, name, *rest, **named)
        finally:
            starts.append(name)
            if starts.count("shared") == 2:
                both_started.set()

    monkeypatch.setattr(StepFunctionsParserBackend, "start_execution", counted)
    make_waits_last(monkeypatch, lambda: both_started.wait(20))
    child = machine(one({"Type": "Wait", "Seconds": 1}))
    parent = {
        "Type": "Map",
        "ItemsPath": "$.items",
        "ItemSelector": {"child": "shared", "x": 1},
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, **one(build_child_state(child))},
    }
    results = output(run(one(parent), {"items": [1, 2]}))
    assert results[0]["ExecutionArn"] == results[1]["ExecutionArn"]


def test_two_starts_of_one_name_at_once_are_one_execution(
    cloud: LocalCloud, machine: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start two executions of one name at the same time: both requests get the same execution."""
    from moto.stepfunctions.parser.backend.execution import Execution

    states, arn = cloud.session().client("stepfunctions"), machine(one({"Type": "Wait", "Seconds": 1}))
    found: list[str] = []
    both_started = threading.Event()
    make_waits_last(monkeypatch, lambda: both_started.wait(60))

    def start() -> None:
        """Start the execution, and note its ARN."""
        found.append(states.start_execution(stateMachineArn=arn, name="at-once", input="{}")["executionArn"])

    second, unmeddled = threading.Thread(target=start), Execution.start

    def meet(self: Execution) -> None:
        """Start the second execution between the first one's look for a namesake and its beginning, wait half a second at most, and go
        on.
        """
        if second.ident is None:
            second.start()
            second.join(0.5)
        unmeddled(self)

    monkeypatch.setattr(Execution, "start", meet)
    start()
    second.join()
    both_started.set()
    assert len(found) == 2 and len(set(found)) == 1


@pytest.mark.slow
def test_a_child_that_takes_too_long(run: Run, machine: Callable[..., str]) -> None:
    """Start a child that lasts longer than the task's timeout: the parent fails with States.Timeout."""
    child = machine(one({"Type": "Wait", "Seconds": 30}))
    described = run(one(build_child_state(child, TimeoutSeconds=1)), {"child": "slow", "x": 1})
    assert (described["status"], described["error"]) == ("FAILED", "States.Timeout")


def test_stopping_an_execution_ends_its_wait(cloud: LocalCloud, machine: Callable[..., str]) -> None:
    """Stop an execution in a Wait state: it ends as ABORTED without waiting."""
    states = cloud.session().client("stepfunctions")
    arn = states.start_execution(stateMachineArn=machine(one({"Type": "Wait", "Seconds": 60})), name="stopped")[
        "executionArn"
    ]
    eventually(
        lambda: any(e["type"] == "WaitStateEntered" for e in states.get_execution_history(executionArn=arn)["events"]),
        what="it waits",
    )
    states.stop_execution(executionArn=arn)
    eventually(lambda: states.describe_execution(executionArn=arn)["status"] == "ABORTED", what="aborted")


def test_executions_without_a_name_do_not_collide(cloud: LocalCloud, machine: Callable[..., str]) -> None:
    """Start two executions without a name: they have different ARNs."""
    states = cloud.session().client("stepfunctions")
    arn = machine(one({"Type": "Pass"}))
    first, second = (states.start_execution(stateMachineArn=arn)["executionArn"] for _ in range(2))
    assert first != second


def test_a_client_may_not_reuse_a_name_either(cloud: LocalCloud, run: Run, machine: Callable[..., str]) -> None:
    """Start an execution twice under one name by the API: the second start raises ExecutionAlreadyExists."""
    from botocore.exceptions import ClientError

    arn = machine(one({"Type": "Pass"}))
    run(arn, name="once")
    with pytest.raises(ClientError, match="ExecutionAlreadyExists"):
        run(arn, name="once")


def test_more_than_the_payload_limit_fails(run: Run, functions: dict[str, str]) -> None:
    """Let a state return more than the payload limit: the execution fails."""
    grow = {"Type": "Pass", "Parameters": {"a.$": "States.Format('{}{}', $.a, $.a)"}}
    assert run(one(grow), {"a": "x" * 140_000})["status"] == "FAILED"


def test_two_iterations_that_fail_at_once_count_their_attempts_under_one_key(
    cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second iteration that asks while the first one's key is being made, as two threads may, gets the same key."""
    from moto.stepfunctions.parser.asl.component import eval_component

    class Attempts(eval_component.EvalComponent):
        """A component whose attempts are counted; it is never evaluated."""

        def _eval_body(self, env: Any) -> None:
            """Raise NotImplementedError: it is never evaluated."""
            raise NotImplementedError

    attempts, keys = Attempts(), []

    def make_key() -> str:
        """Return a new heap key; the first call asks for the heap key once more, as a second iteration would."""
        keys.append("")
        if len(keys) == 1:
            keys[0] = attempts.heap_key
        return f"key {len(keys)} of {attempts!r}"

    monkeypatch.setattr(eval_component, "long_uid", make_key)
    assert attempts.heap_key == (keys[0] if keys else attempts.heap_key)
