"""A target needs runs that show it; a run of another experiment shows nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.advice import candidates, evidence
from crossover.advice.candidates import OWN, UNKNOWN
from crossover.errors import ConfigError
from crossover.experiment import Exchange, Experiment
from crossover.reports import prices
from crossover.validation import load
from tests.unit.reports.example_run import spirt

CONFIG = Path(__file__).parents[3] / "config"
BASE = load(CONFIG / "all-reduce-s3.yaml")


def kept(folder: Path, experiment: Experiment, curve: list[float], **changes: Any) -> Path:
    """Write the folder of a finished run whose validation metric follows `curve`, and return it. `changes`: fields of result.json to
    replace.
    """
    folder.mkdir(parents=True)
    run = spirt().result()
    epochs = [run["epochs"][0] | {"epoch": n, "val_metric": value} for n, value in enumerate(curve, start=1)]
    made = {"architecture": "all_reduce", "outcome": "finished", "epochs": epochs, "data": {}, **changes}
    (folder / "result.json").write_text(json.dumps({**run, **made, "experiment": experiment.to_plain()}))
    (folder / "metrics.jsonl").write_text("")
    return folder


def test_epochs_to_the_target_are_those_of_the_slowest_seed(tmp_path: Path) -> None:
    """The number of epochs that a target takes is the largest over the runs of one setting; the line names the range and the seeds."""
    runs = [
        kept(tmp_path / "one", BASE, [0.5, 0.8, 0.9]),
        kept(tmp_path / "two", replace(BASE, seed=2, workers=4), [0.5, 0.9, 0.9]),
    ]
    (setting,), (said,) = evidence.settings_reaching(BASE, runs, 0.85)
    assert setting.experiment.training.epochs == 3
    assert "2 to 3 epochs over 2 seeds" in said


def test_whoever_computes_the_same_updates_shows_the_same(tmp_path: Path) -> None:
    """Runs with other workers and batches but equal samples per update count as one setting; other samples per update make another."""
    halved = replace(BASE, workers=8, training=replace(BASE.training, batch_size=30))
    runs = [kept(tmp_path / "four", BASE, [0.9]), kept(tmp_path / "eight", halved, [0.9])]
    assert len(evidence.settings_reaching(BASE, runs, 0.85)[0]) == 1
    larger = replace(BASE, training=replace(BASE.training, batch_size=120))
    runs.append(kept(tmp_path / "larger", larger, [0.9]))
    assert len(evidence.settings_reaching(BASE, runs, 0.85)[0]) == 2


def test_a_target_without_evidence_is_refused(tmp_path: Path) -> None:
    """`settings_reaching` raises ConfigError if no run is given or none reached the target; the error says what evidence would be."""
    run = kept(tmp_path / "one", BASE, [0.5, 0.6])
    for folders in ([], [run]):
        with pytest.raises(ConfigError, match="evidence would be") as refused:
            evidence.settings_reaching(BASE, folders, 0.99)
        assert "--target: 0.99" in str(refused.value)
    assert "target not reached" in str(refused.value)


def test_a_run_of_another_experiment_is_refused(tmp_path: Path) -> None:
    """`settings_reaching` raises ConfigError for a run with another model, and for a failed run."""
    other = replace(BASE, training=replace(BASE.training, model="mobilenet"))
    with pytest.raises(ConfigError, match=r"training\.model is mobilenet"):
        evidence.settings_reaching(BASE, [kept(tmp_path / "other", other, [0.9])], 0.5)
    with pytest.raises(ConfigError, match="its outcome is failed"):
        evidence.settings_reaching(BASE, [kept(tmp_path / "failed", BASE, [0.9], outcome="failed")], 0.5)


def test_a_run_on_part_of_the_data_shows_nothing_of_all_of_it(tmp_path: Path) -> None:
    """A run on fewer samples is refused as evidence, unless the difference is less than one update takes."""
    part = replace(BASE, data=replace(BASE.data, limit=480))
    with pytest.raises(ConfigError, match=r"480 samples \(data\.limit\), and this experiment's of all samples"):
        evidence.settings_reaching(BASE, [kept(tmp_path / "part", part, [0.9], data={"train_samples": 480})], 0.85)
    rest = replace(BASE, data=replace(BASE.data, limit=1_200))  # 1,438: what is left makes no update of 4 x 60
    assert evidence.settings_reaching(BASE, [kept(tmp_path / "rest", rest, [0.9], data={"train_samples": 1_200})], 0.85)


def test_local_steps_that_a_run_shows_compete_as_they_are(tmp_path: Path) -> None:
    """If a run with local steps is the evidence, all architectures that average models in the same way are candidates, with its settings
    only.
    """
    local = replace(BASE, exchange=Exchange(every="epoch", what="model"))
    (setting,), _ = evidence.settings_reaching(BASE, [kept(tmp_path / "local", local, [0.8, 0.9])], 0.85)
    own = [
        each
        for each in candidates.list_candidates(
            setting.experiment, samples=1_438, prices=prices.load(), least_mb=lambda _: 1_769
        )
        if each.updates == OWN
    ]
    assert {"all_reduce", "scatter_reduce", "spirt", "p2p_serverless"} <= {each.architecture for each in own}
    assert {(each.what, each.every, each.workers, each.batch_size) for each in own} == {("model", "epoch", 4, 60)}


def test_candidates_with_other_updates_are_marked_as_unknown() -> None:
    """Candidates with local steps, an outer optimizer, compressed gradients or MLLess's filter have updates of unknown accuracy."""
    found = candidates.list_candidates(BASE, samples=1_438, prices=prices.load(), least_mb=lambda _: 1_769)
    other = {(each.what, each.compression) for each in found if each.updates == UNKNOWN}
    assert {("model", "none"), ("delta", "none"), ("gradients", "powersgd"), ("gradients", "qsgd")} <= other
    assert ("gradients", "none") in other, "MLLess"


def test_evidence_is_tried_in_the_experiments_own_precision(tmp_path: Path) -> None:
    """A run in bf16 is evidence for an experiment in fp32: the candidates train in fp32, and the line says so."""
    run = kept(tmp_path / "one", replace(BASE, training=replace(BASE.training, precision="bf16")), [0.9])
    (setting,), (said,) = evidence.settings_reaching(BASE, [run], 0.85)
    assert setting.experiment.training.precision == "fp32"
    assert "trained in bf16, taken to hold in fp32" in said


def test_what_comes_with_the_project_is_evidence_for_what_it_is() -> None:
    """The runs shipped with the project are the evidence if no folders of runs are given, with their epochs and schedule."""
    asked = load(CONFIG / "all-reduce-cifar10.yaml")
    (setting, *_), _ = evidence.settings_reaching(asked, [], 0.85)
    assert setting.experiment.training.epochs == 16
    assert setting.experiment.training.schedule == "one_cycle"
