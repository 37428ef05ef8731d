"""Step Functions: the generated definitions, interpreted state by state, with their own retries, catches, time-outs and adoption.

Only what crossover/asl writes is understood; anything else is refused where it is met, so that a definition is never half obeyed. Source of
the semantics: Amazon States Language (states-language.net), AWS Step Functions Developer Guide, "Error handling", "startExecution.sync:2".
"""

import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from types import SimpleNamespace
from typing import Any

from crossover.stores.deployed_clients import StepFunctions
from crossover.workflow.state_machines import StateDefinition
from tests.chaos.world.kernel import Kernel, Process, Signal, WorldFault
from tests.chaos.world.paths import NoSuchPath, compile_path, fill_template
from tests.chaos.world.process_runtime import BEGAN_S
from tests.chaos.world.requests import ServerRefusal

VirtualInvoke = Callable[[str, dict[str, Any]], dict[str, Any]]  # a function by its step's name; raises Failed
_LOST = "States.ExceedToleratedFailureThreshold"
_UNDERSTOOD = (
    "Type Comment Next End Resource Parameters Retry Catch ResultPath OutputPath TimeoutSeconds Result Seconds Choices Default Error "
    "CausePath Branches ItemsPath ItemSelector MaxConcurrency ItemProcessor ResultSelector Label"
)
_FIELDS = frozenset(_UNDERSTOOD.split())


class Failed(Exception):
    """An error with its name and cause, as Step Functions reports it. Raised in states, by functions, and by refused starts."""

    def __init__(self, error: str, cause: str = "") -> None:
        """Keep the error's name and its cause."""
        super().__init__(f"{error}: {cause}")
        self.error, self.cause = error, cause


@dataclass
class VirtualExecution:
    """One execution of a state machine. `visited`: the states that it entered, in order, with their input."""

    machine: str
    name: str
    event: dict[str, Any]
    process: Process
    status: str = "RUNNING"
    output: Any = None
    error: str = ""
    cause: str = ""
    ended: Signal = field(default_factory=Signal)
    visited: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def arn(self) -> str:
        """The execution's ARN, which is unique in the world."""
        return f"states:execution:{self.machine}:{self.name}"

    def end(self, status: str, *, output: Any = None, error: str = "", cause: str = "") -> None:
        """End the execution, unless it has ended; nothing in it continues."""
        if self.status == "RUNNING":
            self.status, self.output, self.error, self.cause = status, output, error, cause
            self.ended.set()
            self.process.kill()

    def stop(self) -> None:
        """Abort the execution. Functions that it has invoked continue."""
        self.end("ABORTED", cause="stopped")

    def described(self) -> dict[str, Any]:
        """Return the execution's description with the fields of DescribeExecution; output, error and cause only if there are such."""
        told = {"ExecutionArn": self.arn, "Name": self.name, "Status": self.status, "Input": json.dumps(self.event)}
        if self.status == "SUCCEEDED":
            return {**told, "Output": json.dumps(self.output)}
        return {
            **told,
            **({"Error": self.error} if self.error else {}),
            **({"Cause": self.cause} if self.cause else {}),
        }


