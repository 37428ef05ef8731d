"""An architecture is a small tree of steps, written top to bottom in one file.

A **step** is one invocation: what is billed, retried and placed. The tree has two short interpreters: `execute` runs it in this process,
`state_machines.py` turns it into state machines. Functions, memory, grants and reports derive from the same tree.
"""

import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from crossover import runtime, user_code
from crossover.data.clients import Event
from crossover.data.keys import Keys
from crossover.errors import CrossoverError, Missing, StaleAttempt, Unavailable, UserError
from crossover.experiment import Experiment
from crossover.processes import run_in_threads
from crossover.runtime import STEP
from crossover.workflow.context import Context, Meter, Resources, process_resources

StepBody = Callable[[Context, Event], Mapping[str, Any] | None]
Uses = Literal["objects", "tensors", "bus", "machines"]

# A module that lies beside the code of a function that computes (cdk/packaging.py), and there alone: it imports torch and what computes by
# it. INIT has a whole processor, a step's first invocation the share that its memory buys; a snapshot holds what INIT has imported.
AT_START = "crossover.at_start"
_COMPUTES = importlib.util.find_spec(AT_START) is not None
DAY_S = 86_400
EVENT_LIMIT_BYTES = 1_024
REPEATED = Unavailable  # what a step is tried again for, in this process as by Step Functions: steps are repeatable
START: Event = {
    "run": "",  # the run's id
    "attempt": 0,  # grows when a run is resumed: execution names are reserved for 90 days
    "workers": 0,
    "minibatches": 0,  # of one worker in this round
    "worker": 0,
    "epoch": 0,
    "round": 0,  # synchronisations since the run began
    "minibatch": 0,  # within the round
    "synchronised": False,
    "epoch_finished": False,
    "finished": False,
    "since": "",  # when the innermost wait began (ISO 8601, UTC)
    "timeout_s": 0,  # of the innermost wait
}


def first_event(run: str, *, workers: int, attempt: int = 0) -> Event:
    """Return the event that a run's state machine starts with: the schema's defaults with the id `run`, the number of
    `workers` and the `attempt`, which is greater than 0 if the run is resumed.
    """
    return {**START, "run": run, "workers": workers, "attempt": attempt}


def check_event(event: Event) -> Event:
    """Return `event` unchanged after checking it: the fields of START, plain values, at most EVENT_LIMIT_BYTES.

    Raises AssertionError otherwise: a fault of the project.
    """
    assert event.keys() == START.keys(), f"event fields differ: {sorted(event.keys() ^ START.keys())}"
    assert all(isinstance(value, str | int | bool) for value in event.values()), f"only plain values travel: {event}"
    assert len(json.dumps(event)) <= EVENT_LIMIT_BYTES, f"event exceeds {EVENT_LIMIT_BYTES} bytes"
    return event


@dataclass(frozen=True)
class Step:
    """One invocation. The decorated object is the Lambda handler: `functions.spirt.average_in_database`."""

    name: str
    module: str
    body: StepBody
    torch: bool | Literal["unless_in_database"] = False
    uses: frozenset[Uses] = frozenset({"objects"})
    waits: bool = False  # may block on others: never queued behind its peers

    def __post_init__(self) -> None:
        if self.torch and _COMPUTES:
            importlib.import_module(AT_START)

    def needs_torch(self, experiment: Experiment) -> bool:
        """Return whether the function has the torch layer. `unless_in_database` means: not if the database does the arithmetic."""
        if self.torch == "unless_in_database":
            return experiment.database.compute != "in_database"
        return self.torch

    def run(self, ctx: Context, event: Event) -> Event:
        """Run the body, metered, and return the changed event. If an input is missing, a later attempt may have finished: the body is
        run again. Raises StaleAttempt if an input is missing then too.
        """
        ctx.keys = Keys(ctx.run, event["attempt"])
        theirs = f"{self.module}:{self.name}" if user_code.is_own_module(self.module) else ""
        with ctx.invocation(self.uses), Meter(self.name, ctx, event), user_code.blame("architecture", theirs):
            try:
                changes = self.body(ctx, event)
            except Missing:
                try:
                    changes = self.body(ctx, event)
                except Missing as gone:
                    raise StaleAttempt(f"{self.name}: {gone}, and the step's output is not there either") from gone
            return check_event({**event, **(changes or {})})

    def __call__(self, event: Event, lambda_context: Any) -> Event:
        return self.invoke(process_resources(), event, lambda_context)

    def invoke(self, resources: Resources, event: Event, lambda_context: Any) -> Event:
        """Run the step as Lambda invokes it, in a process with `resources`, and return the changed event.

        `event`: the state machine's input; `lambda_context`: Lambda's context object, which gives deadline, request id
        and memory.
        """
        with Context(
            resources,
            run=event["run"],
            deadline=runtime.time() + lambda_context.get_remaining_time_in_millis() / 1000,
            request_id=lambda_context.aws_request_id,
            memory_mb=int(lambda_context.memory_limit_in_mb),
        ) as ctx:
            return self.run(ctx, event)


def step(
    *,
    torch: bool | Literal["unless_in_database"] = False,
    uses: set[Uses] | None = None,
    waits: bool = False,
) -> Callable[[StepBody], Step]:
    """Return a decorator that makes a function `(ctx, event) -> changes | None` a Step of the function's name.

    `torch`: whether the function gets the layer with PyTorch; `unless_in_database`: not if the database computes.
    `uses`: services that the body may touch in addition to the object store; others are refused. `waits`: whether the
    step may block until other steps have run, so that it is never queued behind them.
    """

    def decorate(body: StepBody) -> Step:
        """Return the Step whose name, module and body are those of the decorated function."""
        return Step(
            name=body.__name__,
            module=body.__module__,
            body=body,
            torch=torch,
            uses=frozenset[Uses](("objects", *(uses or ()))),
            waits=waits,
        )

    return decorate


