"""What people type at first: each refusal says what was meant instead."""

from pathlib import Path

import pytest

from tests.commands import status

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config"
RUN = str(ROOT / "docs" / "results" / "all-reduce-cifar10-fast")
MODEL = """
import torch


def network(classes, input_shape):
    return torch.nn.Linear(4, classes)


raise SystemExit("imported")
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["advise", "two.py"],
            "two.py: 2 functions may make the model; expected two.py:FACTORY, with first or second for",
        ),
        (["advise", "none.py"], "none.py: no function takes (classes, input_shape); expected none.py:FACTORY"),
        (["advise", "mine.py"], "--data: is missing; expected a CSV of numbers, or module:loader"),
        (["init", "--data", "trips.csv"], "--model: missing, and standard input is not a terminal"),
        (
            ["init", "--model", "mine.py", "--data", "trips.csv", "--every", "week", "--gpu-quota", "-1"],
            "--gpu-quota: '-1' is not a quota",
        ),
        (
            ["advise", "trips.csv"],
            "trips.csv: is data; expected the YAML of an experiment. `crossover advise model.py:factory ",
        ),
        (["advise", "trips.csv", "--data", "trips.csv", "--label", "a"], "trips.csv: is data; expected the YAML"),
        (["run", "trips.csv"], "--data trips.csv` writes one"),
        (["run", "mine.py"], "mine.py: is a Python file; expected the YAML of an experiment"),
        (["doctor", "mine.py"], "with network for FACTORY"),
        (["study", str(CONFIG / "spirt.yaml")], "this is an experiment; expected a study, with `base:`"),
        (["plan", str(CONFIG / "nope.yaml")], "no such file; expected one of "),
        (["plan", str(CONFIG / "spirt.yml")], "did you mean "),
        (["plan", str(CONFIG / "sprit.yaml")], "spirt.yaml?"),
        (["plan", "elsewhere/spirt.yaml"], "elsewhere: no such folder"),
        (
            ["plan", str(CONFIG / "spirt.yaml"), "--set", "functions.memory_mb=3GB"],
            "functions.memory_mb: '3GB' is not allowed; expected names, each with an integer >= 128 and <= 10240, such as "
            "functions.memory_mb.default=1769",
        ),
    ],
)
def test_a_mistake_is_refused_with_what_was_meant(
    command: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong command ends with status 2 and at most two lines, which contain `words`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "trips.csv").write_text("a,b\n1,2\n")
    (tmp_path / "two.py").write_text("def first(classes, input_shape): ...\ndef second(classes, input_shape): ...\n")
    (tmp_path / "none.py").write_text("def loader(experiment): ...\n")
    assert status(*command) == 2
    said = capsys.readouterr().err
    assert words in said and len(said.strip().splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("advise", str(CONFIG / "all-reduce-s3.yaml"), "--target", "85"),
            "--target: 85 is no accuracy, which is a share; did you mean 0.85?",
        ),
        (
            ("advise", str(CONFIG / "all-reduce-s3.yaml"), "--set", "training.steps=57"),
            "leave it out and set training.epochs",
        ),
        (
            ("plan", str(CONFIG / "all-reduce-s3.yaml"), "--set", "training.target=90"),
            "training.target: 90 is no accuracy, which is a share; did you mean 0.9?",
        ),
        (("compare", RUN, "--at", "85"), "--at: 85 is no accuracy, which is a share; did you mean 0.85?"),
        (("advice",), "Did you mean 'advise'?"),
    ],
)
def test_a_likely_slip_is_answered_with_what_was_meant(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped command or option ends with status 2 and a suggestion, `words`."""
    assert status(*arguments) == 2
    assert words in " ".join(capsys.readouterr().err.split())
