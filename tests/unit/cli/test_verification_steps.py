"""The steps of verify-aws: each says its cost first, the first that fails ends the walk, and what was deployed always goes."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from crossover.account.proofs import expiring, redriving, steps, unproven
from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import judged
from crossover.account.proofs.steps import STEPS, ProofStep, ProofWalk, walk_through
from crossover.account.resources import stacks
from crossover.cli import verification
from crossover.errors import CrossoverError, RunFailed
from crossover.experiment import Experiment
from crossover.validation import check_deployment, load
from tests.commands import status

ROOT = Path(__file__).parents[3]
PROOF = load(verification.PROOF)


def walk(
    experiment: Experiment = PROOF, *, config: Path = verification.PROOF, session: Any = None, **known: Any
) -> ProofWalk:
    never: Any = None
    mine = {"on_aws": True, "out": Path(), "whole": config == verification.PROOF, "train": never} | known
    return ProofWalk(session=session, experiment=experiment, config=config, **mine)


def taken(walk: ProofWalk) -> list[str]:
    return [each.name for each in STEPS if not each.left_out(walk)]


def step(name: str, work: Callable[[ProofWalk], None], *, left_out: str = "") -> ProofStep:
    return ProofStep(
        name=name, does="it", minutes=30, usd_per_hour=lambda e: 0.2, work=work, left_out=lambda walk: left_out, runs=1
    )


def test_the_cost_is_said_before_each_step_and_a_failure_ends_the_walk(capsys: pytest.CaptureFixture[str]) -> None:

    def fails(walk: ProofWalk) -> None:
        raise RunFailed("no broker")

    steps = [
        step("one", lambda walk: print("done")),
        step("not for us", fails, left_out="nothing to see"),
        step("two", fails),
        step("three", lambda walk: print("never")),
    ]
    with pytest.raises(RunFailed, match="no broker"):
        walk_through(walk(), steps)
    assert capsys.readouterr().out.splitlines() == [
        "step 1 of 4, one: it; about 30 minutes and $0.11, projected",
        "done",
        "step 2 of 4, not for us: left out, nothing to see",
        "step 3 of 4, two: it; about 30 minutes and $0.11, projected",
    ]


def test_the_steps_go_from_the_cheapest_to_what_needs_the_others() -> None:
    assert taken(walk()) == ["smallest", "network", "broker", "run", "update", "redrive", "schedule"]
    assert taken(walk(on_aws=False)) == [each.name for each in STEPS if each.name != "redrive"]
    assert taken(walk(alone=False)) == [each.name for each in STEPS if each.name != "schedule"]
    refused = walk(refusal=lambda experiment: "5 vCPUs allowed")
    assert taken(refused) == ["smallest"]
    small = walk(refusal=lambda experiment: "5 vCPUs allowed" if experiment.workers > 2 else "")
    assert taken(small) == [each.name for each in STEPS if each.name != "update"]
    for name, chosen in (("gpu", ["network", "run", "schedule"]), ("all-reduce-s3", ["run"])):
        config = ROOT / "config" / f"{name}.yaml"
        assert taken(walk(load(config), config=config)) == chosen
    costs = [each.cost(PROOF) for each in STEPS]
    assert all(cost > 0 for cost in costs) and sum(costs) < 1.0


def test_the_smallest_stands_alone_in_the_proofs_project() -> None:
    smallest = load(steps.SMALLEST)
    check_deployment(smallest)
    assert smallest.project == PROOF.project and smallest.name != PROOF.name
    assert taken(walk(smallest, config=steps.SMALLEST)) == ["run"]


def test_an_experiment_that_is_changed_for_a_step_is_read_back(tmp_path: Path) -> None:
    more = replace(PROOF, workers=3)
    assert load(walk(out=tmp_path / "out").changed("more", more)) == more


def test_the_schedule_is_waited_for_no_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter(["CREATE_COMPLETE", "CREATE_COMPLETE", "DELETE_IN_PROGRESS"])
    monkeypatch.setattr(expiring, "POLL_S", 0.0)
    monkeypatch.setattr(stacks, "look", lambda session, name: SimpleNamespace(state=next(states)))
    assert expiring.fired(walk(), "a-stack")
    monkeypatch.setattr(stacks, "look", lambda session, name: None)
    assert expiring.fired(walk(), "a-stack")
    monkeypatch.setattr(expiring, "FIRING_WAIT_S", 0.0)
    monkeypatch.setattr(stacks, "look", lambda session, name: SimpleNamespace(state="CREATE_COMPLETE"))
    assert not expiring.fired(walk(), "a-stack")


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


# --- the order of things ---


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command does, without doing it."""
    steps: list[str] = []
    monkeypatch.setattr(verification, "refuse", lambda *arguments, **named: steps.append("refuse"))
    monkeypatch.setattr(verification, "walk_through", lambda *arguments: steps.append("deploy"))
    monkeypatch.setattr(verification, "destroy_and_look", lambda *arguments: steps.append("destroy"))
    return steps


@mock_aws
def test_the_cost_is_said_and_nothing_done_unasked(
    done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert status("verify-aws") == 2
    shown = capsys.readouterr()
    assert "an hour), projected" in shown.out and "add --yes" in shown.err
    assert done == []


@mock_aws
@pytest.mark.parametrize(
    ("failure", "ends", "word"),
    [(None, 0, None), (CrossoverError("no space"), 1, "no space"), (KeyboardInterrupt(), 130, "KeyboardInterrupt")],
)
def test_what_was_deployed_is_destroyed_and_written_down(
    failure: BaseException | None,
    ends: int,
    word: str | None,
    done: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deploy(walk: ProofWalk, steps: object) -> None:
        done.append("deploy")
        walk.observed["root-volume"] = judged(True, "as expected")
        if failure:
            raise failure

    monkeypatch.setattr(verification, "walk_through", deploy)
    assert status("verify-aws", "--yes", "--out", str(tmp_path)) == ends
    assert done == ["refuse", "deploy", "destroy"]
    written = json.loads((tmp_path / "verified-aws.json").read_text())
    assert (written["failure"], len(written["facts"])) == (word, len(unproven.read()))
    verdicts = {fact["id"]: fact["verdict"] for fact in written["facts"]}
    assert verdicts["root-volume"] == "proven" and verdicts["cold-import"] == "not covered"
    assert {fact["label"] for fact in written["facts"]} == {written["label"]}


@mock_aws
def test_an_interrupted_destruction_says_how_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("crossover.account.removal.destroying.delete_experiment", interrupted)
    with pytest.raises(CrossoverError, match=r"crossover destroy c\.yaml --shared --verify goes on"):
        verification.destroy_and_look(walk(config=Path("c.yaml")))


@mock_aws
def test_an_experiment_that_stands_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    template = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    tags = [{"Key": "project", "Value": PROOF.project}]
    boto3.client("cloudformation").create_stack(StackName="crossover-verify-proof", TemplateBody=template, Tags=tags)
    with pytest.raises(
        CrossoverError, match=r"stands already, and verify-aws destroys what it looks at; crossover destroy mine"
    ):
        verification.refuse(walk(config=Path("mine.yaml"), session=boto3.Session()), take_over=False)
    monkeypatch.setattr(
        "crossover.account.deployment.deploying.refuse_what_cannot_work", lambda *arguments, **named: None
    )
    verification.refuse(
        walk(session=boto3.Session()), take_over=False
    )  # what an interrupted verification left is taken up
