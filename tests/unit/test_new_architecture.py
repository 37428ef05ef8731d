"""An eighth architecture whose files are not finished: one message that names the file and what it lacks."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import functions
import peers
import stacks
from cdk import synthesis
from crossover import workflow
from crossover.errors import ConfigError
from crossover.experiment import Experiment, from_resolved
from crossover.running.resumption import differing
from crossover.validation import schema, validate

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Files of functions/ and stacks/ that stand beside those of the project."""
    monkeypatch.setattr(workflow, "ROOT", tmp_path)
    monkeypatch.setattr(synthesis, "ROOT", tmp_path)
    for package in (functions, peers, stacks):
        folder = tmp_path / package.__name__
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    def put(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        importlib.invalidate_caches()

    yield put
    for name in [each for each in sys.modules if each.endswith((".eighth", ".ninth"))]:
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


EIGHTH = """
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from crossover.workflow import Architecture, step


@dataclass(frozen=True, kw_only=True)
class Settings:
    rate: Annotated[float, Gt(0)] = 0.7
    order: tuple[int, ...] = ()


@step()
def train(ctx, event): ...


def checks(e):
    if e.settings(Settings).rate > e.workers:
        yield "eighth.rate: too much"


ARCHITECTURE = Architecture("eighth", run=train, settings=Settings, checks=checks)
"""


@pytest.fixture
def eighth(write: Write) -> Callable[..., Experiment]:
    """Validates an experiment with the eighth architecture's section as given."""
    write("functions/eighth.py", EIGHTH)
    return lambda **section: validate({"name": "x", "architecture": "eighth", "eighth": section})


def test_its_settings_are_a_section_of_the_yaml(eighth: Callable[..., Experiment]) -> None:
    settings = workflow.load("eighth").settings
    assert settings is not None
    found = eighth(rate=2, order=[1, 2])
    assert found.settings(settings) == settings(rate=2.0, order=(1, 2))
    assert found.resolved()["eighth"] == {"rate": 2.0, "order": [1, 2]}
    assert from_resolved(json.loads(json.dumps(found.resolved()))) == found
    assert "exclusiveMinimum" in str(json.loads(schema.text())["$defs"]["Settings"])


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"rate": 0}, "eighth.rate: 0 is not allowed; expected a number > 0"),
        ({"rat": 1}, "eighth.rat: is unknown; did you mean rate?; one of rate, order"),
        ({"rate": 5}, "eighth.rate: too much"),
    ],
)
def test_its_settings_are_checked_as_ours_are(
    eighth: Callable[..., Experiment], section: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        eighth(**section)
    assert str(caught.value) == said


def test_what_the_yaml_leaves_out_is_in_the_result_and_in_the_check_of_a_resumed_run(
    eighth: Callable[..., Experiment],
) -> None:
    resolve = workflow.load("eighth").resolve
    there = resolve(eighth())
    assert there.resolved()["eighth"] == {"rate": 0.7, "order": []}
    assert differing(resolve(eighth(rate=0.8)), there) == ["eighth.rate: 0.8, there 0.7"]
    assert not differing(resolve(eighth(rate=0.7)), there)


def test_another_experiment_does_not_mind_a_faulty_eighth(eighth: Callable[..., Experiment], write: Write) -> None:
    write("functions/ninth.py", "import no_such_thing\n")
    assert eighth().architecture == "eighth"
    with pytest.raises(ConfigError, match=r"functions/ninth\.py, line 1: ModuleNotFoundError"):
        validate({"name": "x", "architecture": "ninth", "ninth": {"a": 1}})
