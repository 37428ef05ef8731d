"""`crossover run`: progress for people, in lines or with a bar, and a run from the command line to its folder."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from rich.console import Console

from crossover.cli.arguments import format_epoch, show_progress
from crossover.experiment import Experiment, Metric
from crossover.running.monitor import Progress
from tests.commands import status

DONE = Progress(
    epoch=3, epochs=20, train_loss=0.41214, val_loss=0.39, val_metric=0.912, metric=Metric(), seconds=12.34, usd=0.00123
)
MINE = Experiment(name="mine", architecture="spirt")


def test_an_epoch_is_one_line() -> None:
    """A finished epoch is printed as one line with losses, accuracy, seconds and dollars."""
    assert format_epoch(DONE) == (
        "epoch  3/20  loss 0.4121  validation loss 0.3900  accuracy  91.20 %     12.3 s  $0.0012 at AWS's prices"
    )


def test_what_is_unknown_is_left_out() -> None:
    """The line of an epoch leaves out an unknown training loss and unknown dollars."""
    first = Progress(
        epoch=1, epochs=2, train_loss=None, val_loss=2.0, val_metric=0.1, metric=Metric(), seconds=1.0, usd=None
    )
    assert format_epoch(first) == "epoch 1/2  validation loss 2.0000  accuracy  10.00 %      1.0 s"


def shown(*, terminal: bool) -> str:
    """Return what the display of progress writes for one finished epoch. `terminal`: write to a terminal rather than to a file."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, soft_wrap=True, highlight=False)
    with show_progress(MINE, where="local", out=Path("results/mine"), console=console) as on_progress:
        on_progress(DONE)
    return text.getvalue()


def test_plain_lines_where_the_output_is_no_terminal() -> None:
    """Output to a file has a first line, one for the epoch and a last line, without control characters."""
    lines = shown(terminal=False).splitlines()
    assert lines[0] == "mine: spirt, small_cnn on digits, 4 workers, at most 20 epochs, on this machine's local cloud"
    assert lines[1] == format_epoch(DONE)
    assert lines[2].startswith("finished in ")
    assert lines[2].endswith("; results in results/mine")
    assert len(lines) == 3


def test_a_bar_on_a_terminal() -> None:
    """Output to a terminal has the epoch's line and, with control characters, a bar that counts epochs."""
    text = shown(terminal=True)
    assert "\x1b[" in text
    assert format_epoch(DONE) in text
    assert " 3/20" in text.replace(format_epoch(DONE), "")


def test_a_failed_run_is_not_called_finished() -> None:
    """The display of progress does not print "finished" if the run raises an error."""
    text = io.StringIO()
    with (
        pytest.raises(ZeroDivisionError),
        show_progress(MINE, where="local", out=Path("x"), console=Console(file=text)),
    ):
        raise ZeroDivisionError
    assert "finished" not in text.getvalue()


@pytest.mark.parametrize(
    ("code", "words"),
    [("AccessDeniedException", "lack a permission"), ("ExpiredTokenException", "does not accept the credentials")],
)
def test_credentials_that_may_look_and_not_start(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run on AWS whose credentials may read but not start executions ends with status 2 and the message `words`."""

    def refused(*rest: Any, **named: Any) -> None:
        """Raise the error with which AWS refuses to start an execution."""
        raise ClientError({"Error": {"Code": code, "Message": "you may not"}}, "StartExecution")

    monkeypatch.setattr("crossover.cli.run._check_deployed", lambda experiment, config, take_over: experiment)
    monkeypatch.setattr("crossover.running.deployed.run_aws", refused)
    assert status("run", "config/all-reduce.yaml", "--on", "aws", "--out", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert words in said and code in said


def test_from_the_command_line_to_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two inline runs into one folder keep the earlier one in a subfolder, and `compare` reads the later one beside a third."""
    out = tmp_path / "mine"
    config = tmp_path / "mine.yaml"
    config.write_text("name: mine\narchitecture: spirt\nworkers: 2\ntraining: {epochs: 2, batch_size: 240}\n")
    for epochs in (1, 2):
        assert (
            status("run", str(config), "--on", "inline", "--set", f"training.epochs={epochs}", "--out", str(out)) == 0
        )
        assert len(json.loads((out / "result.json").read_text())["epochs"]) == epochs
    (earlier,) = [each for each in out.iterdir() if each.is_dir()]
    assert (
        len(json.loads((earlier / "result.json").read_text())["epochs"]) == 1
        and (earlier / "model.safetensors").exists()
    )
    told = capsys.readouterr().out
    assert "epoch 2/2" in told
    assert str(out / "report.html") in told and "On AWS, by simulation: " in told
    projection = json.loads((out / "projection.json").read_text())
    assert projection["label"] == "projected" and projection["usd"]["p5"] < projection["usd"]["p95"]
    assert "total AWS bill" in (out / "report.html").read_text()
    other = tmp_path / "other"
    assert status("run", str(config), "--on", "inline", "--set", "training.epochs=1", "--out", str(other)) == 0
    assert status("compare", str(out), str(other), "--out", str(tmp_path / "both")) == 0
    assert (tmp_path / "both" / "report.html").stat().st_size > 0
    assert len((tmp_path / "both" / "comparison.csv").read_text().splitlines()) == 3
