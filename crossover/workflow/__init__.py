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
from crossover.errors import CrossoverError, Missing, StaleAttempt, Unavailable, UserError
from crossover.experiment import Experiment
from crossover.processes import run_in_threads
from crossover.runtime import STEP
from crossover.stores.clients import Event
from crossover.stores.keys import Keys
from crossover.workflow.context import Context, Meter, Resources, process_resources

StepBody = Callable[[Context, Event], Mapping[str, Any] | None]
Uses = Literal["objects", "tensors", "bus", "machines"]

# A module that lies beside the code of a function that computes (cdk/packaging.py), and there alone: it imports torch and what computes by
# it. INIT has a whole processor, a step's first invocation the share that its memory buys; a snapshot holds what INIT has imported.
AT_START = "crossover.at_start"
_COMPUTES = importlib.util.find_spec(AT_START) is not None
DAY_S = 86_400
EVENT_LIMIT_BYTES = 1_024
REPEATED = Unavailable  # the error after which a step is repeated, in this process as by Step Functions
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
    """Return the event that a run's state machine starts with: the default of each field in START, with `run`, `workers` and `attempt`
    filled in.

    The event's epoch is 0 until the first step sets it; epochs count from 1. `run`: the run's id; `attempt`: greater than 0 if the run is
    resumed.
    """
    return {**START, "run": run, "workers": workers, "attempt": attempt}


def check_event(event: Event) -> Event:
    """Return `event` unchanged if it is valid: exactly the fields of START, plain values, at most EVENT_LIMIT_BYTES as JSON.

    Raises AssertionError otherwise, because that is a bug of the project, not the user's mistake.
    """
    assert event.keys() == START.keys(), f"event fields differ: {sorted(event.keys() ^ START.keys())}"
    assert all(isinstance(value, str | int | bool) for value in event.values()), f"only plain values travel: {event}"
    assert len(json.dumps(event)) <= EVENT_LIMIT_BYTES, f"event exceeds {EVENT_LIMIT_BYTES} bytes"
    return event


