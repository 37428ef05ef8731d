"""What a study deploys, bills and refuses, beside AWS's API of moto."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest
import yaml

from crossover.advice import question
from crossover.errors import ConfigError, UserError
from crossover.experiment import Experiment
from crossover.running import running_costs
from crossover.simulation.workload import Workload
from crossover.study import runner
from crossover.study.file import Study, read
from crossover.study.plan import STACKS, AwsTrials
from crossover.study.runner import Conductor
from crossover.study.search import OptunaSearch
from crossover.study.trials import StudyTrial, TrialFactory, make_grid_trials
from tests.cloud import made

BASE: dict[str, Any] = {
    "architecture": "single",
    "workers": 1,
    "training": {"model": "small_cnn", "epochs": 1, "batch_size": 30},
    "data": {"dataset": "digits", "limit": 120, "validation": 0.05},
}


def study(folder: Path, *, base: dict[str, Any] | None = None, **fields: Any) -> Study:
    """Write a study to a file and return it as read. `base`: settings of all trials to replace; `fields`: the study's other fields."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({"base": BASE | {"name": "any"} | (base or {}), **fields}))
    return read(path)


def first(folder: Path, **base: Any) -> StudyTrial:
    """Return the first trial of a study with these settings."""
    of = study(folder, base=base)
    return make_grid_trials(of, TrialFactory(of, travels=False))[0]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a session of an AWS account in memory."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        yield boto3.Session(region_name="us-east-1")


def stack(session: Any, name: str) -> str:
    """Create the stack `project-experiment` with its tags and return its id."""
    body = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    project, _, rest = name.partition("-")
    tags = [{"Key": key, "Value": value} for key, value in made.tags(project, rest).items()]
    return str(session.client("cloudformation").create_stack(StackName=name, TemplateBody=body, Tags=tags)["StackId"])


def told(out: Path, trial: StudyTrial, **known: Any) -> None:
    """Write the study's file of stacks with what is known of one trial's stack. `known`: fields to replace."""
    out.mkdir()
    each = {"ran_s": {}, "shared": [], "until": None, "id": "", "experiment": trial.experiment.to_plain()} | known
    (out / STACKS).write_text(json.dumps({trial.stack: each}))


def test_a_stack_that_the_study_has_not_made_is_left_as_it_is(session: Any, tmp_path: Path) -> None:
    """A trial whose stack exists and is not the study's raises UserError, and the stack stays."""
    trial, out = first(tmp_path), tmp_path / "out"
    out.mkdir()
    name = f"{trial.experiment.project}-{trial.stack}"
    stack(session, name)
    machine = AwsTrials(out, tell=lambda line: None, session=session)
    with pytest.raises(UserError, match="exists and does not belong to this study"):
        machine.run(trial.experiment, out / "run", lambda progress: None)
    machine.release(trial.experiment)
    assert session.client("cloudformation").describe_stacks(StackName=name)["Stacks"]


def test_another_stack_of_the_same_name_made_since_is_not_deleted(session: Any, tmp_path: Path) -> None:
    """A stack with the name of the study's, and another id, is not deleted."""
    trial, out = first(tmp_path), tmp_path / "out"
    name = f"{trial.experiment.project}-{trial.stack}"
    stack(session, name)
    told(out, trial, stood=[[time.time(), None]], id="arn:aws:cloudformation:us-east-1:1:stack/gone")
    AwsTrials(out, tell=lambda line: None, session=session).release(trial.experiment)
    assert session.client("cloudformation").describe_stacks(StackName=name)["Stacks"]


def test_what_was_gone_is_not_billed_for_that_time(session: Any, tmp_path: Path) -> None:
    """A stack's idle dollars are those of the hours in which it existed, up to its time to live."""
    trial, out = first(tmp_path, architecture="spirt", workers=2), tmp_path / "out"
    began = time.time() - 1_000_000
    told(out, trial, stood=[[began, began + 3_600], [began + 500_000, None]], until=began + 503_600)
    hour = running_costs.sum_usd(running_costs.list_hourly_costs(trial.experiment))
    with AwsTrials(out, tell=lambda line: None, session=session) as machine:
        assert machine.idle_usd() == pytest.approx(2 * hour) and hour > 0