class VirtualMachines:
    """The state machines of one deployment. `definitions`: by name, with the placeholders of crossover/asl; `invoke`: function that invokes
    a Lambda function.
    """

    def __init__(
        self,
        kernel: Kernel,
        definitions: Mapping[str, StateDefinition],
        invoke: VirtualInvoke,
        *,
        transition_s: Callable[[], float],
    ) -> None:
        """Start without executions. `transition_s`: returns the seconds from one state to the next."""
        self.kernel, self.invoke, self.transition_s = kernel, invoke, transition_s
        self.executions: dict[str, VirtualExecution] = {}
        self.starting: Callable[[str, str], None] = lambda machine, name: None  # may raise Failed: throttled
        self._definitions = definitions

    def start(self, machine: str, name: str, event: Mapping[str, Any]) -> VirtualExecution:
        """Start an execution, with its time limit, and return it. Raises Failed if an execution of that name exists, even an ended one, or
        if the start is throttled.
        """
        self.starting(machine, name)
        arn = f"states:execution:{machine}:{name}"
        if arn in self.executions:
            raise Failed("StepFunctions.ExecutionAlreadyExistsException", f"Execution Already Exists: '{arn}'")
        process = Process(self.kernel, f"machine {name}")
        found = self.executions[arn] = VirtualExecution(machine, name, dict(event), process)
        definition = self._definitions[machine]
        self.kernel.spawn(self._run, found, definition, process=process, name=machine)
        self.kernel.spawn(self._limit, found, float(definition["TimeoutSeconds"]), process=process, name="limit")
        return found

    def asked_to_start(self, machine: str, name: str, event: Mapping[str, Any]) -> VirtualExecution:
        """Start an execution as the API does, and return it; a running one of that name with the same input is returned instead. Raises
        ExecutionAlreadyExists, or ServerRefusal if the start is throttled.
        """
        there = self.executions.get(f"states:execution:{machine}:{name}")
        if there is not None and there.status == "RUNNING" and there.event == event:
            return there
        try:
            return self.start(machine, name, event)
        except Failed as failed:
            if "Throttling" in failed.error:
                raise ServerRefusal("ThrottlingException") from failed
            raise ExecutionAlreadyExists(failed.cause) from failed

    def wait(self, execution: VirtualExecution, within_s: float = inf) -> bool:
        """Let the calling task wait until the execution has ended, for at most `within_s` seconds. Return whether it has."""
        return execution.status != "RUNNING" or self.kernel.wait(execution.ended, within_s)

    def _run(self, execution: VirtualExecution, definition: StateDefinition) -> None:
        """Run an execution to its end, and record how it ended. An exception other than Failed becomes a WorldFault."""
        try:
            output = _Running(self, execution).block(definition, execution.event, {})
        except Failed as failed:
            execution.end("FAILED", error=failed.error, cause=failed.cause)
        except Exception as error:
            raise WorldFault(f"machine {execution.machine}: {error}") from error
        else:
            execution.end("SUCCEEDED", output=output)

    def _limit(self, execution: VirtualExecution, seconds: float) -> None:
        """End an execution as timed out after `seconds`."""
        self.kernel.sleep(seconds)
        execution.end("TIMED_OUT")


class MachinesOf(StepFunctions):
    """The Step Functions client of one simulated program. `asks`: function that carries a request to the service and its reply back, and
    may deliver it twice; `names`: the state machines.
    """

    def __init__(
        self, machines: VirtualMachines, asks: Callable[[str, Callable[[], Any]], Any], names: Sequence[str]
    ) -> None:
        """Make the client of the machines `names` in `machines`. `asks`: carries its requests."""
        super().__init__({f"CROSSOVER_MACHINE_{name.upper()}": f"states:stateMachine:{name}" for name in names})
        self._machines, self._asks = machines, asks
        self.exceptions = SimpleNamespace(ExecutionAlreadyExists=ExecutionAlreadyExists)

    @property
    def _client(self) -> Any:  # in the place of boto3's
        """This object in place of boto3's client."""
        return self

    def start_execution(self, stateMachineArn: str, name: str, input: str) -> None:  # as boto3 names them
        """Start an execution, as boto3's method of that name does."""
        machine, event = stateMachineArn.rpartition(":")[2], json.loads(input)
        self._asks("StartExecution", lambda: self._machines.asked_to_start(machine, name, event))

    def describe_execution(self, executionArn: str) -> dict[str, Any]:
        """Return the description of an execution, as boto3's method of that name does."""
        told = self._asks("DescribeExecution", lambda: self._machines.executions[executionArn].described())
        return {name[0].lower() + name[1:]: value for name, value in told.items()}


class ExecutionAlreadyExists(Exception):
    """The exception of that name that boto3's client raises if an execution with the name exists."""


