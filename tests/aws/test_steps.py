"""The steps of `make test-aws`: each says its cost first, the first that fails ends the walk, and what was deployed always goes."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from moto import mock_aws

from crossover.errors import CrossoverError, RunFailed, UserError
from crossover.experiment import Experiment
from crossover.running import account, removal
from crossover.validation import check_deployment, load
from tests.aws import billing, driver, expiring, redriving, unproven
from tests.aws import steps as steps_
from tests.aws.evidence import Evidence
from tests.aws.observed import judged
from tests.aws.steps import STEPS, ProofStep, ProofWalk, walk_through

ROOT = Path(__file__).parents[2]
PROOF = load(driver.PROOF)


def walk(
    experiment: Experiment = PROOF, *, config: Path = driver.PROOF, session: Any = None, **known: Any
) -> ProofWalk:
    """Return the state of a verification, with `known` fields changed."""
    never: Any = None
    mine = {"on_aws": True, "out": Path(), "whole": config == driver.PROOF, "train": never, "ceiling_usd": 10.0} | known
    return ProofWalk(session=session, experiment=experiment, config=config, **mine)


def taken(walk: ProofWalk) -> list[str]:
    """Return the names of the steps that a verification would take."""
    return [each.name for each in STEPS if not each.left_out(walk)]


def step(name: str, work: Callable[[ProofWalk], None], *, left_out: str = "") -> ProofStep:
    """Return a step that does `work`."""
    return ProofStep(
        name=name, does="it", minutes=30, usd_per_hour=lambda e: 0.2, work=work, left_out=lambda walk: left_out, runs=1
    )


def test_the_cost_is_said_before_each_step_and_a_failure_ends_the_walk(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that each step's cost is printed before it, that a skipped step gives its reason, and that no step follows a failed one."""

    def fails(walk: ProofWalk) -> None:
        """Raise RunFailed."""
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


@pytest.mark.parametrize(
    ("ceiling", "taken"),
    [(1.0, ["one", "two"]), (0.45, ["one", "two"]), (0.35, ["one"]), (0.1, []), (0.0, []), (float("nan"), [])],
)
def test_no_step_begins_that_would_pass_the_ceiling(ceiling: float, taken: list[str]) -> None:
    """Check which of two steps begin under a ceiling. Each costs $0.11, and $0.11 more until what it deployed is deleted; the first has
    cost $0.20.
    """
    done: list[str] = []

    def first(walk: ProofWalk) -> None:
        """Record the step, and that it cost $0.19 more than expected."""
        done.append("one")
        walk.spent_usd += 0.19  # it took longer than was thought

    steps = [step("one", first), step("two", lambda walk: done.append("two"))]
    mine = walk(ceiling_usd=ceiling)
    if len(taken) == 2:
        walk_through(mine, steps)
    else:
        with pytest.raises(UserError, match=r"above the ceiling of \$"):
            walk_through(mine, steps)
    assert done == taken


def test_each_step_is_asked_for_where_there_is_no_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that without a ceiling each step is asked for, after its price was printed, and that a refusal ends the verification."""
    asked, done = list[str](), list[str]()

    def confirm(question: str) -> bool:
        """Note the question, check that the price was printed before, and agree to the first one only."""
        asked.append(question)
        assert "$0.11, projected" in capsys.readouterr().out  # the price stands above the question
        return len(asked) == 1

    steps = [step(name, lambda walk, name=name: done.append(name)) for name in ("one", "two", "three")]  # type: ignore[misc]
    with pytest.raises(UserError, match="two: not confirmed"):
        walk_through(walk(ceiling_usd=None, confirm=confirm), steps)
    assert (len(asked), done) == (2, ["one"])


def test_the_steps_go_from_the_cheapest_to_what_needs_the_others() -> None:
    """Check which steps a verification takes, in order, for various experiments and accounts."""
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
    """Check that the smallest experiment can be deployed, belongs to the proof's project, and takes only the step `run`."""
    smallest = load(steps_.SMALLEST)
    check_deployment(smallest)
    assert smallest.project == PROOF.project and smallest.name != PROOF.name
    assert taken(walk(smallest, config=steps_.SMALLEST)) == ["run"]