def test_what_stands_while_a_trial_runs_counts_against_the_budget(session: Any, tmp_path: Path) -> None:
    """A trial is not started if its projected dollars and those of another idle stack meanwhile exceed the budget."""
    other, out = first(tmp_path, architecture="spirt", workers=2), tmp_path / "out"
    arn = stack(session, f"{other.experiment.project}-{other.stack}")
    told(out, other, stood=[[time.time(), None]], id=arn)
    of = study(tmp_path, name="lone")
    (trial,) = make_grid_trials(of, TrialFactory(of, travels=False))
    p95 = runner.project_trial(trial).band("usd").p95
    machine = AwsTrials(out, tell=lambda line: None, session=session)
    conductor = Conductor(study=of, out=out, machine=machine, budget_usd=p95 * 1.01, where="aws")
    assert conductor.carry_out([trial], total=1) == []
    assert "not started: it may cost $" in conductor.outcome.missing[trial.name]


OWN = """
import torch
from torch import nn
from crossover.learning.datasets import Samples

def network(classes, input_shape):
    return nn.Linear(input_shape[0], classes)

def rows(experiment):
    return Samples(torch.randn(400, 6, generator=torch.Generator().manual_seed(1)), torch.arange(400) % 2, classes=2)
"""


def test_a_model_of_ones_own_is_counted_once_for_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of a user's model has a forecast, with each trial's own minibatches and number of samples, and the model is counted once. If
    it cannot be used, the forecast says why.
    """
    calls = list[Experiment]()

    def count(experiment: Experiment) -> Callable[[Experiment], Workload]:
        """Note the call, and count the model's sizes."""
        calls.append(experiment)
        return question.make_sizes_function(experiment)

    monkeypatch.setattr(runner, "make_sizes_function", count)
    (tmp_path / "mine.py").write_text(OWN)
    own = {"training": {**BASE["training"], "model": "mine:network"}, "data": {"dataset": "mine:rows"}}
    grid = {"training.batch_size": [20, 40], "training.learning_rate": [0.1, 0.2], "data.limit": [160, 320]}
    of = study(tmp_path, base=own, grid=grid)
    found = runner.forecast_study(of, travels=False)
    assert found.trials == 8 and not found.unknown and found.usd.p50 > 0 and len(calls) == 1
    trials = make_grid_trials(of, TrialFactory(of, travels=False))
    counted = {
        (data.limit, len(runner._count_own_work(each.experiment).samples))
        for each in trials
        if (data := each.experiment.data)
    }
    assert counted == {(160, 8), (160, 4), (320, 16), (320, 8)} and len(calls) == 1
    (tmp_path / "wrong.py").write_text(OWN.replace("input_shape[0]", "7"))
    wrong = {**own, "training": {**own["training"], "model": "wrong:network"}}
    assert "shapes cannot be multiplied" in runner.forecast_study(study(tmp_path, base=wrong), travels=False).unknown


def drawn_rate(of: Study) -> float:
    """Return the learning rate of the first settings that the study's search draws."""
    return float(OptunaSearch(of).draw_settings(1)[0]["training.learning_rate"])


def test_a_setting_that_is_refused_is_missing_and_the_search_goes_on(tmp_path: Path) -> None:
    """Settings drawn by a search that validation refuses are noted as missing with their reason, and the search continues."""
    space = {"training.learning_rate": [0.1, -1.0]}
    of = study(tmp_path, search={"trials": 12, "space": space, "sampler": "RandomSampler"}, order=1)
    order = next(n for n in range(1, 99) if drawn_rate(study(tmp_path, search=of.plain["search"], order=n)) > 0)
    of = study(tmp_path, search=of.plain["search"], order=order)
    missing = dict[str, str]()
    searching = OptunaSearch(of)
    trials = list(searching.trials(TrialFactory(of, travels=False), {}, missing))
    assert trials and missing and len(trials) + len(missing) + searching.repeated == 12
    assert all("training.learning_rate" in why for why in missing.values())


def test_a_baseline_is_refused(tmp_path: Path) -> None:
    """A study whose base has a baseline raises ConfigError, which lists the wrong settings of its grid too."""
    of = study(tmp_path, base={"baseline": "gpu"}, grid={"training.epochs": [1, 0]})
    with pytest.raises(ConfigError) as refused:
        make_grid_trials(of, TrialFactory(of, travels=False))
    assert "baseline: not supported in a study" in str(refused.value) and "training.epochs: 0" in str(refused.value)


def test_settings_that_were_drawn_refuse_no_budget(tmp_path: Path) -> None:
    """A budget below the cheapest forecast is accepted for a large study, whose forecast names the settings it was made with."""
    grid = {"training.epochs": list(range(1, 31))}
    of = study(tmp_path, grid=grid)
    found = runner.forecast_study(of, travels=False)
    runner.check_budget(found, found.cheapest_p95 / 2)
    assert (
        "of those settings" in found.lines[1] and "AWS's default quota of 1,000 concurrent executions" in found.lines[1]
    )
