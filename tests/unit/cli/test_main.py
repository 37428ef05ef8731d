"""What the command line's exit status says, and that nobody sees a traceback without asking."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from rich.text import Text
from typer.core import TyperGroup

from crossover.cli import main as entry
from crossover.cli import run as run_command
from crossover.cli.arguments import AsJson, print_json
from crossover.cli.commands import PLACES, app
from crossover.errors import RunFailed
from tests.commands import status

ROOT = Path(__file__).parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the path of a minimal experiment, mine.yaml."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\narchitecture: spirt\n")
    return path


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["compare", "-h"], ["schema"]])
def test_help_and_schema_end_well(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with status 0 and prints something."""
    assert status(*arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(PLACES))
def test_help_shows_every_word_of_an_options_text(name: str) -> None:
    """No option's help contains text that rich would take for markup and not print."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    context = typer.Context(root)
    command = root.get_command(context, name)
    assert command is not None
    commands = [command, *(command.commands.values() if isinstance(command, TyperGroup) else ())]
    for text in (getattr(option, "help", None) or "" for each in commands for option in each.params):
        assert Text.from_markup(text).plain == text


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["run"],
        ["run", "no/such.yaml"],
        ["run", "{config}", "--on", "moon"],
        ["run", "{config}", "--set", "training.epochs=0"],
        ["run", "{config}", "--set", "training.model=mobilnet"],
        ["run", "{config}", "--data", "/no/such/folder"],
        ["run", "{config}", "--resume", "20261121-1", "--on", "local"],
        ["run", "{config}", "--out", "{config}"],
        ["run", "{config}", "--out", "{folder}"],
        ["plan", "no/such.yaml"],
        ["compare", "{folder}"],
        ["compare"],
    ],
)
def test_errors_that_the_user_can_fix_end_with_status_2(
    arguments: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong `arguments` end with status 2 and an error without a traceback."""
    assert status(*[a.format(config=config, folder=config.parent) for a in arguments]) == 2
    shown = capsys.readouterr().err
    assert shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "no/such.yaml"],
        ["project", "{config}", "--set", "training.model=mobilnet"],
        ["advise", "{config}", "--deadline", "soon"],
        ["advise", "{config}", "--no-such-option"],
        ["doctor", "{config}", "--on", "moon"],
        ["compare", "{folder}"],
    ],
)
def test_a_failure_with_json_is_one_json_object_beside_the_same_message(
    arguments: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing command with --json prints {"error", "exit_status"}, and the same message to standard error as without."""
    asked = [a.format(config=config, folder=config.parent) for a in arguments]
    assert status(*asked) == 2
    plain = capsys.readouterr()
    assert status(*asked, "--json") == 2
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert answer.keys() == {"error", "exit_status"} and answer["exit_status"] == 2
    assert answer["error"].split()[0] in shown.err
    assert shown.err == plain.err


def test_a_failure_after_the_answer_adds_no_second_json_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command that fails after its JSON answer prints only the message, to standard error."""
    failing = typer.Typer()

    @failing.command()
    def answer(as_json: AsJson) -> None:
        """Print a JSON answer, then fail with RunFailed."""
        print_json({"found": as_json})
        raise RunFailed("the disk is full")

    with pytest.raises(SystemExit):
        entry.run_command(failing, ["--json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"found": True}
    assert shown.err == "error: the disk is full\n"


def test_every_command_that_takes_an_experiment_takes_set() -> None:
    """Each command with an argument for experiments has the option `--set`."""
    commands = cast(Any, typer.main.get_group(app))
    taking = {
        name: {option for each in command.params for option in each.opts}
        for name in commands.list_commands(None)
        if (command := commands.get_command(None, name)) is not None
        and any(each.name in ("config", "configs") for each in command.params)
    }
    assert {"run", "plan", "doctor", "deploy", "status", "destroy", "project", "breakeven"} <= set(taking)
    assert [name for name, options in taking.items() if "--set" not in options] == []


@pytest.mark.sampled
@pytest.mark.parametrize("command", ["run", "plan", "project", "breakeven", "doctor"])
@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("training.model=mobilnet", "did you mean mobilenet?"),
        ("training.epochs=0", "training.epochs: 0"),
        ("training.epochs", "expected section.field=value"),
    ],
)
def test_whatever_asks_about_a_run_refuses_what_the_run_would_refuse(
    command: str, field: str, said: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command about a run ends with status 2 for a `field` that `run` refuses, with the message `said`."""
    assert status(command, str(config), "--set", field) == 2
    assert said in capsys.readouterr().err


def test_a_stack_is_not_deployed_for_a_model_that_no_run_would_find(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`deploy` ends with status 2 for an unknown model."""
    config.write_text(f"{config.read_text()}training: {{model: mobilnet}}\n")
    assert status("deploy", str(config), "--yes") == 2
    assert "did you mean mobilenet?" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RunFailed("step x failed"), ZeroDivisionError("oh")])
