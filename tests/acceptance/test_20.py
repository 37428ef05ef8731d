"""The first five minutes: what a stranger's terminal, pipe and script see of commands that need no AWS."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console
from rich.text import Text

from crossover.cli import waiting
from crossover.cli.main import main
from crossover.reports import terminal
from crossover.reports.display import GAP
from crossover.runtime.process_pools import PooledJobs
from crossover.study.papers import findings
from crossover.study.papers.cells import Section, TableCell, measured
from tests.unit.advice.few import few_candidates

ROOT = Path(__file__).parents[2]
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
    return tmp_path_factory.mktemp("answers")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Standard output and error of a command, whatever it ends with."""
    with few_candidates(), pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr()
    return said.out, said.err


def in_folder(name: str, folder: Path) -> tuple[str, ...]:
    """The command, with what it writes in `folder`."""
    return (*COMMANDS[name], *(("--out", str(folder / name)) if name in ("compare", "advise") else ()))


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.slow) for each in COMMANDS if each != "help"])
def test_no_figure_is_cut_or_broken(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns; and in a pipe every line is whole, so that both say the same words."""
    monkeypatch.setenv("COLUMNS", "80")
    narrow, _ = told(capsys, *in_folder(name, folder))
    assert "…" not in narrow
    assert not BROKEN.search(narrow), BROKEN.search(narrow)
    assert GAP not in narrow and "\x1b" not in narrow, "for a program a gap is a gap, and colours are none"
    long = [line for line in narrow.splitlines() if len(line) > 80 and len(line.strip().split()) > 1]
    assert not long
    monkeypatch.delenv("COLUMNS")
    wide, _ = told(capsys, *in_folder(name, folder))
    figures = set(re.findall(FIGURE, wide))
    assert figures <= set(re.findall(FIGURE, narrow))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "doctor", "project", "compare", "advise"])
def test_json_is_alone_and_of_the_schema(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("doctor", MADE) if name == "doctor" else in_folder(name, folder)
    answer = json.loads(told(capsys, *command, "--json")[0])
    jsonschema.validate(answer, schema(name, capsys), jsonschema.Draft202012Validator)


def schema(name: str, capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(told(capsys, "schema", name)[0])


@pytest.mark.parametrize("name", ["plan", "doctor", "status", "advise", "project", "compare"])
def test_each_schema_is_one_and_has_no_room_for_a_field_that_it_does_not_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = schema(name, capsys)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["additionalProperties"] is False and set(found["required"]) == set(found["properties"])


# --- tables -----------------------------------------------------------------------------------------------------------


def drawn(what: Any, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(what, crop=False)
    return file.getvalue().splitlines()


TABLE = terminal.TextTable(
    "sizes",
    ["how", "time", "dollars", "why"],
    [
        ["one function", f"14{GAP}min 05{GAP}s", "$0.0000012", "a sentence that ends with 6.14 s, and goes on"],
        ["two", f"1.5{GAP}s", "$12.00", ""],
    ],
)


def test_a_table_is_one_where_it_fits_and_its_figures_end_at_the_right() -> None:
    assert drawn(TABLE, 100) == [
        "sizes",
        "how                  time     dollars  why",
        "one function  14 min 05 s  $0.0000012  a sentence that ends with 6.14 s, and goes on",
        "two                 1.5 s      $12.00",
    ]


def test_the_last_columns_words_are_broken_first_and_then_rows_are_records() -> None:
    assert drawn(TABLE, 66)[2:4] == [
        "one function  14 min 05 s  $0.0000012  a sentence that ends with",
        "                                       6.14 s, and goes on",
    ]
    assert drawn(TABLE, 40) == [
        "sizes",
        "how one function",
        "  time     14 min 05 s",
        "  dollars  $0.0000012",
        "  why      a sentence that ends with",
        "           6.14 s, and goes on",
        "how two",
        "  time     1.5 s",
        "  dollars  $12.00",
    ]


@pytest.mark.parametrize("width", range(20, 60))
def test_text_is_never_broken_inside_a_figure(width: int) -> None:
    text = f"it takes 14{GAP}min 05{GAP}s, 0.5 minutes, 2 h 03 min, 20 % and 512 MB of /a/path/that/is/longer/than/any/line/here"
    lines = drawn(terminal.WholeLine(Text(text)), width)
    assert " ".join(lines) == text.replace(GAP, " ")
    for whole in ("14 min 05 s", "0.5 minutes", "2 h 03 min", "20 %", "512 MB"):
        assert any(whole in line for line in lines), whole


# --- the first commands -----------------------------------------------------------------------------------------------


def test_help_imports_no_command_and_groups_them_by_what_they_are_for() -> None:
    """What takes its time is what is imported: neither the commands nor what they stand on."""
    code = (
        "import sys; from crossover.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('crossover')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    *shown, imported = said.splitlines()
    assert not {"crossover.validation", "crossover.simulation", "crossover.cli.run"} & set(eval(imported))
    places = [
        next(n for n, line in enumerate(shown) if f"─ {panel} ─" in line) for panel in ("Train", "Decide", "Deploy")
    ]
    assert places == sorted(places)
    assert any("--version" in line for line in shown) and any("--install-completion" in line for line in shown)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("plan", MADE), ("plan", str(CONFIG / "spirt.yaml")), ("doctor", MADE)])
def test_what_looks_at_a_file_alone_imports_nothing_that_takes_seconds(arguments: tuple[str, ...]) -> None:
    """torch takes one, matplotlib another (`python -m benchmarks.starts`)."""
    code = (
        "import sys; from crossover.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'matplotlib', 'boto3', 'aws_cdk', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_first_estimate_stands_there_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from crossover.advice import first_look\n"
        "from crossover.cli import advise\n"
        "advise._told_first = lambda words: sys.exit(f'{words} {\"torch\" in sys.modules}')\n"
        f"advise.advise(advise.Path({MADE!r}), on_hand='lambda,ec2')"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    ).stderr
    assert re.fullmatch(r"one .+: about .+, start-up among them, and \$[\d.]+ False\n", said), said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("advise", MADE, "--target", "85"), "--target: 85 is no accuracy, which is a share; did you mean 0.85?"),
        (("advise", MADE, "--set", "training.steps=57"), "leave it out: whole epochs are expected"),
        (
            ("plan", MADE, "--set", "training.target=90"),
            "training.target: 90 is no accuracy, which is a share; did you mean 0.9?",
        ),
        (("compare", RUNS[0], "--at", "85"), "--at: 85 is no accuracy, which is a share; did you mean 0.85?"),
        (("advice",), "Did you mean 'advise'?"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in " ".join(told(capsys, *arguments)[1].split())


class _Heard(io.StringIO):
    """Standard error of a pipe; `told` once it holds `words`."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.told = words, threading.Event()

    def write(self, text: str, /) -> int:
        written = super().write(text)
        if self.words in self.getvalue():
            self.told.set()
        return written


def test_long_work_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tally, heard = PooledJobs(), _Heard("2 of 6 parts")
    monkeypatch.setattr(waiting, "POOLED", tally)
    monkeypatch.setattr(sys, "stderr", heard)
    monkeypatch.setitem(waiting.EVERY_S, False, 0.01)
    with waiting.waiting("30 repetitions"):
        tally.given, tally.done = 6, 2
        assert heard.told.wait(60)
    assert re.search(r"30 repetitions: 2 of 6 parts, \d.* so far, about \d.* left", heard.getvalue())
    assert waiting.far("searching", 412, 500, 61.0, whole=False) == "searching: 412 parts, 61.0 s so far"


# --- words ------------------------------------------------------------------------------------------------------------


def cells(*ours: float) -> Section:
    rows = [
        TableCell(row=f"{n}", figure="time", unit="s", published=printed, ours=measured(value))
        for n, (printed, value) in enumerate(zip((10.0, 20.0, 40.0), ours, strict=True))
    ]
    return Section(name="a-table", title="a table", cells=rows)


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((11.0, 19.0, 50.0), "direction and size"),
        ((100.0, 200.0, 400.0), "direction alone"),
        ((22.0, 20.0, 21.0), "size alone"),
        ((400.0, 200.0, 100.0), "neither"),
    ],
)
def test_a_finding_is_reproduced_in_direction_and_size(ours: tuple[float, ...], words: str) -> None:
    (found,) = findings.findings([cells(*ours)])
    assert found.reproduced == words and found.pairs == 3
    assert f"1 in {words}" in findings.words([found])


