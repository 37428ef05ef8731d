"""A walk: the tasks that a run enters and its waits, in order, by branch. From the tree as `workflow.execute` runs it, and from histories.

A branch is named by its place in the tree: ("worker", 1) an iteration of a Map, ("branch", 0) one of a Parallel, ("execution", "round") a
child's.
"""

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from crossover.errors import CrossoverError, StaleAttempt
from crossover.workflow import START, Child, Event, ForEach, Node, Parallel, Repeat, Sequence, Step, execute
from crossover.workflow.context import Context
from crossover.workflow.state_machines import StateDefinition

Place = tuple[tuple[str, Any], ...]
Entry = tuple[str, Event]  # the name of a step, "child <name>" or "wait"; its event
Walk = dict[Place, list[Entry]]

TURNS = 2  # of every loop: its end is looked at twice


class Failure(CrossoverError):
    """The failure of a scripted step, raised in place of its answer. `error`: name of the error."""

    def __init__(self, error: str) -> None:
        """Make the failure with `error` as its name."""
        super().__init__(f"{error}: scripted")
        self.error = error


class GaveWay(Failure, StaleAttempt):
    """A failure as a stale attempt, after which even a tolerant ForEach does not continue."""


Trouble = Callable[[str, Event, int], str | None]  # the error with which a step's attempt (0, 1, ...) on an event ends


@dataclass
class Script:
    """The answers of each step of an architecture for one run. All loops end at their second check, the innermost first. `trouble`: decides
    which attempts fail; `attempts`: number of attempts by step, worker, minibatch and visit.
    """

    root: Node
    trouble: Trouble = lambda step, event, attempt: None
    attempts: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _answered: dict[tuple[str, int, int], int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, step: str, event: Event) -> Event:
        """Return the event that the step hands on. Raises Failure if the script lets the step fail."""
        with self._lock:
            place = (step, event["worker"], event["minibatch"])
            visit = (*place, self._answered[place])
            attempt = self.attempts.get(visit, 0)
            self.attempts[visit] = attempt + 1
            if (error := self.trouble(step, event, attempt)) is not None:
                raise (GaveWay if error == StaleAttempt.__name__ else Failure)(error)
            self._answered[place] += 1
            return {**event, **self._changes(step, event, self._answered[place])}

    def _changes(self, step: str, event: Event, times: int) -> Event:
        """Return the event's fields that the step changes. `times`: number of answers of the step so far, including this one."""
        flags = closed_by(self.root).get(step, [])
        changes: Event = {flag: times % TURNS ** (inward + 1) == 0 for inward, flag in enumerate(flags)}
        if "epoch_finished" in flags:  # this step ends rounds; the names of children say which
            changes |= {"round": event["round"] + 1, "epoch": event["epoch"] + int(changes["epoch_finished"])}
        return changes


def closed_by(node: Node) -> dict[str, list[str]]:
    """Return, by the step's name, the flags of the loops that end by that step's answer, the innermost first."""
    found: dict[str, list[str]] = defaultdict(list)

    def last(node: Node) -> str:
        """Return the name of the last step whose answer becomes the node's output; "" if the output is the node's input, as after
        iterations and branches.
        """
        match node:
            case Step():
                return node.name
            case Sequence(nodes=nodes):
                return next((name for name in reversed([last(each) for each in nodes]) if name), "")
            case Parallel(branches=branches):
                for each in branches:
                    last(each)
                return ""
            case ForEach(body=body):
                last(body)
                return ""
            case Child(body=body):
                return last(body)
            case Repeat(body=body, until=until):
                name = last(body)
                found[name].append(until)
                return name
        raise TypeError(f"not a node: {node!r}")

    last(node)
    return found


# --- by workflow.execute ------------------------------------------------------------------------------------------------


def expected(script: Script, event: Event) -> tuple[Walk, bool]:
    """Return the walk of `workflow.execute` on the script's tree, and whether it ended without a failure."""
    recorder = _Recorder(script)
    try:
        execute(recorder.scripted(script.root, ()), cast(Context, recorder), event)
    except Failure:
        return dict(recorder.walk), False
    return dict(recorder.walk), True