def test_an_experiment_that_is_changed_for_a_step_is_read_back(tmp_path: Path) -> None:
    """Check that the file which is written for a changed experiment loads as that experiment."""
    more = replace(PROOF, workers=3)
    assert load(walk(out=tmp_path / "out").changed("more", more)) == more


def test_the_schedule_is_waited_for_no_longer_than_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `fired` is true once a stack's deletion has started or the stack is gone, and false after its time limit."""
    states = iter(["CREATE_COMPLETE", "CREATE_COMPLETE", "DELETE_IN_PROGRESS"])
    monkeypatch.setattr(expiring, "POLL_S", 0.0)
    monkeypatch.setattr(account, "find_stack", lambda session, name: SimpleNamespace(state=next(states)))
    assert expiring.fired(walk(), "a-stack")
    monkeypatch.setattr(account, "find_stack", lambda session, name: None)
    assert expiring.fired(walk(), "a-stack")
    monkeypatch.setattr(expiring, "FIRING_WAIT_S", 0.0)
    monkeypatch.setattr(account, "find_stack", lambda session, name: SimpleNamespace(state="CREATE_COMPLETE"))
    assert not expiring.fired(walk(), "a-stack")


class States:
    """A Step Functions client with a run and one child: a redriven child succeeds, a redriven run ends as its child did."""

    class exceptions:
        """The client's exceptions, found as in boto3."""

        class ExecutionDoesNotExist(Exception):
            """The error of a missing execution."""

    def __init__(self) -> None:
        """Start with the run and its child running."""
        self.status = {"run": "RUNNING", "child": "RUNNING"}
        self.errors: dict[str, str] = {}
        self.entered: list[str] = []
        self.stopped = threading.Event()
        self.redriven: list[str] = []

    def stop_execution(self, executionArn: str, cause: str) -> None:
        """Abort the execution if it runs, and note that the run was stopped."""
        if self.status[executionArn] == "RUNNING":
            self.status[executionArn] = "ABORTED"
        if executionArn == "run":
            self.stopped.set()

    def describe_execution(self, executionArn: str) -> Mapping[str, Any]:
        """Return status and error of an execution."""
        return {"status": self.status[executionArn], "error": self.errors.get(executionArn, "")}

    def redrive_execution(self, executionArn: str) -> None:
        """Note the redrive and the state entered. The child succeeds; the run succeeds if the child has, else it fails."""
        self.redriven.append(executionArn)
        self.entered.append("adopt epoch" if executionArn == "run" else "compute")
        if executionArn == "child" or self.status["child"] == "SUCCEEDED":
            self.status[executionArn] = "SUCCEEDED"
        else:
            self.status["run"], self.errors["run"] = "FAILED", "ChildFailed"

    def get_paginator(self, name: str) -> Any:
        """Return a paginator of one page with the states that were entered."""
        events = [{"stateEnteredEventDetails": {"name": each}} for each in self.entered]
        return SimpleNamespace(paginate=lambda **arguments: [{"events": events}])


class Known(Evidence):
    """Evidence from an account with the executions of `States`."""

    def client(self, service: str, **arguments: Any) -> Any:
        """Return the `States` client, for every service."""
        return self.session

    def executions(self, name: str, *, status: str = "") -> Iterator[Mapping[str, Any]]:
        """Yield the execution of that name if it has the status."""
        if name in self.session.status and self.session.status[name] == status:
            yield {"executionArn": name}


