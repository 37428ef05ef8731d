"""What commands print: figures are never cut, whatever the width, and `--json` is alone on standard output and of its schema."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from crossover.cli.main import main
from crossover.reports.display import GAP
from tests.unit.advice.few import few_candidates

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "config"
RUNS = [str(ROOT / "docs" / "results" / name) for name in ("all-reduce-cifar10-fast", "mlless-cifar10")]
MADE = str(CONFIG / "all-reduce-s3.yaml")
# A figure's number at the end of a line, and its unit on the next.
BROKEN = re.compile(r"\d\s*\n\s*(?:ms|s|min|h|%|[kMG]?B)\b(?! )|min\n\s*\d\d s")
FIGURE = r"\$\d[\d,.]*\d|\d[\d,.]* (?:ms|s|min|kB|MB|GB)\b"
COMMANDS = {
    "help": ("--help",),
    "plan": ("plan", str(CONFIG / "spirt.yaml")),
    "replicate": ("replicate", "--list"),
    "project": ("project", MADE, "--repetitions", "20"),
    "compare": ("compare", *RUNS, "--mixed"),
    "advise": ("advise", MADE, "--on-hand", "lambda,ec2"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that this module's commands share."""
    return tmp_path_factory.mktemp("answers")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Run a command among few candidates and return its standard output and standard error, whatever its exit status."""
    with few_candidates(), pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr()
    return said.out, said.err


def in_folder(name: str, folder: Path) -> tuple[str, ...]:
    """Return the command's arguments, with its output below `folder` if it writes files."""
    return (*COMMANDS[name], *(("--out", str(folder / name)) if name in ("compare", "advise") else ()))


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.slow) for each in COMMANDS if each != "help"])
def test_no_figure_is_cut_or_broken(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output at 80 columns breaks no figure and no path and has no ellipsis; a pipe gets the same figures in whole lines."""
    monkeypatch.setenv("COLUMNS", "80")
    narrow, _ = told(capsys, *in_folder(name, folder))
    assert "…" not in narrow
    assert not BROKEN.search(narrow), BROKEN.search(narrow)
    assert GAP not in narrow and "\x1b" not in narrow, "for a program a gap is a gap, and colours are none"
    long = [line for line in narrow.splitlines() if len(line) > 80 and len(line.strip().split()) > 1]
    assert not [line for line in long if not line.split()[-1].startswith(str(folder))], "a path is never broken"
    monkeypatch.delenv("COLUMNS")
    wide, _ = told(capsys, *in_folder(name, folder))
    figures = set(re.findall(FIGURE, wide))
    assert figures <= set(re.findall(FIGURE, narrow))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "doctor", "project", "compare", "advise"])
def test_json_is_alone_and_of_the_schema(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command's --json output is one JSON document, valid by its published schema."""
    command = ("doctor", MADE) if name == "doctor" else in_folder(name, folder)
    answer = json.loads(told(capsys, *command, "--json")[0])
    jsonschema.validate(answer, schema(name, capsys), jsonschema.Draft202012Validator)


def schema(name: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the JSON schema that `crossover schema NAME` prints."""
    return json.loads(told(capsys, "schema", name)[0])


@pytest.mark.parametrize("name", ["plan", "doctor", "status", "advise", "project", "compare"])
def test_each_schema_is_one_and_has_no_room_for_a_field_that_it_does_not_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The schema of the command is a valid JSON Schema in which all fields are required and no others are allowed."""
    found = schema(name, capsys)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["additionalProperties"] is False and set(found["required"]) == set(found["properties"])