def test_a_fault_of_crossover_ends_with_status_1_and_debug_shows_the_traceback(
    error: Exception, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An `error` during a run ends with status 1 and one line; with `--debug` also the traceback is printed."""

    def fail(*_: Any, **__: Any) -> None:
        """Raise `error` in place of training."""
        raise error

    monkeypatch.setattr(run_command, "_start", fail)
    arguments = ["run", str(config), "--out", str(config.parent / "out")]
    assert status(*arguments) == 1
    shown = capsys.readouterr().err
    assert f"error: {'' if isinstance(error, RunFailed) else 'ZeroDivisionError: '}{error}" in shown
    assert "Traceback" not in shown
    assert status(*arguments, "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C during a run ends the command with status 130 and no traceback."""

    def interrupt(*_: Any, **__: Any) -> None:
        """Raise KeyboardInterrupt in place of training."""
        raise KeyboardInterrupt

    monkeypatch.setattr(run_command, "_start", interrupt)
    assert status("run", str(config), "--out", str(config.parent / "out")) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("architecture", "shown"),
    [
        ("spirt", "2/1000"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("spirt", "mine: spirt"), ("p2p-instance", "2/1000"), ("all-reduce", "2/1000"))
        ),
    ],
)
def test_a_real_ctrl_c_ends_with_130_and_without_a_traceback(config: Path, architecture: str, shown: str) -> None:
    """SIGINT ends `run` with status 130 and no traceback. `shown`: output at which the signal is sent, before training or during it.

    The command imports its modules beforehand, because Python ignores an interrupt within callbacks of the importer.
    """
    config.write_text(f"name: mine\narchitecture: {architecture}\n")
    command = [
        sys.executable,
        "-c",
        "import crossover.running, crossover.learning.learner; from crossover.cli.main import main; main()",
        "run",
        str(config),
        "--on",
        "inline",
    ]
    command += ["--set", "training.epochs=1000", "--out", str(config.parent / "out")]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert any(shown in line for line in process.stdout)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors


# Commands whose output a reader stops reading: help, which typer prints, an answer, and a failure.
LEAVERS = {"--help": ("--help",), "schema": ("schema",), "failure": ("schema", "--no-such-option")}


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("name", LEAVERS)
def test_a_reader_that_leaves_early_is_no_failure_to_explain(name: str, both: bool) -> None:
    """The reader has left before the command begins. `both`: it also read standard error. The status is that of the signal SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "crossover.cli", *LEAVERS[name]]
    errors = writing if both else subprocess.PIPE
    ended = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=errors, text=True, check=False)
    os.close(writing)
    is_said = name == "failure" and not both
    assert ended.returncode == (2 if is_said else 128 + signal.SIGPIPE)
    assert ("--no-such-option" in (ended.stderr or "")) == is_said


@pytest.mark.parametrize("by_typer", [False, True])
def test_a_connection_that_breaks_is_not_taken_for_a_reader_that_left(
    by_typer: bool, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server's connection raises the error of a closed pipe too. `by_typer`: it is raised within a command, where typer takes it for
    output that nobody reads, and says nothing.
    """

    def fail(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    if by_typer:
        monkeypatch.setattr(run_command, "_start", fail)
        assert status("run", str(config), "--out", str(config.parent / "out")) == 1
    else:
        with pytest.raises(SystemExit) as ended:
            entry.run_command(cast(Any, fail), [])
        assert ended.value.code == 1
    assert "BrokenPipeError" in capsys.readouterr().err


def test_the_schema_that_is_printed_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`schema` prints JSON with the property `training`."""
    assert status("schema") == 0
    assert json.loads(capsys.readouterr().out)["properties"]["training"]


def test_a_terminal_that_lacks_a_character_is_given_another() -> None:
    """Characters that the output's encoding lacks, such as fixed spaces, are printed as question marks."""
    code = "from crossover.cli import main; main.run_command = lambda app, arguments: print('77.2\\xa0%', '\\u2013'); main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        encoding="ascii",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "77.2?% ?\n", "")