@dataclass(frozen=True)
class Step:
    """One function of an architecture and how it is deployed; running it once is one Lambda invocation. `@step` makes one, which is then
    also the Lambda handler: `functions.spirt.average_in_database`.

    `name`, `module`: those of `body`, the Python function; `torch`: whether its layer has PyTorch; `uses`: the services that it may use;
    `waits`: whether it may block until other steps have run, so that it must not be queued behind them.
    """

    name: str
    module: str
    body: StepBody
    torch: bool | Literal["unless_in_database"] = False
    uses: frozenset[Uses] = frozenset({"objects"})
    waits: bool = False  # may block on others: never queued behind its peers

    def __post_init__(self) -> None:
        """Import torch and the modules that compute with it already now, if the step may need torch and this process is a function: at
        start-up a function has a whole processor.
        """
        if self.torch and _COMPUTES:
            importlib.import_module(AT_START)

    def needs_torch(self, experiment: Experiment) -> bool:
        """Return whether the step's function gets the layer with PyTorch. With `unless_in_database` it does not if the database
        computes.
        """
        if self.torch == "unless_in_database":
            return experiment.database.compute != "in_database"
        return self.torch

    def run(self, ctx: Context, event: Event) -> Event:
        """Run the body, write the invocation's record, also if the body fails, and return the event with the body's changes. Sets the keys
        of `ctx` to those of the event's attempt.

        If the body raises Missing, another try may have finished the step meanwhile, so the body runs once more. Raises StaleAttempt if it
        raises Missing again, and AssertionError if the changed event is not valid. Other errors of the body are raised as they are; only
        one of a user's module that is no CrossoverError becomes an OwnCodeError.
        """
        ctx.keys = Keys(ctx.run, event["attempt"])
        theirs = f"{self.module}:{self.name}" if user_code.is_own_module(self.module) else ""
        with (
            ctx.invocation(self.uses),
            Meter(self.name, ctx, event),
            user_code.attribute_errors("architecture", theirs),
        ):
            try:
                changes = self.body(ctx, event)
            except Missing:
                try:
                    changes = self.body(ctx, event)
                except Missing as gone:
                    raise StaleAttempt(f"{self.name}: {gone}, and the step's output is not there either") from gone
            return check_event({**event, **(changes or {})})

    def __call__(self, event: Event, lambda_context: Any) -> Event:
        """Run the step as the Lambda handler of this process, with the state machine's event and Lambda's context object, and return the
        changed event. Raises what `run` raises.
        """
        return self.invoke(process_resources(), event, lambda_context)

    def invoke(self, resources: Resources, event: Event, lambda_context: Any) -> Event:
        """Run the step as Lambda invokes it, in a process with these `resources`, and return the changed event.

        `event`: the state machine's input; `lambda_context`: Lambda's context object, which gives deadline, request id and memory. Raises
        what `run` raises.
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
    """Return a decorator that turns a function `(ctx, event) -> changes or None` into a Step with that function's name.

    `torch`: whether its Lambda function gets the layer with PyTorch; `unless_in_database`: only if the database does not compute. `uses`:
    services that the body may use in addition to the object store; access to others is refused. `waits`: whether the step may block until
    other steps have run, so that it must not be queued behind them.
    """

    def decorate(body: StepBody) -> Step:
        """Return a Step that runs `body`, with the name and module of that function. `body` itself is not changed and not called."""
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
    """A node of the tree whose `nodes` run one after another. Each receives the event that the one before returned."""

    nodes: tuple["Node", ...]

    def __init__(self, *nodes: "Node") -> None:
        """Store the nodes, given one by one, as a tuple."""
        object.__setattr__(self, "nodes", nodes)


@dataclass(frozen=True, init=False)
class Parallel:
    """A node of the tree whose `branches` run at the same time. Their events are dropped: the node returns the event that it received."""

    branches: tuple["Node", ...]

    def __init__(self, *branches: "Node") -> None:
        """Store the branches, given one by one, as a tuple."""
        object.__setattr__(self, "branches", branches)


@dataclass(frozen=True)
class ForEach:
    """A node of the tree whose `body` runs once for each number from 0 to n - 1, at the same time. The event's field named `count` gives n;
    each run gets its number in the field named `item`. The node returns the event that it received.

    `together`: the iterations wait for one another, so all must run at once. `tolerant`: an iteration that fails does not fail the others
    (MLLess: the supervisor then drops its worker).
    """

    item: Literal["worker", "minibatch"]
    count: Literal["workers", "minibatches"]
    body: "Node"
    together: bool = False
    tolerant: bool = False


@dataclass(frozen=True)
class Repeat:
    """A node of the tree whose `body` runs again and again, at least once, until the event that it returns has a true flag `until`. The
    node returns that event.

    `timeout_s`: passed on in the event; the body itself raises WaitTimeout if `ctx.has_timed_out(event)`, because only it knows what was
    missing. `every_s`: pause between two runs of the body in seconds, 0 for none.
    """

    body: "Node"
    until: Literal["synchronised", "epoch_finished", "finished"]
    timeout_s: int
    every_s: int = 0


@dataclass(frozen=True)
class Child:
    """A node of the tree whose `body` runs as a state machine execution of its own (the history of one is limited to 25,000 events). It
    returns the body's last event. `name`: of that state machine.
    """

    name: str
    body: "Node"


Node = Step | Sequence | Parallel | ForEach | Repeat | Child


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and all nodes below it, each parent before its children, in the order in which they are written."""
    yield node
    match node:
        case Sequence(nodes=children) | Parallel(branches=children):
            for child in children:
                yield from walk(child)
        case ForEach(body=body) | Repeat(body=body) | Child(body=body):
            yield from walk(body)


def map_steps(node: Node, change: Callable[[Step], Step]) -> Node:
    """Return a copy of the tree `node` in which each step is replaced by `change(step)`. Raises TypeError if `node` is no node."""
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


TURNS_AFTER_FAILURE = 10  # of a Repeat that waits: what was reported before the failure is still seen


class BranchStopped(CrossoverError):
    """Error of a branch that waits in a Repeat although a branch beside it has failed: nobody will report what it waits for. `execute`
    raises the other branch's error instead, if it knows one.
    """


def never() -> bool:
    """Return False."""
    return False


