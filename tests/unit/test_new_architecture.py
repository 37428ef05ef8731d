"""An eighth architecture whose files are not finished: one message that names the file and what it lacks."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import functions
import stacks
from cdk import synthesis
from crossover import workflow
from crossover.errors import ConfigError
from crossover.experiment import Experiment

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Files of functions/ and stacks/ that stand beside those of the project."""
    monkeypatch.setattr(workflow, "__file__", str(tmp_path / "crossover" / "workflow.py"))
    monkeypatch.setattr(synthesis, "ROOT", tmp_path)
    for package in (functions, stacks):
        folder = tmp_path / package.__name__
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    def put(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        importlib.invalidate_caches()

    yield put
    for name in ("functions.eighth", "stacks.eighth"):
        sys.modules.pop(name, None)


def test_a_module_without_an_architecture_is_not_unknown(write: Write) -> None:
    write("functions/eighth.py", "ARCHITEKTUR = 1\n")
    with pytest.raises(
        ConfigError, match=r"'eighth': functions/eighth.py defines no ARCHITECTURE = Architecture\('eighth'"
    ):
        workflow.load("eighth")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "\nimport no_such_thing\n",
            "functions/eighth.py, line 2: ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        ("def broken(:\n", "functions/eighth.py, line 1: SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_names_its_line(write: Write, text: str, said: str) -> None:
    write("functions/eighth.py", text)
    with pytest.raises(ConfigError, match=said):
        workflow.load("eighth")


def test_a_stack_file_without_a_stack_says_so(write: Write) -> None:
    write("stacks/eighth.py", "from cdk import names\n")
    with pytest.raises(ConfigError, match=r"'eighth': stacks/eighth.py defines no STACK"):
        synthesis._stack_of(Experiment(name="x", architecture="eighth"))
