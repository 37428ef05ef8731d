"""Lambda: environments that start cold, stay warm, work on one invocation at a time, and end at its time-out.

Source: AWS Lambda Developer Guide, "Understanding the Lambda execution environment lifecycle", "Error handling". What its caller is told of
a failure is worded as crossover/local/lambda_runtime words it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from crossover import runtime
from crossover.errors import CrossoverError
from crossover.stores.clients import Event
from crossover.workflow import Step
from crossover.workflow.context import Resources
from tests.chaos.world.kernel import Kernel, Process, Task
from tests.chaos.world.machines import Failed


@dataclass(frozen=True, kw_only=True)
class VirtualFunction:
    """One deployed Lambda function. `cold_s`: function that returns the seconds of a cold start."""

    step: Step
    memory_mb: int
    timeout_s: float
    cold_s: Callable[[], float]


@dataclass
class VirtualEnvironment:
    """One execution environment of a function. `used_s`: time at which its last invocation ended."""

    function: VirtualFunction
    process: Process
    resources: Resources
    used_s: float = -inf


@dataclass(frozen=True)
class Delivery:
    """Delivery of an invocation to its function: the delay in seconds, and the delays of further deliveries of the same event, because
    Lambda delivers at least once.
    """

    delay_s: float = 0.0
    again_s: tuple[float, ...] = ()  # further deliveries, for whose answers nobody waits


@dataclass
class LambdaContext:
    """The context object that a handler gets with its invocation."""

    kernel: Kernel
    deadline_s: float
    memory_limit_in_mb: int
    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the invocation times out."""
        return int(1_000 * (self.deadline_s - self.kernel.now_s))


def at_once(function: str, event: Mapping[str, Any]) -> Delivery:
    """Return a delivery without delays or repetitions."""
    return Delivery()


@dataclass
class VirtualFunctions:
    """The Lambda service. `resources_of`: function that returns what a new environment creates at its start; `delivered`: function that
    decides how an invocation is delivered, or raises Failed if it is throttled.
    """

    kernel: Kernel
    functions: Mapping[str, VirtualFunction]
    resources_of: Callable[[Process], Resources]
    invoke_s: Callable[[], float]
    keep_warm_s: float
    delivered: Callable[[str, Mapping[str, Any]], Delivery] = at_once
    environments: list[VirtualEnvironment] = field(default_factory=list)
    under_way: int = 0
    invocations: int = 0
    crashes: list[BaseException] = field(default_factory=list)  # what no step raises on purpose
    timed_out: set[str] = field(default_factory=set)  # processes
    cut_off: list[tuple[str, str]] = field(default_factory=list)  # of these: role and name of those that waited
    _idle: dict[str, list[VirtualEnvironment]] = field(default_factory=dict)

    def invoke(self, name: str, event: dict[str, Any]) -> Event:
        """Invoke a function, wait in the calling task for its end, and return its result. If the calling task is stopped, the function
        continues. Raises Failed.
        """
        delivery = self.delivered(name, event)
        for delay_s in delivery.again_s:
            self._begin(name, event, delay_s)
        invocation = self._begin(name, event, delivery.delay_s)
        if not invocation.over:
            self.kernel.wait(invocation.ended)
        answer: Any = invocation.result
        if isinstance(answer, Failed):
            raise answer
        return {**answer}

    def _begin(self, name: str, event: dict[str, Any], delay_s: float) -> Task:
        """Start an invocation after a delay, as a task, and return the task."""
        self.under_way += 1
        service = Process(self.kernel, f"lambda {name}", of_the_world=True)
        return self.kernel.spawn(self._invocation, name, dict(event), delay_s, process=service, name=name)

    def _invocation(self, name: str, event: Event, delay_s: float) -> Event | Failed:
        """Run one invocation and return the handler's result, or the Failed that ended it."""
        try:
            self.kernel.sleep(delay_s + self.invoke_s())
            return self._run(self._warm(name) or self._cold(name), event)
        except Failed as failed:
            return failed
        finally:
            self.under_way -= 1

    def _warm(self, name: str) -> VirtualEnvironment | None:
        """Return the idle environment of the function that was used last, thawed; None if there is none. Environments that are no longer
        kept warm are killed.
        """
        idle = self._idle.get(name, [])
        while idle:
            found = idle.pop()
            if found.process.alive and self.kernel.now_s - found.used_s < self.keep_warm_s:
                found.process.thaw()
                return found
            found.process.kill()
        return None

    def _cold(self, name: str) -> VirtualEnvironment:
        """Start a new environment of the function, which takes the time of a cold start, and return it."""
        function = self.functions[name]
        self.kernel.sleep(function.cold_s())
        process = Process(self.kernel, f"{name}/{len(self.environments) + 1}")
        found = VirtualEnvironment(function, process, self.resources_of(process))
        self.environments.append(found)
        return found

    def _run(self, environment: VirtualEnvironment, event: Event) -> Event:
        """Run the handler in the environment and return its result. Raises Failed if it raises, is killed, or exceeds its timeout. Unless
        its process has ended, the environment is frozen and idle afterwards.
        """
        kernel, function, process = self.kernel, environment.function, environment.process
        self.invocations += 1
        request_id = runtime.identifier()
        context = LambdaContext(kernel, kernel.now_s + function.timeout_s, function.memory_mb, request_id)
        process.role = f"{function.step.name} {event['worker']}"
        process.deadline_s, process.longest_s = context.deadline_s if function.step.waits else inf, 0.0
        task = kernel.spawn(
            function.step.invoke, environment.resources, event, context, process=process, name=function.step.name
        )
        if not kernel.wait(task.ended, function.timeout_s):
            process.kill()
            self.timed_out.add(process.name)
            # Behind a gradient of unusual length there may be no time left to leave.
            if process.computes_until_s < context.deadline_s - 0.1 * function.timeout_s and function.step.waits:
                self.cut_off.append((process.role, process.name))
            words = f"RequestId: {request_id} Error: Task timed out after {function.timeout_s:.2f} seconds"
            raise _failed("Sandbox.Timedout", words)
        if not process.alive:
            words = f"RequestId: {request_id} Error: Runtime exited with error: signal: killed"
            raise _failed("Runtime.ExitError", words)
        environment.used_s = kernel.now_s
        process.freeze(inf)  # between two invocations no task of it runs
        self._idle.setdefault(function.step.name, []).append(environment)
        if task.failure is not None:
            if not isinstance(task.failure, CrossoverError):
                self.crashes.append(task.failure)
            raise _failed(type(task.failure).__name__, str(task.failure))
        result: Any = task.result
        return {**result}


def _failed(kind: str, message: str) -> Failed:
    """Return a Failed with Lambda's JSON description of an error."""
    return Failed(kind, json.dumps({"errorType": kind, "errorMessage": message}))