def execute(node: Node, ctx: Context, event: Event, *, stops: Callable[[], bool] = never) -> Event:
    """Run the tree `node` in this process and return the event that its last step returned; events of branches and iterations are dropped.

    `state_machines.py` writes the same tree for Step Functions. As there, steps are repeated if a service is unavailable, but no pause
    lasts more than 1 ms. At most 8 iterations of a ForEach run at once, unless they wait for one another. `ctx`: the run's context; each
    step gets a child of it. `event`: the event that the first step receives. `stops`: asked at each turn of a Repeat that pauses; once it
    has returned True TURNS_AFTER_FAILURE times, BranchStopped is raised. Raises the error of a step that failed; if it is a CrossoverError,
    branches and iterations beside it end if they wait in a Repeat that pauses.
    """
    match node:
        case Step():
            return _run_with_retries(node, ctx, event)
        case Sequence(nodes=nodes):
            for child in nodes:
                event = execute(child, ctx, event, stops=stops)
            return event
        case Parallel(branches=branches):
            branching = [partial(execute, branch, ctx, event) for branch in branches]
            _run_side_by_side(branching, slots=len(branches), stops=stops)
            return event
        case ForEach(item=item, count=count, body=body, together=together, tolerant=tolerant):
            items = range(event[count])
            calls = [partial(execute, body, ctx, {**event, item: i}) for i in items]
            _run_side_by_side(calls, slots=max(1, len(items)) if together else 8, stops=stops, tolerant=tolerant)
            return event
        case Repeat():
            return _repeat(node, ctx, event, stops=stops)
        case Child(body=body):
            return execute(body, ctx, event, stops=stops)
    raise TypeError(f"not a node: {node!r}")


def _run_with_retries(step: Step, ctx: Context, event: Event) -> Event:
    """Run the step with `event` and return the changed event; repeat it up to STEP.again times while it raises REPEATED. Each try has a
    context of its own. Raises the last try's REPEATED, and any other error at once.
    """
    for _ in range(STEP.again):
        with suppress(REPEATED), ctx.child() as own:  # threads share resources, not meters, learners or buses
            return step.run(own, event)
        ctx.pause(STEP.first_s)
    with ctx.child() as own:
        return step.run(own, event)


def _repeat(node: Repeat, ctx: Context, event: Event, *, stops: Callable[[], bool]) -> Event:
    """Run the body of the Repeat `node`, at least once, until the flag is true in the event that it returns, and return that event. Raises
    BranchStopped if it pauses between turns, and `stops` has returned True TURNS_AFTER_FAILURE times.

    The event also carries when the wait began and its timeout, from which the body knows when to raise WaitTimeout.
    """
    event = {**event, "since": datetime.fromtimestamp(runtime.time(), UTC).isoformat(), "timeout_s": node.timeout_s}
    turns_left = TURNS_AFTER_FAILURE
    while not (event := execute(node.body, ctx, event, stops=stops))[node.until]:
        if node.every_s:  # it waits for others
            turns_left -= stops()
            if not turns_left:
                raise BranchStopped("a branch beside this one has failed")
            ctx.pause(node.every_s)
    return event


def _run_side_by_side(
    calls: Iterable[Callable[..., Event]], *, slots: int, stops: Callable[[], bool], tolerant: bool = False
) -> None:
    """Run all `calls`, which take the argument `stops` of `execute`, on threads, wait for all, and raise one of their errors if any failed;
    the results are dropped. Unless `tolerant`, the others are told to stop once one has raised a CrossoverError.

    `slots`: number of threads. `stops`: whether all are to stop. `tolerant`: ignore every CrossoverError except StaleAttempt and UserError.
    Those two, and errors that are not a CrossoverError, are raised first in any case.
    """
    first: list[CrossoverError] = []

    def run(call: Callable[..., Event]) -> Event:
        """Run one call and return its result; the call's `stops` is true once another one has failed or all are to stop. Raises the call's
        error; unless `tolerant`, a CrossoverError also tells the others to stop.
        """
        try:
            return call(stops=lambda: bool(first) or stops())
        except CrossoverError as error:
            if not tolerant:
                first.append(error)
            raise

    _, failed = run_in_threads([partial(run, call) for call in calls], slots=slots)
    failures = [failed[number] for number in sorted(failed)]
    failures = [each for each in failures if not isinstance(each, BranchStopped)] or failures
    # A worker of a superseded attempt is no dead worker: its execution ends. An error that the user must fix fails every worker.
    ours = [
        each for each in failures if isinstance(each, StaleAttempt | UserError) or not isinstance(each, CrossoverError)
    ]
    if ours or (failures and not tolerant):
        raise [*ours, *failures][0]