# --- from a wheel -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wheel_in_an_empty_folder_projects_and_trains(tmp_path: Path) -> None:
    """Its data files are in it: prices, calibrations, schemas, the page's template."""
    source, installed, empty = tmp_path / "source", tmp_path / "installed", tmp_path / "empty"
    source.mkdir()
    empty.mkdir()
    for name in ("crossover", "chaos", "functions", "peers", "stacks", "cdk", "layer", "config"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "requirements.txt"):
        shutil.copy(ROOT / name, source)
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), ".")
    subprocess.run(build, cwd=source, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    experiment = str(installed / "config" / "all-reduce-s3.yaml")

    def crossover(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = (sys.executable, "-m", "crossover.cli", *arguments)
        return subprocess.run(command, cwd=empty, env=environment, check=True, capture_output=True, text=True).stdout

    where = subprocess.run(
        (sys.executable, "-c", "import crossover; print(crossover.__file__)"),
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert where.startswith(str(installed))
    assert "$" in crossover("project", experiment, "--repetitions", "20").splitlines()[-1]
    crossover("run", experiment, "--on", "inline", "--set", "training.epochs=1", "--out", "trained")
    assert json.loads((empty / "trained" / "result.json").read_text())["outcome"] == "finished"
    assert (empty / "trained" / "report.html").is_file()
    assert {"play.html", "play.js"} <= {path.name for path in (installed / "crossover" / "reports").iterdir()}
    assert json.loads(crossover("schema", "advise"))["title"] == "crossover advise --json"
