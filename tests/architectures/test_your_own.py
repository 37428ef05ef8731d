"""docs/your-own.md as it stands: its files in a folder, its commands there, and what they print."""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from crossover import own_code, validation
from crossover.architecture import load as architecture_of
from crossover.experiment import Experiment
from crossover.learning.datasets import load
from crossover.learning.reference import train_reference
from crossover.reports.folder import RunFolder
from crossover.running import run_inline, run_local

PAGE = Path(__file__).parents[2] / "docs" / "your-own.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EVERY = bool(os.environ.get("CROSSOVER_EVERY_CALL"))
ARCHITECTURES = ["all-reduce", "spirt", "p2p-instance", "mlless"]
RUNS = [(where, name, each) for where in ("inline", "local") for name in ("table", "tokens") for each in ARCHITECTURES]
QUICK = [("inline", "tokens", "p2p-instance"), ("local", "table", "all-reduce")]


def written(folder: Path) -> list[str]:
    """The page's files in `folder`; its console blocks."""
    consoles = []
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            consoles.append(text)
        else:
            name = text.partition("\n")[0].removeprefix("# ")
            (folder / name).write_text(text, encoding="utf-8")
    return consoles


def words(line: str) -> str:
    """A line without what depends on the machine: figures, their width, the break where a terminal ends."""
    return " ".join(re.sub(r"\d[\d.,]*", "0", line).split())


def run(command: str, folder: Path) -> str:
    program, *arguments = shlex.split(command)
    called = {"python": [sys.executable], "crossover": [sys.executable, "-m", "crossover.cli"]}[program]
    done = subprocess.run([*called, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("number", [0, 1], ids=["table", "tokens"])
def test_the_pages_commands_print_what_it_says(tmp_path: Path, number: int) -> None:
    printed: list[str] = []
    console = written(tmp_path)[number]
    for line in console.splitlines():
        if line.startswith("$ "):
            printed += map(words, run(line[2:], tmp_path).splitlines())
        elif line != "...":
            assert words(line) in printed, line
            del printed[: printed.index(words(line)) + 1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    run("python diabetes.py", tmp_path)
    own_code.look_in(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("where", "name", "architecture"), RUNS if EVERY else QUICK)
def test_both_train_where_the_page_says(folder: Path, where: str, name: str, architecture: str) -> None:
    """Every epoch improves on the untrained model; what claims the reference's bits has them, on a transformer's dropout too."""
    experiment = validation.load(folder / f"{name}.yaml", [f"architecture={architecture}", "training.epochs=2"])
    here = run_inline if where == "inline" else run_local
    found: RunFolder = here(experiment, folder / "out", lambda progress: None)
    epochs = found.result["epochs"]
    assert found.result["outcome"] == "finished" and not found.result["incomplete"] and len(epochs) == 2
    assert epochs[1]["val_loss"] < epochs[0]["val_loss"]
    if architecture != "mlless":
        assert found.result["final"]["parameters_sha256"] == reference(experiment)


def reference(experiment: Experiment) -> str:
    resolved = architecture_of(experiment.architecture).resolve(experiment)
    return hashlib.sha256(train_reference(resolved, load(resolved))[0]).hexdigest()
