"""Curves for TensorBoard and MLflow: the figures always, the tools themselves where they are installed."""

import importlib.util
from pathlib import Path

import pytest

from crossover.errors import MissingTool
from crossover.reports import folder, tracking
from crossover.reports.folder import RunFolder
from tests.unit.reports.example_run import STARTED_AT, spirt

EXAMPLE = spirt(epochs=3)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Return the written folder of an example's run."""
    return folder.write(tmp_path / "spirt", result=EXAMPLE.result(), records=EXAMPLE.records)


def test_every_epoch_has_its_figures_at_its_time(run: RunFolder) -> None:
    """`iter_points` gives each epoch with its moment and its numbers; a local run's dollars have names that end in `_projected`."""
    found = list(tracking.iter_points(run))
    assert [epoch for epoch, _, _ in found] == [1, 2, 3]
    for (_, at, figures), row, given in zip(found, run.result["epochs"], EXAMPLE.epochs, strict=True):
        assert at == pytest.approx(given["at"], abs=2e-3) and at > STARTED_AT
        assert figures["val_accuracy"] == row["val_metric"] and figures["train_loss"] == row["train_loss"]
        assert figures["full_usd_projected"] == row["full_usd"] and "full_usd" not in figures
        assert "learning_rate" not in figures  # this run has none


def test_dollars_that_aws_billed_are_not_called_projected(tmp_path: Path) -> None:
    """The tracked dollars of a run on AWS are named `full_usd`, without `projected`."""
    result = EXAMPLE.result(where="aws", label="measured-aws")
    billed = folder.write(tmp_path / "aws", result=result, records=EXAMPLE.records)
    (_, _, figures), *_ = tracking.iter_points(billed)
    assert "full_usd" in figures and "full_usd_projected" not in figures


@pytest.mark.parametrize("tool", ["tensorboard", "mlflow"])
def test_without_its_library_it_says_what_to_install(
    tool: tracking.Logger, run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A tool whose library is missing raises MissingTool with the command that installs it, and writes nothing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for attempt in (
        lambda: tracking.check_installed(tool),
        lambda: tracking.write_curves(run, tool, where=str(tmp_path / "x")),
    ):
        with pytest.raises(MissingTool, match=rf"--log {tool}: .* pip install 'crossover\[{tool}\]'"):
            attempt()
    assert not (tmp_path / "x").exists()


@pytest.mark.filterwarnings("default")
def test_tensorboard_reads_what_was_written(run: RunFolder, tmp_path: Path) -> None:
    """TensorBoard reads a run's curves back, and the command that opens them is returned."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    opened = tracking.write_curves(run, "tensorboard", where=str(tmp_path / "board"))
    assert opened == f"tensorboard --logdir {tmp_path / 'board'}"
    events = EventAccumulator(str(tmp_path / "board" / "spirt"))
    events.Reload()
    for name in ("val_accuracy", "full_usd_projected"):
        read = [(each.step, each.tensor_proto.float_val[0]) for each in events.Tensors(name)]
        given = [(epoch, figures[name]) for epoch, _, figures in tracking.iter_points(run)]
        assert read == [(step, pytest.approx(value, rel=1e-6)) for step, value in given]


@pytest.mark.filterwarnings("default")
def test_mlflow_reads_what_was_written(run: RunFolder, tmp_path: Path) -> None:
    """MLflow reads a run's curves, settings and label back, and the command that opens them is returned."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    opened = tracking.write_curves(run, "mlflow", where=str(tmp_path / "flow"))
    uri = opened.removeprefix("mlflow ui --backend-store-uri ")
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("crossover").experiment_id])
    assert found.info.status == "FINISHED" and found.data.tags["label"] == "measured-local"
    assert found.data.params["training.batch_size"] == "60"
    history = client.get_metric_history(found.info.run_id, "val_accuracy")
    assert [(m.step, m.value) for m in history] == [(e["epoch"], e["val_metric"]) for e in run.result["epochs"]]
