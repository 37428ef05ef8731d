"""Calibration from a run's records."""

import json
from pathlib import Path

import pytest

from crossover.errors import DataError
from crossover.experiment import Experiment, ImageSize
from crossover.running.inline import run_inline
from crossover.simulation import AWS, Workload, simulate
from crossover.simulation.measured import calibrate_from_runs
from tests.architectures.harness import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an inline SPIRT run of three epochs."""
    out = tmp_path_factory.mktemp("measured")
    run_inline(small("spirt", epochs=3), out, lambda progress: None)
    return out


def written(folder: Path, out: Path, change: object = None, **result: object) -> Path:
    """Copy a run to `out` and return that folder. `change`: a function that changes each record; `result`: fields of result.json that
    differ.
    """
    out.mkdir()
    plain = json.loads((folder / "result.json").read_text("utf-8")) | result
    (out / "result.json").write_text(json.dumps(plain), "utf-8")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    if callable(change):
        records = [change(record) for record in records]
    (out / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return out


def with_compute(seconds_per_sample: float, *, figure: str) -> object:
    """Return a function that sets the record's `figure` of each stage `compute` to this time for each sample, and marks the record as
    warm; it changes the stages in place.
    """

    def change(record: dict[str, object]) -> dict[str, object]:
        """Return the changed record."""
        stages = record["stages"]
        assert isinstance(stages, list)
        for stage in stages:
            if stage["stage"] == "compute":
                assert isinstance(record["samples"], int)
                stage[figure] = seconds_per_sample * record["samples"]
        return record | {"cold": False}

    return change


@pytest.mark.slow
def test_computing_comes_from_processor_seconds_of_a_local_run(folder: Path, tmp_path: Path) -> None:
    """Check that the seconds per sample of a run inline are taken from its CPU seconds, which other processes do not change, and that other
    figures stay.
    """
    found = calibrate_from_runs([written(folder, tmp_path / "run", with_compute(0.25, figure="cpu_s"))])
    assert found.sample_s["small_cnn"] == pytest.approx(0.25)
    assert found.compute_sigma == pytest.approx(0.0, abs=1e-9)
    assert found.objects == AWS.objects
    assert found.init_torch_s == AWS.init_torch_s
    assert "small_cnn: 250 ms a sample" in found.basis[-1]
    setting = small("spirt")
    run = simulate(setting, found.without_stragglers())
    assert run.steps["compute_gradients"].stages["compute"][0] == pytest.approx(
        0.25 * sum(Workload.from_experiment(setting).samples) * 4
    )


def test_a_run_on_aws_gives_init_and_the_clocks_seconds_at_one_vcpu(folder: Path, tmp_path: Path) -> None:
    """Check that a run on AWS gives the seconds of INIT, and seconds per sample by the clock."""

    def change(record: dict[str, object]) -> dict[str, object]:
        """Return the record with the memory of its step; round 0 starts cold."""
        record = with_compute(0.5, figure="wall_s")(record)  # type: ignore[operator]
        torch = record["step"] in ("compute_gradients", "detect_convergence", "initialise", "collect")
        return (
            record
            | {"memory_mb": 3_538 if torch else 512}
            | ({"cold": True, "init_s": 7.0 if torch else 1.5} if record["round"] == 0 else {})
        )

    found = calibrate_from_runs([written(folder, tmp_path / "run", change, where="aws")])
    assert (found.init_s, found.init_torch_s) == (1.5, 7.0)
    assert found.sample_s["small_cnn"] == pytest.approx(0.5)  # one thread: two vCPUs' worth of memory adds nothing
    assert "on AWS" in found.basis[-1]


def test_stragglers_are_fitted_to_equal_computations(folder: Path, tmp_path: Path) -> None:
    """The spread of computing times is fitted to records of equal work; the seconds per sample stay within 50 % of the middle."""
    factors = [0.5, 1.0, 2.0]

    def change(record: dict[str, object]) -> dict[str, object]:
        """Return the record with its computation slowed by one of the factors; records of other steps stay as they are."""
        if record["step"] != "compute_gradients":
            return record
        factor = factors[(int(str(record["worker"])) + int(str(record["round"]))) % 3]
        return with_compute(0.1 * factor, figure="cpu_s")(record)  # type: ignore[operator,no-any-return]

    found = calibrate_from_runs([written(folder, tmp_path / "run", change)])
    assert 0.3 < found.compute_sigma < 0.8  # of logarithms -0.69, 0, 0.69
    assert found.sample_s["small_cnn"] == pytest.approx(0.1, rel=0.5)


@pytest.mark.slow
def test_what_a_filter_lets_through_comes_from_the_bytes_stored(tmp_path: Path) -> None:
    """Check that a simulated MLLess run stores the bytes of the run from which it was calibrated."""
    setting = small("mlless", epochs=3)
    run = run_inline(setting, tmp_path, lambda progress: None)
    found = calibrate_from_runs([tmp_path])
    stored = sum(r["traffic"]["tensor_store"]["bytes_out"] for r in run.records if r["step"] == "train")
    projected = simulate(setting, found, keep_records=True)
    told = sum(r["traffic"]["tensor_store"]["bytes_out"] for r in projected.records if r["step"] == "train")
    assert 0 < found.significant < 1
    assert told == pytest.approx(stored, rel=0.02)


def test_what_measured_no_computing_is_refused(folder: Path, tmp_path: Path) -> None:
    """Runs without computing, of a fleet, with growing images or without files raise DataError as calibrations."""
    none = written(folder, tmp_path / "none", lambda record: record | {"stages": []})
    with pytest.raises(DataError, match="no record has a stage compute"):
        calibrate_from_runs([none])
    plain: Experiment = small("gpu")
    fleet = written(folder, tmp_path / "fleet", experiment=plain.to_plain())
    with pytest.raises(DataError, match="says nothing of functions"):
        calibrate_from_runs([fleet])
    grown = small("spirt", image_size=ImageSize(begin=4, step=2))
    with pytest.raises(DataError, match="its images grew with the epochs"):
        calibrate_from_runs([written(folder, tmp_path / "grown", experiment=grown.to_plain())])
    with pytest.raises(DataError, match="no such file; give the folder of a run"):
        calibrate_from_runs([tmp_path / "nowhere"])