@dataclass
class _Running:
    """An execution in progress, which interprets the definition state by state."""

    machines: VirtualMachines
    execution: VirtualExecution

    def block(self, block: StateDefinition, data: Any, context: Mapping[str, Any]) -> Any:
        """Run the states of a block from StartAt to its end, and return its output. `context`: fields that the block's iteration adds to
        the context object. Raises Failed if a state fails, ValueError for a state with unknown fields.
        """
        name: str | None = block["StartAt"]
        while name is not None:
            state = block["States"][name]
            if unknown := state.keys() - _FIELDS:
                raise ValueError(f"state {name!r}: the virtual world does not know {', '.join(sorted(unknown))}")
            self.machines.kernel.sleep(self.machines.transition_s())
            self.execution.visited.append((name, data))
            entered = datetime.fromtimestamp(BEGAN_S + self.machines.kernel.now_s, UTC)
            around = {
                **context,
                "Execution": {"Id": self.execution.arn},
                "State": {"EnteredTime": entered.isoformat().replace("+00:00", "Z")},
            }
            data, name = self._entered(state, data, around)
        return data

    def _entered(self, state: StateDefinition, data: Any, context: dict[str, Any]) -> tuple[Any, str | None]:
        """Run one state with its retries and catches. Return (its output, name of the next state or None). Raises Failed if no retry or
        catch applies.
        """
        kind = state["Type"]
        if kind == "Choice":
            return data, next((c["Next"] for c in state["Choices"] if _holds(c, data)), state["Default"])
        if kind == "Fail":
            raise Failed(state["Error"], str(compile_path(state["CausePath"])(data, context)))
        tried = [0] * len(state.get("Retry", []))
        while True:
            try:
                return self._output(state, data, self._result(state, data, context), context), state.get("Next")
            except Failed as failed:
                if (pause_s := self._retried(state, tried, failed.error)) is not None:
                    self.machines.kernel.sleep(pause_s)
                    continue
                for catch in state.get("Catch", []):
                    if _matches(catch["ErrorEquals"], failed.error):
                        told = {"Error": failed.error, "Cause": failed.cause}
                        return _placed(catch.get("ResultPath", "$"), data, told), catch["Next"]
                raise

    def _retried(self, state: StateDefinition, tried: list[int], error: str) -> float | None:
        """Return the seconds until the next try of a state; None if it is not retried. `tried`: number of tries so far by each Retry, in
        which a retry is counted.
        """
        for number, retry in enumerate(state.get("Retry", [])):
            if _matches(retry["ErrorEquals"], error):
                if tried[number] >= retry["MaxAttempts"]:
                    return None
                longest_s = retry["IntervalSeconds"] * retry["BackoffRate"] ** tried[number]
                tried[number] += 1
                assert retry["JitterStrategy"] == "FULL"
                return float(self.machines.kernel.chance.random() * min(longest_s, retry.get("MaxDelaySeconds", inf)))
        return None

    def _output(self, state: StateDefinition, data: Any, result: Any, context: Mapping[str, Any]) -> Any:
        """Return the output of a state, from its input and result, by its ResultSelector, ResultPath and OutputPath."""
        if "ResultSelector" in state:
            result = fill_template(state["ResultSelector"], result, context)
        whole = _placed(state.get("ResultPath", "$"), data, result)
        return compile_path(state["OutputPath"])(whole, context) if "OutputPath" in state else whole

    def _result(self, state: StateDefinition, data: Any, context: dict[str, Any]) -> Any:
        """Run a state once, and return its result. Raises Failed if it fails."""
        try:
            given = fill_template(state["Parameters"], data, context) if "Parameters" in state else data
        except NoSuchPath as error:
            raise Failed("States.ParameterPathFailure", str(error)) from error
        match state["Type"]:
            case "Pass":
                return state.get("Result", given)
            case "Wait":
                self.machines.kernel.sleep(state["Seconds"])
                return data
            case "Task":
                return self._task(state, given)
            case "Parallel":
                return self._side_by_side([(branch, data, context) for branch in state["Branches"]], at_once=0)
            case "Map":
                return self._map(state, data, context)
        raise ValueError(f"state type {state['Type']!r}: none that crossover/asl writes")

    def _map(self, state: StateDefinition, data: Any, context: dict[str, Any]) -> Any:
        """Run a Map state, and return the list of its branches' results. A Distributed Map fails with an error of its own if a branch
        fails.
        """
        calls = []
        for value in compile_path(state["ItemsPath"])(data, context):
            own = {**context, "Map": {"Item": {"Value": value}}}
            calls.append((state["ItemProcessor"], fill_template(state["ItemSelector"], data, own), own))
        try:
            return self._side_by_side(calls, at_once=state["MaxConcurrency"])
        except Failed as failed:
            if state["ItemProcessor"]["ProcessorConfig"]["Mode"] == "INLINE":
                raise
            cause = f"The specified tolerated failure threshold was exceeded. The first failure was {failed.error}: {failed.cause}"
            raise Failed(_LOST, cause) from failed

    def _side_by_side(
        self, calls: Sequence[tuple[StateDefinition, Any, Mapping[str, Any]]], *, at_once: int
    ) -> list[Any]:
        """Run blocks concurrently, at most `at_once` at a time (0: all), and return their results. If one fails, stop the others and raise
        its error.
        """
        kernel, news = self.machines.kernel, Signal()
        scope = Process(kernel, self.execution.process.name)
        results: dict[int, Any] = {}
        failures: list[BaseException] = []
        waiting = list(enumerate(calls))[::-1]

        def work() -> None:
            """Run branches one after another until none is left or one has failed."""
            while waiting and not failures:
                number, call = waiting.pop()
                try:
                    results[number] = self.block(*call)
                except Exception as error:
                    failures.append(error)
                news.set()

        try:
            for _ in range(at_once or len(calls)):
                kernel.spawn(work, process=scope, name=self.execution.machine)
            while len(results) < len(calls) and not failures:
                kernel.wait(news)
        finally:
            scope.kill()
        if failures:
            raise failures[0]
        return [results[number] for number in range(len(calls))]

    def _task(self, state: StateDefinition, given: dict[str, Any]) -> Any:
        """Run a Task state: invoke a function, describe an execution, or run a child execution to its end. Raises Failed."""
        resource: str = state["Resource"]
        if resource.startswith("${step_"):
            assert "TimeoutSeconds" not in state, "a function has its own time-out"
            return self.machines.invoke(resource.removeprefix("${step_").removesuffix("}"), given)
        if resource == "${call_sfn_describeExecution}":
            return self._describe(given["ExecutionArn"])
        assert resource == "${call_states_startExecution}", resource
        machine = given["StateMachineArn"].removeprefix("${machine_").removesuffix("}")
        child = self.machines.start(machine, given["Name"], given["Input"])
        try:
            if not self.machines.wait(child, float(state.get("TimeoutSeconds", inf))):
                raise Failed("States.Timeout")
        finally:
            child.stop()  # a child whose parent stops waiting is stopped with it
        told = child.described()
        if child.status != "SUCCEEDED":
            raise Failed("States.TaskFailed", json.dumps(told))
        return {**told, "Output": child.output}

    def _describe(self, named: str) -> dict[str, Any]:
        """Return the description of an execution, given by its placeholder. Raises Failed if it does not exist."""
        machine, _, name = named.removeprefix("${executions_").partition("}:")
        found = self.machines.executions.get(f"states:execution:{machine}:{name}")
        if found is None:
            raise Failed("Sfn.ExecutionDoesNotExistException", named)
        return found.described()


