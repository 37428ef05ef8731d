"""The state machines of a tree: every state reachable, Map modes that open, histories that fit."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from crossover.experiment import Experiment, Lifetime
from crossover.workflow import DAY_S, START, ForEach, Repeat
from crossover.workflow.architecture import Architecture, architectures, load, steps
from crossover.workflow.state_machines import INLINE_MAP_LIMIT, build_definitions

State = dict[str, Any]
HISTORY_LIMIT = 25_000  # events of one execution


def experiment(workers: int = 4, architecture: str = "spirt") -> Experiment:
    """Return an experiment with so many workers."""
    return Experiment(name="x", architecture=architecture, workers=workers)


def blocks(definition: State) -> Iterator[State]:
    """Yield the machine's definition and, recursively, those of the Maps and Parallels inside it."""
    yield definition
    for state in definition["States"].values():
        for inner in [state["ItemProcessor"]] if state["Type"] == "Map" else state.get("Branches", []):
            yield from blocks(inner)


def onward(state: State) -> set[str]:
    """Return the names of all states that can follow a state."""
    following = {state.get("Next"), state.get("Default")}
    following |= {choice["Next"] for choice in [*state.get("Choices", []), *state.get("Catch", [])]}
    return {name for name in following if name}


@pytest.mark.parametrize("name", architectures())
def test_every_step_stands_in_a_machine_and_passes_exactly_the_event(name: str) -> None:
    """The state machines of an architecture have a task for each of its steps, which passes all fields of the event, retries and
    catches.
    """
    architecture = load(name)
    machines = build_definitions(architecture, experiment(architecture=name), minibatches=6)
    tasks = [s for d in machines.values() for b in blocks(d) for s in b["States"].values() if s["Type"] == "Task"]
    used = {match for task in tasks for match in re.findall(r"^\$\{step_(\w+)\}$", task["Resource"])}
    assert used == {step.name for step in steps(architecture)}
    for task in tasks:
        if task["Resource"].startswith("${step_"):
            assert {key.removesuffix(".$") for key in task["Parameters"]} == START.keys()
            assert task["Retry"], "Lambda's transient errors are retried explicitly"
            assert task["Catch"], "a failure ends the run with its cause"
    for definition in machines.values():
        assert len(json.dumps(definition)) < 1_000_000


def test_a_map_above_forty_is_distributed_because_an_inline_one_never_opens() -> None:
    """A Map over more than 40 workers is distributed, and runs all of them at once."""
    for workers, mode in ((INLINE_MAP_LIMIT, "INLINE"), (INLINE_MAP_LIMIT + 1, "DISTRIBUTED")):
        run = build_definitions(load("spirt"), experiment(workers), minibatches=6)["run"]
        each = run["States"]["each worker"]
        assert each["ItemProcessor"]["ProcessorConfig"]["Mode"] == mode
        assert each["MaxConcurrency"] == 0 or each["MaxConcurrency"] >= workers