@dataclass(frozen=True, init=False)
class Sequence:
    """Nodes that run one after another."""

    nodes: tuple["Node", ...]

    def __init__(self, *nodes: "Node") -> None:
        object.__setattr__(self, "nodes", nodes)


@dataclass(frozen=True, init=False)
class Parallel:
    """Branches that run side by side, each on a slot of its own. The event is passed on unchanged."""

    branches: tuple["Node", ...]

    def __init__(self, *branches: "Node") -> None:
        object.__setattr__(self, "branches", branches)


@dataclass(frozen=True)
class ForEach:
    """A `body` that runs once for each `item` in 0..count-1, side by side. `together`: the iterations wait for one another, so each gets
    a slot at once. `tolerant`: an iteration that fails ends alone (MLLess: the supervisor removes its worker).
    """

    item: Literal["worker", "minibatch"]
    count: Literal["workers", "minibatches"]
    body: "Node"
    together: bool = False
    tolerant: bool = False


@dataclass(frozen=True)
class Repeat:
    """A `body` that runs until the event's flag `until` is set; with `every_s` it is a poll. The body raises WaitTimeout itself if
    `ctx.has_timed_out(event)`: only it knows what was missing.
    """

    body: "Node"
    until: Literal["synchronised", "epoch_finished", "finished"]
    timeout_s: int
    every_s: int = 0


@dataclass(frozen=True)
class Child:
    """A subtree that runs as an execution of its own (a history holds 25,000 events). It returns its last event."""

    name: str
    body: "Node"


Node = Step | Sequence | Parallel | ForEach | Repeat | Child


def walk(node: Node) -> Iterator[Node]:
    """Yield every node of the tree, in the order in which it is written."""
    yield node
    match node:
        case Sequence(nodes=children) | Parallel(branches=children):
            for child in children:
                yield from walk(child)
        case ForEach(body=body) | Repeat(body=body) | Child(body=body):
            yield from walk(body)


def map_steps(node: Node, change: Callable[[Step], Step]) -> Node:
    """Return a copy of the tree below `node` in which `change(step)` replaces each step."""
    match node:
        case Step():
            return change(node)
        case Sequence(nodes=nodes):
            return Sequence(*(map_steps(each, change) for each in nodes))
        case Parallel(branches=branches):
            return Parallel(*(map_steps(each, change) for each in branches))
        case ForEach() | Repeat() | Child():
            return replace(node, body=map_steps(node.body, change))
    raise TypeError(f"not a node: {node!r}")


def execute(node: Node, ctx: Context, event: Event) -> Event:
    """Run the tree below `node` in this process and return its last event.

    `state_machines.py` is the other interpreter: both make the same calls. `ctx`: the run's context; each step gets a
    child of it. `event`: the event that the first step receives.
    """
    match node:
        case Step():
            return _run_with_retries(node, ctx, event)
        case Sequence(nodes=nodes):
            for child in nodes:
                event = execute(child, ctx, event)
            return event
        case Parallel(branches=branches):
            _run_side_by_side([partial(execute, branch, ctx, event) for branch in branches], slots=len(branches))
            return event
        case ForEach(item=item, count=count, body=body, together=together, tolerant=tolerant):
            items = range(event[count])
            calls = [partial(execute, body, ctx, {**event, item: i}) for i in items]
            _run_side_by_side(calls, slots=max(1, len(items)) if together else 8, tolerant=tolerant)
            return event
        case Repeat():
            return _repeat(node, ctx, event)
        case Child(body=body):
            return execute(body, ctx, event)
    raise TypeError(f"not a node: {node!r}")


def _run_with_retries(step: Step, ctx: Context, event: Event) -> Event:
    """Run the step, again if it raises REPEATED. Each try has a context of its own."""
    for _ in range(STEP.again):
        with suppress(REPEATED), ctx.child() as own:  # threads share resources, not meters, learners or buses
            return step.run(own, event)
        ctx.pause(STEP.first_s)
    with ctx.child() as own:
        return step.run(own, event)


def _repeat(node: Repeat, ctx: Context, event: Event) -> Event:
    """Run the body of a Repeat until its flag is set, and return the last event.

    The event carries when the wait began and its timeout, by which the body raises WaitTimeout.
    """
    event = {**event, "since": datetime.fromtimestamp(runtime.time(), UTC).isoformat(), "timeout_s": node.timeout_s}
    while not (event := execute(node.body, ctx, event))[node.until]:
        if node.every_s:
            ctx.pause(node.every_s)
    return event


def _run_side_by_side(calls: Iterable[Callable[[], Event]], *, slots: int, tolerant: bool = False) -> None:
    """Run all calls on threads. Once all have ended, raise the first failure, if there is one: rather one that is a cause than one that
    follows from another. `slots`: number of threads; `tolerant`: raise only StaleAttempt, UserError and errors that are not a
    CrossoverError.
    """
    _, failed = run_in_threads(calls, slots=slots)
    failures = [failed[number] for number in sorted(failed)]
    # A worker of a superseded attempt is no dead worker: its execution ends. An error that the user must fix fails every worker.
    ours = [
        each for each in failures if isinstance(each, StaleAttempt | UserError) or not isinstance(each, CrossoverError)
    ]
    if ours or (failures and not tolerant):
        raise [*ours, *failures][0]
