"""docs/your-own.md as it stands: its files in a folder, its commands there, and what they print."""

import hashlib
from pathlib import Path

import pytest

from crossover import user_code, validation
from crossover.experiment import Experiment
from crossover.learning.datasets import load
from crossover.learning.reference import train_reference
from crossover.reports.folder import RunFolder
from crossover.running.deployed import run_local
from crossover.running.inline import run_inline
from crossover.workflow.architecture import load as architecture_of
from tests.architectures.worked_pages import check, run, written
from tests.sampling import WHOLE

PAGE = "your-own.md"
ARCHITECTURES = ["all-reduce", "spirt", "p2p-instance", "mlless"]
RUNS = [(where, name, each) for where in ("inline", "local") for name in ("table", "tokens") for each in ARCHITECTURES]
QUICK = [("inline", "tokens", "p2p-instance"), ("local", "table", "all-reduce")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["table", "tokens"])
def test_the_pages_commands_print_what_it_says(tmp_path: Path, number: int) -> None:
    """Run the commands of each console block of the page, and check that they print the lines shown."""
    check(written(PAGE, tmp_path)[number], tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files that the page shows, after a run of the script that makes its data. It is the working folder and that
    of user code.
    """
    monkeypatch.chdir(tmp_path)
    written(PAGE, tmp_path)
    run("python diabetes.py", tmp_path)
    user_code.set_folders(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name", "architecture"), RUNS if WHOLE else QUICK)
def test_both_train_where_the_page_says(folder: Path, where: str, name: str, architecture: str) -> None:
    """Check that the page's experiments train with each architecture: the loss falls, and the bits are the reference's except MLLess's."""
    experiment = validation.load(folder / f"{name}.yaml", [f"architecture={architecture}", "training.epochs=2"])
    here = run_inline if where == "inline" else run_local
    found: RunFolder = here(experiment, folder / "out", lambda progress: None)
    epochs = found.result["epochs"]
    assert found.result["outcome"] == "finished" and not found.result["incomplete"] and len(epochs) == 2
    assert epochs[1]["val_loss"] < epochs[0]["val_loss"]
    if architecture != "mlless":
        assert found.result["final"]["parameters_sha256"] == reference(experiment)


def reference(experiment: Experiment) -> str:
    """Return the SHA-256 of the model that one process trains."""
    resolved = architecture_of(experiment.architecture).resolve(experiment)
    return hashlib.sha256(train_reference(resolved, load(resolved))[0]).hexdigest()
