"""Words from elsewhere, such as names of folders and of a CSV's columns, cannot control the terminal or the page."""

import ast
from pathlib import Path

import pytest

from crossover.cli.arguments import show_progress
from crossover.errors import print_line
from crossover.experiment import Data, Experiment
from crossover.reports import pages, report_pages

EVIL = "a\x1b[31m\u202e\x07[/b]"
QUOTED = r"a\x1b[31m\u202e\x07[/b]"
PACKAGE = Path(__file__).parents[3] / "crossover"
# The functions that print what is not a text of this project as it is: those that quote, and JSON, which has escapes of its own.
PRINTERS = {("errors.py", "print_line"), ("cli/answers.py", "write_answer"), ("cli/main.py", "_explain_failed_import")}


def list_raw_prints(path: Path) -> list[tuple[str, str]]:
    """Return (file, function) of each call of `print` whose arguments are no constants."""
    found = []
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            is_print = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
            if is_print and not all(isinstance(each, ast.Constant) for each in call.args):  # type: ignore[attr-defined]
                found.append((path.relative_to(PACKAGE).as_posix(), function.name))
    return found


def test_nothing_is_printed_past_the_quoting() -> None:
    raw = {each for path in PACKAGE.rglob("*.py") for each in list_raw_prints(path)}
    assert raw == PRINTERS


@pytest.mark.parametrize("stderr", [False, True])
def test_a_printed_line_is_quoted(stderr: bool, capsys: pytest.CaptureFixture[str]) -> None:
    print_line("folder", EVIL, stderr=stderr)
    said = capsys.readouterr()
    assert (said.err if stderr else said.out) == f"folder {QUOTED}\n"


def test_a_runs_lines_show_a_folder_as_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich took what stands in brackets for markup, and failed after the run at a tag that none had opened."""
    experiment = Experiment(name="x", architecture="single", data=Data(dataset=EVIL))
    with show_progress(experiment, where="inline", out=Path(EVIL)):
        pass
    shown = capsys.readouterr().out
    assert shown.count(QUOTED) == 2 and "\x1b" not in shown


def test_a_page_shows_control_characters_quoted() -> None:
    svg = f"<svg><text>{EVIL}</text></svg>"
    page = pages.Page(title=EVIL, subtitle=EVIL, labels=(), plots=[pages.plot(EVIL, svg, caption=EVIL, narrow=svg)])
    text = report_pages.render(page)
    assert QUOTED in text and not {"\x1b", "\u202e", "\x07"} & set(text)
