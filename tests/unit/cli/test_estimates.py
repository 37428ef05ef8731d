"""Minutes and dollars of a run before it is run: by an earlier run, or by simulation; never by a guess."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.cli import plan
from crossover.errors import NoProjection
from crossover.experiment import Exchange, Experiment, Lifetime, Training
from crossover.reports import display
from crossover.simulation import AWS, Workload, breakeven, start_up
from crossover.simulation.mirror import models_of, spirt
from crossover.validation import load
from crossover.workflow.architecture import Architecture
from crossover.workflow.architecture import load as architecture
from tests.commands import status

CONFIG = Path(__file__).parents[3] / "config"
DESCRIBED = {path.stem for path in Path(spirt.__file__).parent.glob("*.py")} | {"p2p_instance", "gpu"}
EXPERIMENTS = [
    path
    for path in sorted(CONFIG.glob("*.yaml"))
    if "\narchitecture:" in path.read_text()
    and ":" not in load(path).data.dataset  # of one's own: what it holds is known where it was downloaded
    and (architecture(load(path).architecture).simulation or load(path).module) in DESCRIBED
]
SPIRT = load(CONFIG / "spirt.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_that_comes_with_the_project_has_an_estimate(path: Path, tmp_path: Path) -> None:
    """Each YAML in config/ has an estimate of minutes and dollars by simulation, with 5th percentile below median below 95th, and no
    problem.
    """
    shorter = ["training.epochs=2"]
    found = plan.estimate_run(load(path, shorter), results=tmp_path, repetitions=3)
    for figure in (found.minutes, found.usd):
        assert 0 < figure.p5 < figure.p50 < figure.p95
    assert "a simulation" in found.words and found.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spirt-cifar10", "gpu", "p2p-instance"])
def test_plan_says_what_project_says(name: str, tmp_path: Path) -> None:
    """`plan` estimates the same percentiles of seconds and dollars as `project`."""
    found = plan.estimate_run(load(CONFIG / f"{name}.yaml", ["training.epochs=2"]), results=tmp_path)
    out = ("--out", str(tmp_path / "out.json"))
    assert status("project", str(CONFIG / f"{name}.yaml"), "--set", "training.epochs=2", *out) == 0
    projected = json.loads((tmp_path / "out.json").read_text())
    said = projected["repetitions"]
    for mine, its in (([60 * each for each in found.minutes], said["seconds"]), (list(found.usd), said["usd"])):
        assert its.pop("label") == "projected"
        assert mine == pytest.approx([its["p5"], its["p50"], its["p95"]])
    assert (found.boot_minutes > 0) == (name != "spirt-cifar10")


@pytest.mark.parametrize(("name", "instances"), [("spirt", False), ("gpu", True), ("p2p-instance", True)])
def test_plan_counts_start_up_as_advise_does(
    name: str, instances: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plan` prints the total of `list_parts_of`, and counts booting only if the experiment has `instances`; its JSON lists lines of
    costs.
    """
    monkeypatch.chdir(tmp_path)
    experiment = load(CONFIG / f"{name}.yaml", ["training.epochs=1"])
    parts = start_up.list_parts_of(experiment, AWS)
    first, second, *_ = plan.describe_run(experiment)
    assert first.startswith("a run of 1 epoch: about ")
    whole = display.seconds(sum(each.seconds for each in parts))
    assert second.startswith(f"  after {whole} of start-up from `deploy` on, as `advise` counts it (")
    assert ("none if it is deployed" in second) is not instances
    assert any("boot" in each.what for each in parts) is instances
    (record,) = {
        tuple(sorted(line))
        for line in plan.plan_as_json(experiment, architecture(experiment.architecture), None, None)["run"]["lines"]
    }
    assert record == ("as_of", "item", "quantity", "unit", "usd")


