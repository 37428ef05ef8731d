"""`crossover init`: answers become an experiment; a wrong answer is refused as soon as it is given, and asked for again."""

import io
import sys
from pathlib import Path

import pytest

from tests.commands import status

MODEL = """
import torch


def network(classes, input_shape):
    return torch.nn.Linear(input_shape[0], classes or 1)
"""
TABLE = "a,b,c,d,label\n" + "".join(f"{n},{n % 3},{n * n},1.5,{'xy'[n % 2]}\n" for n in range(20))


class Typed(io.StringIO):
    """Standard input of a terminal at which a user types lines."""

    def isatty(self) -> bool:
        """Return True, as a terminal does."""
        return True


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a model, a table and a folder of pictures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.py").write_text(MODEL)
    (tmp_path / "d.csv").write_text(TABLE)
    (tmp_path / "pictures").mkdir()
    return tmp_path


def test_four_answers_become_an_experiment_and_the_next_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`init` writes the YAML file from the four options, says what it chose, and prints the `advise` command with them."""
    options = ("--model", "answers.py", "--data", "d.csv", "--every", "week", "--gpu-quota", "8")
    assert status("init", *options) == 0
    said = capsys.readouterr()
    assert "next: crossover advise answers.yaml --probe --every week --gpu-quota 8\n" in said.out
    assert "written: answers.yaml (10 epochs, minibatches of 10 samples; change them there)\n" in said.out
    assert said.err.startswith("reading d.csv, then trying answers.py:network on it")
    assert "model: answers:network" in (folder / "answers.yaml").read_text()


def test_wrong_answers_are_asked_for_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each wrong answer on a terminal is followed by its reason and by the same question."""
    lines = ["nowhere.py", "answers.py", "pictures", "none.csv", "d.csv", "weekly", "week"]
    monkeypatch.setattr(sys, "stdin", Typed("\n".join([*lines, "I do not know", "?", ""])))
    assert status("init") == 0
    said = capsys.readouterr()
    asked = [said.out.count(words) for words in ("Which model?", "Which data?", "How often", "GPU quota?")]
    assert asked == [2, 3, 2, 2]
    told = said.err.partition("reading d.csv")[0]
    for reason in (
        "--model: nowhere.py: no such file; expected a Python file",
        "--data: pictures: is not a CSV file, but a folder.",
        "--data: none.csv: no such file; expected a CSV file, or module:loader",
        "--every: 'weekly' is not allowed; expected once, hour, day, week or month",
        "--gpu-quota: 'I do not know' is not a quota; expected none, or the vCPUs",
    ):
        assert reason in told
    assert "next: crossover advise answers.yaml --probe --every week\n" in said.out
    assert (folder / "answers.yaml").is_file()


def test_an_empty_answer_leaves_the_quota_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pressing Enter at the question of the quota means that it is unknown."""
    monkeypatch.setattr(sys, "stdin", Typed("\n"))
    assert status("init", "--model", "answers.py", "--data", "d.csv", "--every", "once") == 0
    assert "next: crossover advise answers.yaml --probe --every once\n" in capsys.readouterr().out


def test_options_of_the_table_and_epochs_are_those_of_advise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` without a terminal needs no quota, and takes --drop, --label, --numbers, --header and --epochs as `advise` does."""
    options = ("--drop", "label", "--label", "d", "--header", "--epochs", "3", "--drop", "a", "--numbers")
    (folder / "d.csv").write_text(TABLE.replace(",1.5,", ",1,", 3))
    assert status("init", "--model", "answers.py", "--data", "d.csv", "--every", "day", *options) == 0
    said = capsys.readouterr().out
    assert (
        "written: answers.yaml (3 epochs, " in said
        and "next: crossover advise answers.yaml --probe --every day\n" in said
    )
    assert (
        status(
            "init",
            "--model",
            "answers.py",
            "--data",
            "d.csv",
            "--every",
            "day",
            *options[:5],
            "--epochs",
            "7",
            *options[7:],
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "(3 epochs, " in said and "next: crossover advise answers.yaml --probe --every day --epochs 7\n" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "answers.py", "--data", "d.csv"), "--every: missing, and standard input is not a terminal"),
        (("--model", "no.py:network"), "--model: no.py: no such file"),
        (("--model", "answers.py", "--data", "no.py:load"), "--data: no.py: no such file"),
    ],
)
def test_a_wrong_option_is_refused_before_any_question(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong or missing option ends with status 2 and `words`."""
    assert status("init", *options) == 2
    assert words in capsys.readouterr().err
