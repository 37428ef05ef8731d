"""What the advice writes is taken by `plan` and `deploy` as it stands, and trains an epoch: every form in this process, on the cloud on one
machine some of them, one of each kind; `make test-every-call` deploys them all.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover.advice import candidates, page
from crossover.advice import question as needs
from crossover.advice import question as subject
from crossover.advice.advice import Advice, advise, form_of
from crossover.advice.candidates import Candidate
from crossover.advice.question import Constraints
from crossover.advice.search import Finalist
from crossover.cli import plan
from crossover.experiment import Experiment
from crossover.local.cloud import LocalCloud
from crossover.reports import prices
from crossover.reports.folder import RunFolder
from crossover.running import measuring
from crossover.running.deployed import run_deployed
from crossover.running.inline import run_inline
from crossover.running.monitor import DeployedParameters
from crossover.validation import check_deployment
from crossover.validation import load as read
from crossover.workflow.architecture import architectures, load
from tests.architectures.harness import standing
from tests.sampling import WHOLE, drawn
from tests.unit.advice.few import few_candidates

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[2] / "config"
SMALL = ("training.epochs=1", "workers=2", "data.limit=240")
FORMS = [
    *(name.replace("_", "-") for name in architectures() if not load(name).alone),
    *(f"single, {on}" for on in ("function", "instance", "gpu")),
]


def kind(form: str) -> str:
    """Return a key for how an architecture of this form is deployed and run; forms with the same key are deployed and run alike."""
    name, _, on = form.replace("-", "_").partition(", ")
    return f"{load(name).alone} {'functions' if load(name).run and on in ('', 'function') else 'programs'}"


DEPLOYED = FORMS if WHOLE else [FORMS[index] for index in drawn([[kind(form)] for form in FORMS])]


@pytest.fixture(scope="module")
def found() -> Iterator[Advice]:
    """Yield the advice for a small experiment, searched among few candidates."""
    question, sizes, _ = subject.build_question(read(CONFIG / "all-reduce-s3.yaml", SMALL))
    with few_candidates():
        yield advise(question, Constraints(), sizes, processes=1, repetitions=5)


def written(found: Advice, form: str, path: Path) -> Experiment:
    """Write the cheapest candidate of that form to `path` as the advice would write it, and return the experiment as commands read it from
    there.
    """
    every = found.searched.simulated
    known = [each for each in every if form_of(each) == form]
    cheapest = min(known, key=lambda each: (every[each].usd, str(each))) if known else unsimulated(found, form)
    banded = Finalist(cheapest, found.question.simulated(cheapest)[0], found.winner.outcomes, 0.0)
    path.write_text(page.as_yaml(found, banded, path.parent))
    return read(path)


def unsimulated(found: Advice, form: str) -> Candidate:
    """Return a candidate of that form that would run, for forms of which the search has simulated none."""
    question, sizes, _ = subject.build_question(found.question.base)
    ways = candidates.list_candidates(
        question.base, samples=question.samples, prices=question.prices, least_mb=sizes.least_mb
    )
    fit = (
        each for each in ways if form_of(each) == form and not needs.find_problem(each, sizes, Constraints().on_hand)[1]
    )
    return next(each for each in fit if not question.simulated(each)[0].problem)


def assert_trained(run: RunFolder) -> None:
    """Check that the run is finished and complete, after one epoch."""
    assert run.result["outcome"] == "finished"
    assert run.result["incomplete"] == []
    assert [each["epoch"] for each in run.result["epochs"]] == [1]


@pytest.mark.parametrize("form", FORMS)
def test_an_advised_candidate_trains_an_epoch_in_this_process(found: Advice, form: str, tmp_path: Path) -> None:
    """Check that the cheapest candidate of each form, as the advice writes it, trains an epoch inline."""
    assert_trained(run_inline(written(found, form, tmp_path / "one.yaml"), tmp_path / "run", lambda _: None))


@pytest.mark.parametrize("form", DEPLOYED)
def test_an_advised_candidate_is_planned_deployed_and_trains_an_epoch(
    found: Advice, form: str, cloud: LocalCloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the cheapest candidate of each form can be planned, deployed to the local cloud, and trained there for an epoch."""
    experiment = written(found, form, tmp_path / "one.yaml")
    check_deployment(experiment)
    plan.plan(tmp_path / "one.yaml")
    assert "a run of 1 epoch: about" in capsys.readouterr().out
    with standing(cloud, experiment, tmp_path / "assembly"):
        assert_trained(
            run_deployed(experiment, tmp_path / "run", lambda _: None, session=cloud.session(), where="local")
        )


def test_sizes_of_a_function_are_measured_and_put_back(cloud: LocalCloud, tmp_path: Path) -> None:
    """Measure one function at two memory sizes on the local cloud, and check that both were measured and that the function's own size is
    restored afterwards.
    """
    experiment = read(CONFIG / "all-reduce-s3.yaml", [*SMALL, "name=sizes", "training.batch_size=60"])
    with standing(cloud, experiment, tmp_path / "assembly"):
        budget = measuring.BudgetTracker(1.0, prices.load())
        session, client = cloud.session(), cloud.session().client("lambda")
        before = client.get_function_configuration(FunctionName="crossover-sizes-train")
        found = list(
            measuring.measure_sizes(
                experiment, "train", [1_024, 3_008], session=session, budget=budget, timeout_s=120, wait_s=5.0
            )
        )
        after = client.get_function_configuration(FunctionName="crossover-sizes-train")
        left = session.client("s3").list_objects_v2(
            Bucket=DeployedParameters.load(experiment, session).bucket, Prefix="runs/"
        )
    assert [each.memory_mb for each in found] == [1_024, 3_008]
    assert all(
        isinstance(each, measuring.MeasuredSize) and each.invocations == 2 and each.seconds > 0 for each in found
    )
    assert 0 < budget.spent_usd < 0.01
    assert [(each["MemorySize"], each["Timeout"]) for each in (before, after)] == [(1_769, 900)] * 2
    assert not [each for each in left.get("Contents", []) if not each["Key"].startswith("runs/under-way")]