def test_what_aws_would_not_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` names why AWS would not run the experiment."""
    monkeypatch.chdir(tmp_path)
    large = load(CONFIG / "spirt-cifar10.yaml", ["functions.timeout_s=10", "training.epochs=1"])
    said = "\n".join(plan.describe_run(large))
    assert "! AWS would not run this: " in said and "timeout" in said


def result(experiment: Experiment, *, epochs: int = 3, **more: Any) -> dict[str, Any]:
    """Return the result of a finished local run with three cost lines. `epochs`: number of epochs, three at most; `more`: fields to
    replace.
    """
    lines = [
        {"item": "Lambda duration, arm64", "quantity": 12.0, "usd": 1.0},
        {"item": "Step Functions transitions", "quantity": 1_200, "usd": 1.0},
        {"item": "EC2 m7g.large x 4, tensor database", "quantity": 9.0, "usd": 1.0},
    ]
    return {
        "outcome": "finished",
        "label": "measured-local",
        "started_at": "2027-01-01T10:00:00+00:00",
        "experiment": experiment.to_plain(),
        "duration_s": 10.0 + 7.0,
        "epochs": [{"wall_s": wall_s} for wall_s in (2.0, 9.0, 2.0)[:epochs]],
        "cost": {"lines": lines},
        **more,
    }


def written(folder: Path, plain: dict[str, Any]) -> Path:
    """Write the result of a run `spirt` below the folder and return the folder."""
    (folder / "spirt").mkdir()
    (folder / "spirt" / "result.json").write_text(json.dumps(plain))
    return folder


def test_an_earlier_run_tells_of_the_next(tmp_path: Path) -> None:
    """An earlier run on AWS is the basis of the estimate, scaled to the number of epochs, with the relative spread of a simulation."""
    experiment = replace(SPIRT, training=replace(SPIRT.training, epochs=10))
    earlier = written(tmp_path, result(SPIRT, label="measured-aws"))
    found = plan.estimate_run(experiment, results=earlier, repetitions=3)
    assert "measured-aws run of 2027-01-01" in found.words
    seconds = (17.0 - 3 * 2.0) + 10 * 2.0  # the median epoch; the rest is its start
    assert found.minutes.p50 == pytest.approx(seconds / 60)
    simulated = plan.estimate_by_simulation(experiment, repetitions=3)
    assert found.minutes.p95 / found.minutes.p50 == pytest.approx(simulated.minutes.p95 / simulated.minutes.p50)
    assert found.spread.startswith("3 repetitions of seed 1, ")
    quantities = {line.item: line.quantity for line in found.lines}
    assert quantities["Lambda duration, arm64"] == pytest.approx(12.0 / 3 * 10)
    assert quantities["EC2 m7g.large x 4, tensor database"] == pytest.approx(4 * 60 / 3_600)  # a minute at least


def test_a_run_on_this_machine_changes_no_projection(tmp_path: Path) -> None:
    """An earlier run on this machine leaves the simulated estimate unchanged, and is named beside it."""
    found = plan.estimate_run(SPIRT, results=written(tmp_path, result(SPIRT)), repetitions=3)
    simulated = plan.estimate_by_simulation(SPIRT, repetitions=3)
    assert (found.minutes, found.usd, found.words) == (simulated.minutes, simulated.usd, simulated.words)
    assert "measured-local run of 2027-01-01" in found.earlier_run
    assert found.earlier_run.endswith("this machine's seconds at AWS's prices") and not simulated.earlier_run


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 2},
        {"architecture": "all_reduce"},
        {"training": replace(SPIRT.training, batch_size=30)},
        {"training": replace(SPIRT.training, model="mobilenet")},
        {"exchange": Exchange(every=2)},
        {"exchange": Exchange(what="model")},
        {"functions": replace(SPIRT.functions, memory_mb={"default": 3_538})},
    ],
)
def test_a_run_of_other_work_tells_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    """An earlier run whose settings differ by `change`, which affects time or traffic, gives no estimate."""
    folder = written(tmp_path, result(SPIRT)) / "spirt"
    assert plan.estimate_by_earlier_run(SPIRT, folder) is not None
    assert plan.estimate_by_earlier_run(replace(SPIRT, **change), folder) is None


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 7, "lifetime": Lifetime(ttl_hours=2.0), "owner": "another"},
        {"training": replace(SPIRT.training, learning_rate=0.5, target=0.9)},
        {"exchange": Exchange(every="epoch")},  # as SPIRT's own: a run's record says which it was
    ],
)
def test_what_leaves_an_epoch_as_it_is_may_differ(change: dict[str, Any], tmp_path: Path) -> None:
    """An earlier run whose settings differ by `change`, which affects neither time nor traffic, gives an estimate."""
    folder = written(tmp_path, result(SPIRT)) / "spirt"
    assert plan.estimate_by_earlier_run(replace(SPIRT, **change), folder) is not None


def test_a_run_of_a_version_with_other_fields_tells_nothing(tmp_path: Path) -> None:
    """An earlier run with an unknown field gives no estimate."""
    plain = result(SPIRT)
    plain["experiment"]["color"] = "red"
    assert plan.estimate_by_earlier_run(SPIRT, written(tmp_path, plain) / "spirt") is None


@pytest.mark.parametrize("plain", [result(SPIRT, outcome="failed"), result(SPIRT, epochs=0)])
def test_a_run_that_failed_or_trained_nothing_tells_nothing(plain: dict[str, Any], tmp_path: Path) -> None:
    """An earlier run that failed or has no epochs gives no estimate."""
    assert plan.estimate_by_earlier_run(SPIRT, written(tmp_path, plain) / "spirt") is None


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        None,
        "finished",
        {"outcome": "finished", "epochs": [{"wall_s": 2.0}]},
        {**result(SPIRT), "experiment": []},
        {**result(SPIRT), "experiment": {**SPIRT.to_plain(), "training": 3}},
        {**result(SPIRT), "experiment": {**SPIRT.to_plain(), "architecture": "of another version"}},
        result(SPIRT, cost={}),
        result(SPIRT, cost={"lines": [{"item": "Lambda"}]}),
        result(SPIRT, duration_s="17"),
        result(SPIRT, started_at=None),
        {**result(SPIRT), "epochs": "3"},
        {**result(SPIRT), "epochs": [{}]},
        {**result(SPIRT), "epochs": [{"epoch": 1, "wall_s": 2.0}, {"epoch": 1, "wall_s": 2.0}]},
    ],
)
def test_a_damaged_result_tells_nothing(damaged: Any, tmp_path: Path) -> None:
    """An earlier run whose result.json lacks a field, or has another type in it, gives no estimate."""
    assert plan.estimate_by_earlier_run(SPIRT, written(tmp_path, damaged) / "spirt") is None


def test_a_run_of_what_nobody_can_simulate_has_no_band(tmp_path: Path) -> None:
    """An estimate from an earlier run of a model that cannot be simulated has equal percentiles, and says why."""
    mine = replace(SPIRT, training=replace(SPIRT.training, model="mine:model"))
    found = plan.estimate_run(mine, results=written(tmp_path, result(mine)))
    assert found.usd.p5 == found.usd.p50 == found.usd.p95
    assert found.spread.startswith("uncertainty unknown: training.model: 'mine:model' is code of your own")


@pytest.mark.slow
def test_a_budget_that_may_not_suffice_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`plan` warns that the run would exceed the budget if the median does, and that it could if only p95 does."""
    monkeypatch.chdir(tmp_path)
    usd = plan.estimate_by_simulation(SPIRT).usd
    for budget_usd, word in ((0.99 * usd.p50, "would"), ((usd.p50 + usd.p95) / 2, "could (p95 is $"), (usd.p95, "")):
        said = plan.describe_run(replace(SPIRT, lifetime=Lifetime(budget_usd=budget_usd)))
        warned = [line for line in said if "exceeds lifetime.budget_usd" in line]
        assert len(warned) == bool(word) and all(f"the run {word}" in line for line in warned)


def test_without_a_basis_nothing_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If neither a simulation nor an earlier run is possible, `plan` prints why there is no projection and how to get one."""
    monkeypatch.chdir(tmp_path)
    strange = replace(SPIRT, name="mine", training=Training(model="mine:model"))
    with pytest.raises(NoProjection):
        plan.estimate_run(strange, results=tmp_path)
    (said,) = plan.describe_run(strange)
    assert said.startswith("no projection of a run: training.model: 'mine:model' is code of your own")
    assert said.endswith("; one `crossover run` on this machine (results/mine) makes one possible")


@pytest.mark.slow
def test_steps_that_nobody_has_described_are_no_failure_of_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step without a model for the simulator leaves `plan` working with a note, and ends `project` with status 2; `breakeven` skips
    that run.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(spirt.MODELS, "initialise")
    for axis in ("PARAMETERS", "BATCHES", "WORKERS", "EPOCHS"):
        monkeypatch.setattr(breakeven, axis, ())
    for command in ("plan", "project", "breakeven"):
        assert status(command, str(CONFIG / "spirt.yaml")) == (0 if command == "plan" else 2)
        told = capsys.readouterr()
        shown = " ".join((told.out + told.err).split())
        assert "functions.spirt.initialise has no model" in shown
        assert ("database hosts: 4" in shown) == (command == "plan")
    assert status("breakeven", str(CONFIG / "spirt.yaml"), str(CONFIG / "all-reduce.yaml")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "note: spirt: architecture: spirt: functions.spirt.initialise has no model" in shown
    assert "[projected] with your settings: " in shown


@pytest.mark.parametrize("name", ["mine", "walk", "../mine"])
def test_an_architecture_that_nobody_has_described_has_no_projection(name: str) -> None:
    """An architecture without a description of its steps for the simulator raises NoProjection, which names the missing file."""
    mine = Architecture("mine", simulation=name if name != "mine" else "")
    with pytest.raises(
        NoProjection, match=f"^architecture: mine: crossover/simulation/mirror/{name}.py.* is not there"
    ):
        models_of(mine)


def test_a_model_of_ones_own_is_projected_by_its_parameters() -> None:
    """The workload of an unknown model follows from a given number of parameters, and is refused without one."""
    mine = load(CONFIG / "spirt.yaml", ["training.model=mine:model"])
    assert Workload.from_experiment(mine, parameters=7_000).parameters == 7_000
    with pytest.raises(NoProjection):
        Workload.from_experiment(mine)


def test_a_run_that_would_be_stopped_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` warns if a run would exceed its budget or its maximum duration."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, result(SPIRT, epochs=3))
    (tmp_path / "results").mkdir()
    (tmp_path / "spirt").rename(tmp_path / "results" / "spirt")
    narrow = replace(SPIRT, lifetime=Lifetime(budget_usd=0.001, maximum_run_hours=0.001))
    said = "\n".join(plan.describe_run(narrow))
    assert "! exceeds lifetime.maximum_run_hours" in said and "! exceeds lifetime.budget_usd" in said


def test_what_cannot_run_has_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    """`project` ends with status 2 and prints no dollars if AWS would not run the experiment."""
    config = str(CONFIG / "all-reduce-cifar10.yaml")
    sized = ("--parameters", "1300000000", "--set", "training.epochs=1", "--repetitions", "20")
    assert status("project", config, *sized) == 2
    said = capsys.readouterr()
    assert "$" not in said.out and "AWS would not run this, so there is no projection" in said.err


@pytest.mark.parametrize(
    ("profile", "text", "expected"),
    [
        ("", "[default]\nregion = eu-west-1\n", "eu-west-1"),
        ("work", "[profile work]\nregion = ap-south-1\n[default]\nregion = eu-west-1\n", "ap-south-1"),
        ("nobody", "[default]\nregion = eu-west-1\n", ""),
        ("", "[default\nno section", ""),
        ("", None, ""),
    ],
    ids=["default", "named", "unknown profile", "unreadable", "no file"],
)
def test_the_region_of_a_profile_is_the_users(
    profile: str, text: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's region is that of the environment, else that of the AWS profile, else ""."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    if text is not None:
        (tmp_path / "config").write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    assert plan.find_users_region() == expected
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert plan.find_users_region() == "us-west-2"