@pytest.mark.parametrize(
    ("children_first", "redriven", "status", "error"),
    [(False, ["run"], "FAILED", "ChildFailed"), (True, ["child", "run"], "SUCCEEDED", "")],
)
def test_a_run_is_stopped_while_a_child_works_and_redriven(
    children_first: bool, redriven: list[str], status: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the order in which a stopped run and its child are redriven, and the end that is reported."""
    monkeypatch.setattr(redriving, "POLL_S", 0.001)
    states = States()

    def start() -> None:
        """Wait until the run is stopped, then raise RunFailed."""
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
    """Check that a run which ended before a child was seen is not redriven."""
    states = States()
    states.status["child"] = "SUCCEEDED"
    evidence = Known(session=states, experiment=PROOF, on_aws=True)
    assert redriving.redrive(evidence, run="run", children=["child"], start=lambda: None, children_first=True) is None
    assert states.redriven == []


def shown(*command: str, **environment: str) -> str:
    """Return what a command prints, in the checkout."""
    given = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=given, text=True, capture_output=True, check=True).stdout


def test_no_other_run_of_pytest_collects_what_costs_dollars() -> None:
    """Check that pytest does not collect tests/aws/test_account.py when it is called for tests/aws."""
    collect = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/aws")
    listed = shown(*collect, CROSSOVER_TEST_AWS="on --most-usd 2")
    assert "test_steps.py" in listed and "test_account.py" not in listed


def test_make_gives_the_suite_the_persons_account_and_the_ceiling() -> None:
    """Check that `make test-aws` hands on the configuration and the ceiling, and leaves out tests/conftest.py, which replaces AWS's
    variables.
    """
    recipe = shown("make", "-n", "test-aws", "MAX_USD=1.5", "CONFIG=config/gpu.yaml")
    assert 'CROSSOVER_TEST_AWS="on config/gpu.yaml --most-usd 1.5"' in recipe
    assert "pytest --noconftest -s -rs tests/aws/test_account.py" in recipe


# --- the order of things ---


def status(*arguments: str) -> int:
    """Return the exit status of the driver with these arguments."""
    with pytest.raises(SystemExit) as ended:
        driver.main(arguments)
    return int(ended.value.code or 0)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the driver's steps by ones that do nothing but append their name ("refuse", "deploy" or "destroy") to a list, and return that
    list, which is empty at first.
    """
    steps: list[str] = []
    monkeypatch.setattr(driver, "refuse", lambda *arguments, **named: steps.append("refuse"))
    monkeypatch.setattr(driver, "walk_through", lambda *arguments: steps.append("deploy"))
    monkeypatch.setattr(driver, "destroy_and_look", lambda *arguments: steps.append("destroy"))
    return steps


@mock_aws
def test_the_cost_is_said_and_nothing_done_unasked(
    done: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the verification prints its cost and does nothing if nobody can confirm it and no ceiling is given."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False))
    assert status() == 2
    shown = capsys.readouterr()
    assert "an hour), projected" in shown.out and "MAX_USD=1" in shown.err
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
    """Let the deployment end in various ways. Check that everything is destroyed, the results are written, and the exit status fits."""

    def deploy(walk: ProofWalk, steps: object) -> None:
        """Note the deployment and one observation, then raise the failure if there is one."""
        done.append("deploy")
        walk.observed["root-volume"] = judged(True, "as expected")
        if failure:
            raise failure

    monkeypatch.setattr(driver, "walk_through", deploy)
    assert status("--most-usd", "2", "--out", str(tmp_path)) == ends
    assert done == ["refuse", "deploy", "destroy"]
    written = json.loads((tmp_path / "verified-aws.json").read_text())
    assert (written["failure"], len(written["facts"])) == (word, len(unproven.read()))
    verdicts = {fact["id"]: fact["verdict"] for fact in written["facts"]}
    assert verdicts["root-volume"] == "proven" and verdicts["cold-import"] == "not covered"
    assert {fact["label"] for fact in written["facts"]} == {written["label"]}


@mock_aws
def test_a_walk_above_the_ceiling_is_refused_before_anything_is_done(
    done: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a verification whose projected cost exceeds the ceiling does nothing."""
    assert status("--most-usd", "0.1") == 2
    assert "nothing was deployed" in capsys.readouterr().err
    assert done == []


@mock_aws
def test_predicted_dollars_stand_beside_the_billed_ones(
    done: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `--billed` adds the billed dollars to an earlier verification's file and fails without one."""
    path = tmp_path / "verified-aws.json"
    with pytest.raises(UserError, match="does not exist"):
        billing.add_billed(path)

    def deploy(walk: ProofWalk, steps: object) -> None:
        """Take one step that does nothing."""
        walk_through(walk, [step("smallest", lambda walk: None)])

    monkeypatch.setattr(driver, "walk_through", deploy)
    status("--most-usd", "2", "--out", str(tmp_path))
    document = json.loads(path.read_text())
    assert set(document["usd"]) == {"predicted", "by_minutes", "billed"}
    assert document["usd"]["predicted"] > 0 and document["usd"]["billed"] is None
    path.write_text(json.dumps(document | {"label": "measured-local"}))
    with pytest.raises(UserError, match="bills nothing"):
        billing.add_billed(path)
    path.write_text(json.dumps(document | {"label": "measured-aws"}))
    amounts = ["0"]
    answer = lambda **asked: {"ResultsByTime": [{"Total": {"UnblendedCost": {"Amount": each}}} for each in amounts]}  # noqa: E731
    monkeypatch.setattr(boto3, "client", lambda *names, **named: SimpleNamespace(get_cost_and_usage=answer))
    with pytest.raises(UserError, match="has billed nothing"):
        billing.add_billed(path)
    amounts[:] = ["0.25", "0.17"]
    assert "billed $0.42" in billing.add_billed(path)
    assert json.loads(path.read_text())["usd"] == document["usd"] | {"billed": 0.42}


@mock_aws
def test_an_interrupted_destruction_says_how_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an interrupted deletion names the command that continues it."""

    def interrupted(*arguments: Any, **named: Any) -> None:
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt

    monkeypatch.setattr("crossover.running.removal.delete_experiment", interrupted)
    with pytest.raises(CrossoverError, match=r"crossover destroy c\.yaml --shared --verify goes on"):
        driver.destroy_and_look(walk(config=Path("c.yaml")))


@mock_aws
@pytest.mark.parametrize(("whole", "names"), [(True, ["smallest", "proof"]), (False, ["proof"])])
def test_the_smallest_stack_is_deleted_too_if_it_was_left(
    whole: bool, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check which experiments' stacks are deleted at the end: the smallest one's too if the whole proof was taken."""
    deleted = list[str]()
    monkeypatch.setattr(account, "find_stack", lambda session, name: name)
    monkeypatch.setattr(removal, "delete_experiment", lambda session, experiment: deleted.append(experiment.name))
    monkeypatch.setattr(removal, "verify_removed", lambda session, project, name: "nothing is left")
    monkeypatch.setattr(driver, "AFTERWARDS", {})
    driver.destroy_and_look(walk(whole=whole, session=boto3.Session(region_name="us-east-1"), shared_stay="for others"))
    assert deleted == names


@mock_aws
def test_an_experiment_that_stands_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the verification is refused if the experiment is deployed already, because it would be destroyed."""
    template = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    tags = [{"Key": "project", "Value": PROOF.project}]
    boto3.client("cloudformation").create_stack(StackName="crossover-verify-proof", TemplateBody=template, Tags=tags)
    with pytest.raises(
        CrossoverError,
        match=r"stands already, and python -m tests.aws destroys what it looks at; crossover destroy mine",
    ):
        driver.refuse(walk(config=Path("mine.yaml"), session=boto3.Session()), take_over=False)
    monkeypatch.setattr("crossover.running.deploying.check_before_deploying", lambda *arguments, **named: None)
    driver.refuse(walk(session=boto3.Session()), take_over=False)  # what an interrupted verification left is taken up