class _Recorder:
    """A context for scripted steps that records the walk."""

    def __init__(self, script: Script) -> None:
        """Make a recorder with an empty walk for the script's answers."""
        self.script, self.walk = script, defaultdict[Place, list[Entry]](list)
        self._here = threading.local()  # a branch is executed by one thread

    @contextmanager
    def child(self) -> "Iterator[_Recorder]":
        """Yield this context itself, so that all branches record to one walk."""
        yield self

    def pause(self, seconds: float) -> None:
        """Record a wait at the place of the last step."""
        place, event = self._here.last
        self.walk[place].append(("wait", event))

    def entered(self, name: str, place: Place, event: Event) -> None:
        """Record that a task was entered."""
        self.walk[place].append((name, seen(event)))

    def called(self, step: str, place: Place, event: Event) -> Event:
        """Record a step, and return its scripted answer."""
        self.entered(step, place, event)
        answer = self.script.answer(step, event)
        self._here.last = place, seen(answer)
        return answer

    def scripted(self, node: Node, place: Place) -> Node:
        """Return the tree with scripted steps, each of which knows its place. The start of a child becomes a step as well."""
        match node:
            case Step(name=name):
                return _Scripted(name, lambda event: self.called(name, resolved(place, event), event))
            case Sequence(nodes=nodes):
                return Sequence(*(self.scripted(each, place) for each in nodes))
            case Parallel(branches=branches):
                return Parallel(*(self.scripted(each, (*place, ("branch", n))) for n, each in enumerate(branches)))
            case ForEach(item=item, body=body):
                return replace(node, body=self.scripted(body, (*place, (item, None))))
            case Repeat(body=body):
                return replace(node, body=self.scripted(body, place))
            case Child(name=name, body=body):
                start = _Scripted(f"child {name}", lambda event: self._started(name, resolved(place, event), event))
                return Sequence(start, self.scripted(body, (*place, ("execution", name))))
        raise TypeError(f"not a node: {node!r}")

    def _started(self, name: str, place: Place, event: Event) -> Event:
        """Record the start of a child execution."""
        self.entered(f"child {name}", place, event)
        return event


class _Scripted(Step):
    """A step whose work is a scripted call."""

    def __init__(self, name: str, call: Callable[[Event], Event]) -> None:
        """Make a step of this name whose work is `call`."""
        super().__init__(name=name, module=__name__, body=lambda ctx, event: None)
        object.__setattr__(self, "call", call)

    def run(self, ctx: Context, event: Event) -> Event:
        """Return the result of the scripted call."""
        answer: Event = self.call(event)  # type: ignore[attr-defined]
        return answer


def seen(event: Mapping[str, Any]) -> Event:
    """Return the event's fields that both interpreters give. `since` becomes whether a wait has begun, because its time differs."""
    return {**{name: event[name] for name in START}, "since": bool(event["since"])}


def resolved(place: Place, event: Mapping[str, Any]) -> Place:
    """Return the place with the numbers of its iterations, which are taken from the event."""
    return tuple((kind, event[kind] if which is None else which) for kind, which in place)


# --- by the histories of state machines ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entered:
    """The meaning of a state for a walk. `name`: the step's name, "child NAME", "wait", or "" for states that only state machines have;
    `place`: where it is in the tree.
    """

    name: str
    place: Place


def states(machines: Mapping[str, StateDefinition], machine: str, place: Place = ()) -> dict[str, dict[str, Entered]]:
    """Return {machine: {state: what entering it means}}, from the definitions alone, of `machine` and of all children that it starts.
    `place`: place of the machine in the tree.
    """
    found: dict[str, dict[str, Entered]] = {machine: {}}

    def block(definition: StateDefinition, place: Place) -> None:
        """Collect the states of a definition and of all definitions inside it."""
        for name, state in definition["States"].items():
            match state["Type"]:
                case "Map":
                    (item,) = (k for k, v in state["ItemSelector"].items() if v == "$$.Map.Item.Value")
                    block(state["ItemProcessor"], (*place, (item.removesuffix(".$"), None)))
                case "Parallel":
                    for n, branch in enumerate(state["Branches"]):
                        block(branch, (*place, ("branch", n)))
            found[machine][name] = Entered(_meaning(name, state, definition), place)
            if found[machine][name].name.startswith("child "):
                child = found[machine][name].name.removeprefix("child ")
                found.update(states(machines, child, (*place, ("execution", child))))

    block(machines[machine], place)
    return found


def _meaning(name: str, state: StateDefinition, definition: StateDefinition) -> str:
    """Return the meaning of entering a state: the name of a step, "child NAME", "wait", or "" for none."""
    if state["Type"] == "Wait" and name.startswith("wait until"):
        return "wait"
    if state["Type"] != "Task":
        return ""
    if step := re.fullmatch(r"\$\{step_(\w+)\}", state["Resource"]):
        return step[1]
    if child := re.fullmatch(r"\$\{machine_(\w+)\}", str(state["Parameters"].get("StateMachineArn"))):
        return f"child {child[1]}"
    return ""
