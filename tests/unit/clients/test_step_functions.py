"""What an execution says of its failure, for people: where, what, and what helps."""

import json
from types import SimpleNamespace

import pytest

from crossover.errors import RunFailed
from crossover.running.deployed import StateMachineExecution
from crossover.stores.deployed_clients import describe_cause

WHERE = "compute_gradients failed, worker 1, epoch 2, round 3"


def cause(kind: str, message: str) -> str:
    """Return the cause that the state machine's Fail state writes: the step's words, then Lambda's answer as JSON."""
    return f"{WHERE}: {kind}: " + json.dumps({"errorType": kind, "errorMessage": message})


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("Runtime.OutOfMemory", "functions.memory_mb.compute_gradients"),
        ("Runtime.ExitError", "functions.memory_mb.compute_gradients"),
        ("Sandbox.Timedout", "functions.timeout_s"),
    ],
)
def test_what_lambda_ends_a_function_for_comes_with_advice(kind: str, advice: str) -> None:
    """A cause of Lambda's own, such as lack of memory, is described with `advice`."""
    told = describe_cause("StepFailed", cause(kind, "signal: killed"))
    assert told.startswith(f"{WHERE}: {kind}: signal: killed; ") and advice in told


def test_what_the_code_says_stays_as_it_is() -> None:
    """An error of the step's code is described by its step, kind and message alone."""
    told = describe_cause("StepFailed", cause("Refused", "the loss is nan"))
    assert told == f"{WHERE}: Refused: the loss is nan"


def test_the_innermost_of_nested_causes_is_told() -> None:
    """A cause that contains another one is described by the inner one."""
    nested = "worker failed: " + json.dumps({"Cause": cause("Missing", "no such key")})
    assert describe_cause("StepFailed", nested) == f"{WHERE}: Missing: no such key"


def test_a_cause_without_a_step_and_one_without_words() -> None:
    """A cause without a step gets its advice, one without words is its error's name, and plain text stays."""
    lone = json.dumps({"errorType": "Runtime.OutOfMemory", "errorMessage": "signal: killed"})
    assert "functions.memory_mb.default" in describe_cause("States.TaskFailed", lone)
    assert describe_cause("States.Timeout", "") == "States.Timeout"
    assert describe_cause("StepFailed", "stopped by the user") == "stopped by the user"


def test_an_execution_that_ran_out_of_time_names_the_field_that_bounds_it() -> None:
    """`has_ended` of a timed-out execution raises RunFailed with the field that sets the timeout."""
    answer = {"status": "TIMED_OUT"}
    execution = StateMachineExecution(SimpleNamespace(describe_execution=lambda executionArn: answer), "arn")
    with pytest.raises(RunFailed, match=r"lifetime\.maximum_run_hours"):
        execution.has_ended()
