"""Minutes and dollars of a run before it is run: by an earlier run, by the project's own, by a paper; never by a guess."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.cli import estimates, plan
from crossover.experiment import Experiment, Lifetime, Training
from crossover.reports import prices, published
from crossover.validation import load

CONFIG = Path(__file__).parents[3] / "config"
EXPERIMENTS = [path for path in sorted(CONFIG.glob("*.yaml")) if "\narchitecture:" in path.read_text()]
SPIRT = load(CONFIG / "spirt.yaml")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_that_comes_with_the_project_has_an_estimate(path: Path, tmp_path: Path) -> None:
    found = estimates.estimate(load(path), results=tmp_path)
    assert found is not None and found.minutes > 0 and found.usd > 0
    assert ("local run" in found.words) or ("comparison-2025" in found.words)


@pytest.mark.parametrize(
    ("name", "row"),
    [("spirt", "MobileNet / SPIRT"), ("mlless", "MobileNet / MLLess")],  # AllReduce's print deviates from its formula,
)
def test_an_epoch_by_the_paper_costs_what_the_paper_says(name: str, row: str, tmp_path: Path) -> None:
    """Its formula has the x86 price and GB of 1,000 MB; ours AWS's for ARM, and the experiment's memory."""
    experiment = load(CONFIG / f"{name}-cifar10.yaml")
    found = estimates.estimate(experiment, results=tmp_path)
    assert found is not None
    printed = next(each for each in published.rows(table="Table 2") if each.row == row).figures
    price = prices.load().of("lambda.arm64.gb_second").usd / 0.0000166667
    memory = max(experiment.functions.memory_of("compute", torch=True), 0) / 1_024 / (printed["memory_mb"] / 1_000)
    usd = next(line.usd for line in found.lines if line.item == "Lambda duration") / experiment.training.epochs
    assert usd == pytest.approx(printed["total_usd"] * price * memory, rel=0.01)


def test_functions_side_by_side_take_the_time_of_one(tmp_path: Path) -> None:
    spirt = estimates.from_paper(load(CONFIG / "spirt-cifar10.yaml"))
    reduce = estimates.from_paper(load(CONFIG / "all-reduce-cifar10.yaml"))
    assert spirt is not None and reduce is not None
    assert spirt.epoch_s == pytest.approx(15.44) and reduce.epoch_s == pytest.approx(24 * 14.382)
    half = load(CONFIG / "spirt-cifar10.yaml", ["training.batch_size=256"])
    smaller = estimates.from_paper(half)
    assert smaller is not None and smaller.epoch_s == pytest.approx(7.72)


def result(experiment: Experiment, *, epochs: int = 3, **more: Any) -> dict[str, Any]:
    lines = [
        {"item": "Lambda duration, arm64", "quantity": 12.0, "usd": 1.0},
        {"item": "Step Functions transitions", "quantity": 1_200, "usd": 1.0},
        {"item": "EC2 m7g.large x 4, tensor database", "quantity": 9.0, "usd": 1.0},
    ]
    return {
        "outcome": "finished",
        "label": "measured-local",
        "started_at": "2027-01-01T10:00:00+00:00",
        "experiment": experiment.resolved(),
        "duration_s": 10.0 + 7.0,
        "epochs": [{"wall_s": wall_s} for wall_s in (2.0, 9.0, 2.0)[:epochs]],
        "cost": {"lines": lines},
        **more,
    }


def written(folder: Path, plain: dict[str, Any]) -> Path:
    (folder / "spirt").mkdir()
    (folder / "spirt" / "result.json").write_text(json.dumps(plain))
    return folder


def test_an_earlier_run_tells_of_the_next(tmp_path: Path) -> None:
    experiment = replace(SPIRT, training=replace(SPIRT.training, epochs=10))
    found = estimates.estimate(experiment, results=written(tmp_path, result(SPIRT)))
    assert found is not None and "measured-local run of 2027-01-01" in found.words
    seconds = (17.0 - 3 * 2.0) + 10 * 2.0  # the median epoch; the rest is its start
    assert found.minutes == pytest.approx(seconds / 60)
    quantities = {line.item: line.quantity for line in found.lines}
    assert quantities["Lambda duration"] == pytest.approx(12.0 / 3 * 10)
    assert quantities["EC2 m7g.large x 4, tensor database"] == pytest.approx(4 * 60 / 3_600)  # a minute at least


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 2},
        {"architecture": "all_reduce"},
        {"training": replace(SPIRT.training, batch_size=30)},
        {"training": replace(SPIRT.training, model="mobilenet")},
    ],
)
def test_a_run_of_other_work_tells_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    folder = written(tmp_path, result(SPIRT)) / "spirt"
    assert estimates.from_results(SPIRT, folder) is not None
    assert estimates.from_results(replace(SPIRT, **change), folder) is None


@pytest.mark.parametrize("plain", [result(SPIRT, outcome="failed"), result(SPIRT, epochs=0)])
def test_a_run_that_failed_or_trained_nothing_tells_nothing(plain: dict[str, Any], tmp_path: Path) -> None:
    assert estimates.from_results(SPIRT, written(tmp_path, plain) / "spirt") is None


def test_without_a_basis_nothing_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    strange = replace(SPIRT, name="mine", training=Training(model="mine:model"))
    assert estimates.estimate(strange, results=tmp_path) is None
    assert plan.of_a_run(strange) == [
        "a run: nothing to project from; crossover run on this machine once (results/mine) gives a basis"
    ]


def test_a_run_that_would_be_stopped_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, result(SPIRT, epochs=3))
    (tmp_path / "results").mkdir()
    (tmp_path / "spirt").rename(tmp_path / "results" / "spirt")
    narrow = replace(SPIRT, lifetime=Lifetime(budget_usd=0.001, maximum_run_hours=0.001))
    said = "\n".join(plan.of_a_run(narrow))
    assert "! longer than lifetime.maximum_run_hours" in said and "! dearer than lifetime.budget_usd" in said
