"""What the machine may lack: programs, space, a folder that can be written. One message that says what to do, exit status 2."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crossover import running
from crossover.errors import DataError
from tests.commands import status

ROOT = Path(__file__).parents[3]


def test_a_full_disk_is_not_called_our_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "result.json"))

    monkeypatch.setattr(running, "run_inline", full)
    assert status("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(tmp_path / "out")) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "--out" in message
    assert "fault of Crossover" not in message


def test_another_error_of_the_system_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*arguments: object, **named: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(running, "run_inline", broken)
    assert status("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(tmp_path / "out")) == 1
    assert "fault of Crossover" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", "/proc/nowhere") == 2
    assert "--out /proc/nowhere: cannot be written to" in capsys.readouterr().err


def test_a_folder_in_which_another_run_is_at_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One that was stopped may still write how far it came when it is resumed: the two together left a folder of no use."""
    command = ("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(tmp_path / "out"))
    statuses = list[int]()

    def meanwhile(*arguments: object, **named: object) -> None:
        monkeypatch.setattr(running, "run_inline", lambda *arguments, **named: pytest.fail("trains beside it"))
        assert not (tmp_path / "out").exists(), "a run that is killed now would leave it"
        statuses.append(status(*command))
        raise DataError("mine")

    monkeypatch.setattr(running, "run_inline", meanwhile)
    assert status(*command) == 2
    assert statuses == [2]
    said = capsys.readouterr().err
    assert "another run is at work there" in said
    assert "mine" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(running, "run_inline", meanwhile)
    status(*command)
    assert capsys.readouterr().err.count("mine") == 1, "the lock went with the run that held it"


def test_a_system_without_names_of_sockets_keeps_nobody_from_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """macOS answers so: there a socket's name is a file's, and may not begin with a zero byte."""

    def begun(*arguments: object, **named: object) -> None:
        raise DataError("mine")

    class Nameless(socket.socket):
        def bind(self, address: object, /) -> None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(running, "run_inline", begun)
    monkeypatch.setattr("socket.socket", Nameless)
    assert status("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(tmp_path / "out")) == 2
    assert "mine" in capsys.readouterr().err


def test_a_run_that_cannot_start_leaves_no_empty_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def without_data(*arguments: object, **named: object) -> None:
        raise DataError("cifar-10-python.tar.gz: not there")

    monkeypatch.setattr(running, "run_inline", without_data)
    out = tmp_path / "results" / "spirt"
    assert status("run", str(ROOT / "config/spirt.yaml"), "--on", "inline", "--out", str(out)) == 2
    assert "cifar-10-python.tar.gz: not there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_missing_servers_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "crossover.cli", "run", "config/spirt.yaml", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "apt-get install" in done.stderr
    assert "redis-server" in done.stderr
