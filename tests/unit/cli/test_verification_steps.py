"""The steps of verify-aws: each says its cost first, the first that fails ends the walk, and what a redrive does with children."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.account.proofs import expiring, redriving, steps
from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.step_walk import Step, Walk, walk_through
from crossover.account.proofs.steps import STEPS, planned
from crossover.account.resources import stacks
from crossover.cli import verification
from crossover.errors import RunFailed
from crossover.validation import check_deployment, load

ROOT = Path(__file__).parents[3]
PROOF = load(verification.PROOF)


def walk(said: list[str], *, on_aws: bool = True) -> Walk:
    evidence = Evidence(session=None, experiment=PROOF, on_aws=on_aws, alone=True)
    never: Any = None
    return Walk(
        seen=evidence, config=verification.PROOF, out=Path(), whole=True, observed={}, tell=said.append, train=never
    )


def step(name: str, work: Callable[[Walk], None], *, left_out: str = "") -> Step:
    return Step(
        name=name, does="it", minutes=30, usd_per_hour=lambda e: 0.2, work=work, left_out=lambda walk: left_out, runs=1
    )


def test_the_cost_is_said_before_each_step_and_a_failure_ends_the_walk() -> None:
    said: list[str] = []

    def fails(walk: Walk) -> None:
        raise RunFailed("no broker")

    steps = [
        step("one", lambda walk: said.append("done")),
        step("not for us", fails, left_out="nothing to see"),
        step("two", fails),
        step("three", lambda walk: said.append("never")),
    ]
    with pytest.raises(RunFailed, match="no broker"):
        walk_through(walk(said), steps)
    assert said == [
        "step 1 of 4, one: it; about 30 minutes and $0.11, projected",
        "done",
        "step 2 of 4, not for us: left out, nothing to see",
        "step 3 of 4, two: it; about 30 minutes and $0.11, projected",
    ]


def test_the_steps_go_from_the_cheapest_to_what_needs_the_others() -> None:
    assert [each.name for each in STEPS] == ["smallest", "network", "broker", "run", "update", "redrive", "schedule"]
    assert [each.name for each in planned(PROOF, whole=True)] == [each.name for each in STEPS]
    another = load(ROOT / "config" / "gpu.yaml")
    assert [each.name for each in planned(another, whole=False)] == ["network", "run", "schedule"]
    alone = load(ROOT / "config" / "all-reduce-s3.yaml")
    assert [each.name for each in planned(alone, whole=False)] == ["run"]
    costs = [each.cost(PROOF) for each in STEPS]
    assert all(cost > 0 for cost in costs) and sum(costs) < 1.0


def test_on_one_machine_nothing_is_redriven() -> None:
    left_out = {each.name: each.left_out(walk([], on_aws=False)) for each in STEPS}
    assert [name for name, reason in left_out.items() if reason] == ["redrive"]


def test_the_smallest_stands_alone_in_the_proofs_project() -> None:
    smallest = load(steps.SMALLEST)
    check_deployment(smallest)
    assert smallest.project == PROOF.project and smallest.name != PROOF.name
    assert [each.name for each in planned(smallest, whole=False)] == ["run"]


def test_an_experiment_that_is_changed_for_a_step_is_read_back(tmp_path: Path) -> None:
    from dataclasses import replace

    found = walk([])
    found.out = tmp_path / "out"
    more = replace(PROOF, workers=3)
    assert load(found.changed("more", more)) == more


def test_the_schedule_is_waited_for_no_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(["CREATE_COMPLETE", "CREATE_COMPLETE", "DELETE_IN_PROGRESS"])
    monkeypatch.setattr(expiring, "POLL_S", 0.0)
    monkeypatch.setattr(stacks, "look", lambda session, name: SimpleNamespace(state=next(states)))
    assert expiring.fired(walk([]).seen)
    monkeypatch.setattr(stacks, "look", lambda session, name: None)
    assert expiring.fired(walk([]).seen)
    monkeypatch.setattr(expiring, "FIRING_WAIT_S", 0.0)
    monkeypatch.setattr(stacks, "look", lambda session, name: SimpleNamespace(state="CREATE_COMPLETE"))
    assert not expiring.fired(walk([]).seen)


class States:
    """Step Functions with a run and one child of it: a redriven child succeeds, a redriven run ends as its child did."""

    class exceptions:
        class ExecutionDoesNotExist(Exception):
            pass

    def __init__(self) -> None:
        self.status = {"run": "RUNNING", "child": "RUNNING"}
        self.errors: dict[str, str] = {}
        self.entered: list[str] = []
        self.stopped = threading.Event()
        self.redriven: list[str] = []

    def stop_execution(self, executionArn: str, cause: str) -> None:
        if self.status[executionArn] == "RUNNING":
            self.status[executionArn] = "ABORTED"
        if executionArn == "run":
            self.stopped.set()

    def describe_execution(self, executionArn: str) -> Mapping[str, Any]:
        return {"status": self.status[executionArn], "error": self.errors.get(executionArn, "")}

    def redrive_execution(self, executionArn: str) -> None:
        self.redriven.append(executionArn)
        self.entered.append("adopt epoch" if executionArn == "run" else "compute")
        if executionArn == "child" or self.status["child"] == "SUCCEEDED":
            self.status[executionArn] = "SUCCEEDED"
        else:
            self.status["run"], self.errors["run"] = "FAILED", "ChildFailed"

    def get_paginator(self, name: str) -> Any:
        events = [{"stateEnteredEventDetails": {"name": each}} for each in self.entered]
        return SimpleNamespace(paginate=lambda **arguments: [{"events": events}])


class Known(Evidence):
    """Evidence whose executions are those of `States`."""

    def client(self, service: str, **arguments: Any) -> Any:
        return self.session

    def executions(self, name: str, *, status: str = "") -> Iterator[Mapping[str, Any]]:
        if name in self.session.status and self.session.status[name] == status:
            yield {"executionArn": name}


@pytest.mark.parametrize(
    ("children_first", "redriven", "status", "error"),
    [(False, ["run"], "FAILED", "ChildFailed"), (True, ["child", "run"], "SUCCEEDED", "")],
)
def test_a_run_is_stopped_while_a_child_works_and_redriven(
    children_first: bool, redriven: list[str], status: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "POLL_S", 0.001)
    states = States()

    def start() -> None:
        assert states.stopped.wait(60)
        raise RunFailed("stopped")

    found = redriving.redrive(
        Known(session=states, experiment=PROOF, on_aws=True),
        run="run",
        children=["child"],
        start=start,
        children_first=children_first,
    )
    assert found is not None
    assert (states.redriven, found.status, found.error, found.adopted) == (redriven, status, error, True)


def test_a_run_that_ended_before_a_child_was_seen_is_not_redriven() -> None:
    states = States()
    states.status["child"] = "SUCCEEDED"
    evidence = Known(session=states, experiment=PROOF, on_aws=True)
    assert redriving.redrive(evidence, run="run", children=["child"], start=lambda: None, children_first=True) is None
    assert states.redriven == []