def test_an_unknown_number_of_minibatches_makes_the_map_distributed() -> None:
    """A Map over minibatches is distributed if their number is not known."""
    each = build_definitions(load("spirt"), experiment())["round"]["States"]["each minibatch"]
    assert each["ItemProcessor"]["ProcessorConfig"] == {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"}


def history_events(block: State, *, turns: dict[str, int], items: int) -> int:
    """Return the number of events in one execution's history. `turns`: how often the body of a loop runs, by the flag it waits for. AWS
    Step Functions, HistoryEvent: a state is entered and exited (2); a task is scheduled, started and succeeds (3), a .sync one is also
    submitted (1); a Map starts and succeeds (2) and so does each inline iteration (2); a distributed Map's items have histories of their
    own.
    """
    states, name, left, events = block["States"], block["StartAt"], dict(turns), 0
    while True:
        state = states[name]
        events += 2
        match state["Type"]:
            case "Task":
                events += 4 if ".sync" in state["Resource"] else 3
            case "Map" if state["ItemProcessor"]["ProcessorConfig"]["Mode"] == "INLINE":
                events += 2 + items * (2 + history_events(state["ItemProcessor"], turns=turns, items=items))
            case "Map":
                events += 4
            case "Parallel":
                events += 2 + sum(history_events(branch, turns=turns, items=items) for branch in state["Branches"])
            case "Choice":
                flag = state["Choices"][0]["Variable"].removeprefix("$.")
                left[flag] -= 1
                name = state["Default"] if left[flag] else state["Choices"][0]["Next"]
                continue
        if state.get("End"):
            return events
        name = state["Next"]


@pytest.mark.parametrize("sync_every", [1, 240])
def test_no_history_overflows_at_1000_epochs_of_240_minibatches_on_64_workers(sync_every: int) -> None:
    """The history of each of SPIRT's state machines stays below its limit for 1,000 epochs with 64 workers. `sync_every`: minibatches
    per round.
    """
    # Looks for up to a second and then waits a second; the time-out of the barrier is 900 s.
    turns = {"synchronised": 900, "epoch_finished": 240 // sync_every, "finished": 1_000}
    machines = build_definitions(load("spirt"), experiment(64), minibatches=sync_every)
    counts = {
        name: 2
        + history_events(d, turns=turns, items=min(sync_every, 40))
        + adopting(d, limit_s=d["TimeoutSeconds"], items=min(sync_every, 40))
        for name, d in machines.items()
    }
    assert max(counts.values()) < HISTORY_LIMIT, counts


def turn(block: State, wait: str) -> int:
    """Return the number of events on the shortest way from a Wait back to itself."""
    ways = [(2, block["States"][wait]["Next"])]
    for events, name in ways:  # grows while it is walked
        if name == wait:
            return events
        state = block["States"][name]
        seen = {each for _, each in ways}
        ways += [
            (events + 2 + 3 * (state["Type"] == "Task"), each) for each in onward(state) - seen | onward(state) & {wait}
        ]
    raise AssertionError(f"{wait} is never reached again")


def adopting(block: State, *, limit_s: int, items: int, times: int = 1) -> int:
    """Return the most events of polling, for all of the machine's `limit_s` seconds, children that an earlier attempt started. `times`:
    iterations that poll at once.
    """
    found = [0]
    for name, state in block["States"].items():
        if name.startswith("wait for"):
            found.append(-(-limit_s // state["Seconds"]) * turn(block, name) * times)
        if state["Type"] == "Map" and state["ItemProcessor"]["ProcessorConfig"]["Mode"] == "INLINE":
            found.append(adopting(state["ItemProcessor"], limit_s=limit_s, items=items, times=times * items))
        found += [adopting(branch, limit_s=limit_s, items=items, times=times) for branch in state.get("Branches", [])]
    return max(found)


@pytest.mark.sampled
@pytest.mark.parametrize("hours", [0.5, 6, 20, 720])
@pytest.mark.parametrize("workers", [1, 4, 40, 64])
def test_waiting_as_long_as_a_machine_may_last_fits_into_its_history(workers: int, hours: float) -> None:
    """A state machine's timeout is the experiment's longest run, and waiting that long takes less than half of its history's limit."""
    for name in architectures():
        made = replace(experiment(workers, name), lifetime=Lifetime(ttl_hours=hours, maximum_run_hours=hours))
        for machine, definition in build_definitions(load(name), made, minibatches=6).items():
            assert definition["TimeoutSeconds"] == hours * 3_600
            looks = adopting(definition, limit_s=definition["TimeoutSeconds"], items=workers)
            assert looks < HISTORY_LIMIT / 2, f"{name}: {machine}"
            for block in blocks(definition):
                for state in block["States"].values():
                    assert state.get("TimeoutSeconds", 0) <= definition["TimeoutSeconds"]


def test_a_wait_that_cannot_last_until_its_time_out_is_refused() -> None:
    """A Repeat whose looks would exceed the history's limit before its timeout raises AssertionError with the number of events."""
    look = steps(load("spirt"))[4]
    for node, told in (
        (Repeat(look, until="synchronised", every_s=1, timeout_s=DAY_S), "machine run: 777,604 events"),
        (
            ForEach("worker", "workers", Repeat(look, until="synchronised", every_s=1, timeout_s=900)),
            "machine run: 32,4",
        ),
    ):
        with pytest.raises(AssertionError, match=told):
            build_definitions(Architecture("x", run=node), experiment())
    build_definitions(
        Architecture("x", run=Repeat(look, until="synchronised", every_s=60, timeout_s=DAY_S)), experiment()
    )


def test_two_subtrees_of_one_name_are_refused() -> None:
    """An architecture with two state machines of one name raises AssertionError."""
    spirt = load("spirt")
    with pytest.raises(AssertionError, match="'run'"):
        build_definitions(Architecture("x", run=spirt.run, machines={"run": spirt.run}), experiment())  # type: ignore[dict-item]
