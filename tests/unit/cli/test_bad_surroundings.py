"""What the machine may lack: programs, space, a folder that can be written. One message that says what to do, exit status 2."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossover.cli import advise, shadows
from crossover.errors import DataError, RunFailed
from crossover.running import inline
from crossover.simulation import breakeven
from tests.commands import status

ROOT = Path(__file__).parents[3]


def ends(error: Exception, out: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit status of `crossover run` when its run raises `error`."""

    def run_inline(*arguments: object, **named: object) -> None:
        """Raise `error` in place of training."""
        raise error

    monkeypatch.setattr(inline, "run_inline", run_inline)
    return status("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(out))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "result.json"), 2, "No space left on device"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "result.json"), 2, "raise the limit (ulimit -f)"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), 1, "fault of Crossover"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "rom/advice"), 2, "error: rom/advice: Read-only file system"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), 1, "fault of Crossover"),
        (DataError("cifar-10-python.tar.gz: not there"), 2, "cifar-10-python.tar.gz: not there"),
    ],
)
def test_a_full_disk_is_not_called_our_fault_and_nothing_is_left(
    error: Exception,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """An OSError during a run ends with status `code` and a message with `words`; a full disk is no fault of Crossover's, and no file is
    left.
    """
    assert ends(error, tmp_path / "results" / "spirt", monkeypatch) == code
    message = capsys.readouterr().err
    assert words in message
    assert ("fault of Crossover" in message) == (code == 1)
    assert ("--out" in message) == ("space" in words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "advise", "breakeven"])
@pytest.mark.parametrize("out", ["/proc/nowhere", __file__])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    command: str, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`advise` and `breakeven` computed for a minute, and called it a fault of Crossover's."""
    monkeypatch.setattr(advise, "_find_best_advice", lambda *given, **named: pytest.fail("searches first"))
    monkeypatch.setattr(breakeven, "breakeven", lambda *given, **named: pytest.fail("simulates first"))
    assert status(command, str(ROOT / "config/spirt.yaml"), "--out", out) == 2
    why = "this is a file" if out == __file__ else "cannot be written to"
    assert f"--out {out}: {why}" in capsys.readouterr().err


def test_a_folder_in_which_another_run_is_at_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A second run in the same folder ends with status 2 while the first one trains, because two at once would spoil the folder."""
    command = ("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(tmp_path / "out"))
    statuses = list[int]()

    def meanwhile(*arguments: object, **named: object) -> None:
        """Run the command once more as another process would during this run, note its exit status, and fail with DataError."""
        monkeypatch.setattr(inline, "run_inline", lambda *arguments, **named: pytest.fail("trains beside it"))
        assert not (tmp_path / "out").exists(), "a run that is killed now would leave it"
        statuses.append(status(*command))
        raise DataError("mine")

    monkeypatch.setattr(inline, "run_inline", meanwhile)
    assert status(*command) == 2
    assert statuses == [2]
    said = capsys.readouterr().err
    assert "another run is using this folder" in said
    assert "mine" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(inline, "run_inline", meanwhile)
    status(*command)
    assert capsys.readouterr().err.count("mine") == 1, "the lock went with the run that held it"


@pytest.mark.slow
def test_missing_servers_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    """`run` ends with status 2 if the local cloud's servers are not installed; it names them and the command that installs them."""
    command = [sys.executable, "-m", "crossover.cli", "run", "config/spirt.yaml", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "apt-get install" in done.stderr
    assert "redis-server" in done.stderr


@pytest.mark.parametrize("columns", ["0", "00"])
def test_a_terminal_of_no_columns_shows_everything(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages are printed whole if COLUMNS is 0 or similar, as some containers and editors set it."""
    monkeypatch.setenv("COLUMNS", columns)
    assert status("run", "--no-such-option") == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["1", "0 2", "0 1 2"])
def test_a_command_whose_streams_are_closed_does_its_work(closed: str) -> None:
    """A command with closed standard streams ends with status 0. `closed`: their numbers, separated by spaces."""
    closing = "; ".join(f"os.close({number})" for number in closed.split())
    script = f"import os, sys; {closing}; os.execv(sys.executable, [sys.executable, '-m', 'crossover.cli', 'schema'])"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert "fault of Crossover's" not in ended.stderr and bool(ended.stdout) == ("1" not in closed)


# Files of the user's by the package that they are imported in place of: some lack a name, one fails by itself.
SHADOWS = {"typer": "x = 1", "json": "x = 1", "yaml": "x = 1", "rich": "x = undefined", "functions": "x = 1"}


@pytest.mark.parametrize("name", SHADOWS)
def test_a_file_that_is_imported_in_place_of_a_package_is_named(name: str, tmp_path: Path) -> None:
    """It was called a fault of Crossover's, or was a traceback."""
    (tmp_path / f"{name}.py").write_text(SHADOWS[name])
    script = "from crossover.cli.main import main; main(['plan', 'config/spirt.yaml'])"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-P", "-c", script]
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ") and f"{tmp_path / name}.py is imported in place of " in ended.stderr
    assert "Traceback" not in ended.stderr and "Crossover's" not in ended.stderr


@pytest.mark.parametrize(
    ("error", "is_named"),
    [
        (DataError("digits: scikit-learn is not installed"), False),
        (
            RunFailed("step x: ModuleNotFoundError: No module named 'sklearn.datasets'; 'sklearn' is not a package"),
            True,
        ),
        (RunFailed("step x: AttributeError: module 'sklearn' has no attribute 'show_versions'"), True),
        (RunFailed("'sklearn' is slow"), False),
        (RunFailed("AttributeError: 'Sklearn' has no attribute 'own'"), False),
    ],
)
def test_a_replaced_package_is_named_if_the_failure_is_about_it(
    error: Exception,
    is_named: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """The package is replaced where the failure happened, perhaps in another process. `own`: a module that replaces none."""
    (tmp_path / "sklearn.py").write_text("")
    (tmp_path / "own.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    ends(error, tmp_path / "out", monkeypatch)
    assert (
        f"{tmp_path / 'sklearn.py'} is imported in place of the package sklearn" in capsys.readouterr().err
    ) == is_named


def test_a_file_with_the_name_of_a_built_in_module_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python never imports a file in place of a module that is compiled into it, such as `time`."""
    (tmp_path / "time.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert shadows.explain(AttributeError("module 'time' has no attribute 'clock'")) == ""
