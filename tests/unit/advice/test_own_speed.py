"""The measured speed of a user's model is kept beside its file, and every command projects the model with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.advice import own_model, own_speed
from crossover.advice import question as subject
from crossover.advice.own_speed import Probe, adopt_kept_speed, find_speed, keep_speed
from crossover.cli.plan import estimate_by_simulation
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.simulation import AWS
from crossover.simulation.calibration import RATIO_SIGMA, UNMEASURED_SIGMA
from crossover.validation import load
from tests.unit.advice.test_own_model import NETWORK

MEASURED = Probe(ratio=3.0, spread=0.1, pairs=3, batch_size=8, seconds=1.0, peak_mb=100.0, batch_ratio=2.0)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Return an experiment with a model and a table of the user's own in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORK)
    Path("table.csv").write_text("".join(f"{n}.5,{n % 7}.25,{n % 2}\n" for n in range(200)))
    return load(own_model.write_experiment("net.py:network", "table.csv", 3))


def test_plan_projects_with_the_speed_that_advise_has_measured(experiment: Experiment) -> None:
    """After a speed is kept, `plan`, `advise` without a measurement, and the other commands take it, with its uncertainty, and say so."""
    workload = subject.make_sizes_function(experiment)(experiment)
    before = estimate_by_simulation(experiment, repetitions=1)
    measured = subject.build_question(experiment, measured=MEASURED)[0].calibration
    path = keep_speed(MEASURED, experiment, workload)
    assert path == Path("net-network.speed.json").absolute()
    for cloud in (adopt_kept_speed(AWS, experiment, workload), subject.build_question(experiment)[0].calibration):
        assert cloud.with_uncertainty_of(workload.model).level_sigma == RATIO_SIGMA < UNMEASURED_SIGMA
        assert cloud.sample_s == measured.sample_s and cloud.function_batch_s == measured.function_batch_s
    after = estimate_by_simulation(experiment, repetitions=1)
    assert after.minutes != before.minutes
    assert "multiply-accumulates" in before.words and "multiply-accumulates" not in after.words
    assert path.name in after.words


def test_a_speed_is_of_one_model_and_its_damage_is_told(experiment: Experiment) -> None:
    """A kept speed is not used for a model of other sizes, in another precision, or one that comes with the project; a damaged file is
    refused by name.
    """
    workload = subject.make_sizes_function(experiment)(experiment)
    path = keep_speed(MEASURED, experiment, workload)
    found = find_speed(experiment, workload)
    assert found is not None and replace(found, kept="") == MEASURED
    assert find_speed(experiment, replace(workload, macs=workload.macs + 1)) is None
    for other in ({"model": "mobilenet"}, {"precision": "bf16"}, {"memory_format": "contiguous"}):
        assert find_speed(replace(experiment, training=replace(experiment.training, **other)), workload) is None
    row = json.loads(path.read_text())
    for damage in (
        {"ratio": "fast"},
        {"ratio": 0.0},
        {"ratio": float("nan")},
        {"format": 9},
        {"two_threads": True},
    ):
        path.write_text(json.dumps(row | damage))
        with pytest.raises(ConfigError, match=rf"{own_speed.SUFFIX}: is no measured speed .* delete it"):
            find_speed(experiment, workload)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="delete it"):
        subject.build_question(experiment)