def _placed(path: str | None, data: Any, result: Any) -> Any:
    """Return `data` with the result placed as ResultPath says: None drops the result, `$` replaces the data, `$.name` adds a field."""
    if path is None:
        return data
    return result if path == "$" else {**data, path.removeprefix("$."): result}


def _matches(names: Sequence[str], error: str) -> bool:
    """Return whether a retry or catch for `names` applies to the error."""
    if error in names or "States.ALL" in names:
        return True
    return "States.TaskFailed" in names and error != "States.Timeout"


def _holds(rule: StateDefinition, data: Any) -> bool:
    """Return whether a rule of a Choice state holds for `data`. Raises ValueError for a comparison that crossover/asl does not use."""
    if "And" in rule:
        return all(_holds(each, data) for each in rule["And"])
    try:
        value = compile_path(rule["Variable"])(data, {})
    except NoSuchPath:
        return rule.get("IsPresent") is False
    for name, expected in rule.items():
        match name:
            case "BooleanEquals" | "StringEquals":
                if value != expected or type(value) is not type(expected):
                    return False
            case "StringMatches":
                if not isinstance(value, str) or not fnmatch.fnmatchcase(value, expected):
                    return False
            case "IsPresent":
                if not expected:
                    return False
            case "Variable" | "Next":
                continue
            case _:
                raise ValueError(f"a Choice by {name}: none that crossover/asl writes")
    return True
