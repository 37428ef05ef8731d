"""A disk that is full, too small or not to be written: what is needed is told beforehand, and no result is lost."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from crossover.errors import UserError
from crossover.experiment import Data, Experiment, Training
from crossover.reports import folder
from crossover.running.inline import run_inline

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_full_disk_at_the_end_loses_neither_model_nor_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when a run ends: its result is saved elsewhere, as the error says, and running again gives the same model."""
    found = Experiment(
        name="mine",
        architecture="all_reduce",
        workers=2,
        training=Training(epochs=2, batch_size=60),
        data=Data(dataset="digits", limit=240),
    )
    out, elsewhere, write = tmp_path / "out", tmp_path / "elsewhere", folder.write_atomically
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    def full(path: Path, data: bytes) -> None:
        """Write a file, or raise "no space left on device" for files below the run's folder."""
        if out in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_atomically", full)
        with pytest.raises(UserError, match=r"the run is finished, and its folder is .*elsewhere"):
            run_inline(found, out, lambda progress: None)
    (saved,) = elsewhere.glob("crossover-mine-*")
    again = run_inline(found, out, lambda progress: None, resume=(out / "unfinished").is_dir())
    assert (again.path / "model.safetensors").read_bytes() == (saved / "model.safetensors").read_bytes()


def on_a_small_disk(folder: Path, megabytes: int, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run a `crossover` command with `folder` on a disk of that size, and return its exit status and what it wrote on standard error."""
    mounted = f'mount -t tmpfs -o size={megabytes}m none "{folder}" && exec "$0" "$@"'
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    command = [*namespace, "sh", "-c", mounted, sys.executable, "-m", "crossover.cli", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_too_little_room_for_a_broker_is_told_before_anything_is_started(tmp_path: Path) -> None:
    """Run on a disk that is too small, for temporary files and for results: the command ends with status 2 and names folder, need and
    option.
    """
    (disk := tmp_path / "disk").mkdir()
    run = ("run", "config/p2p-instance.yaml", "--on", "local", "--set", "training.epochs=1")
    status, said = on_a_small_disk(disk, 150, *run, "--out", str(tmp_path / "run"), TMPDIR=str(disk))
    assert status == 2
    for words in (str(disk), "300 MB are needed", "157 MB are free", "200 MB", "TMPDIR"):
        assert words in said

    status, said = on_a_small_disk(disk, 20, *run, "--out", str(disk / "run"))
    assert status == 2
    for words in (str(disk / "run"), "50 MB are needed", "20 MB are free", "--out"):
        assert words in said


@pytest.mark.slow
def test_a_home_that_cannot_be_written_hinders_nothing(tmp_path: Path) -> None:
    """Run synthesis, a training and a plan without a writable home folder: all succeed."""
    (home := tmp_path / "home").touch()  # no folder: not even root can write into it
    surroundings = {"HOME": str(home), "CDK_OUTDIR": str(tmp_path / "assembly"), "CROSSOVER_WITHOUT_LAYERS": "1"}
    commands: list[list[str]] = [
        ["app.py", "-c", "config=config/single.yaml"],
        [
            "-m",
            "crossover.cli",
            "run",
            "config/single.yaml",
            "--on",
            "inline",
            "--set",
            "training.epochs=1",
            "--out",
            str(tmp_path / "run"),
        ],
        ["-m", "crossover.cli", "plan", "config/single.yaml"],
    ]
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, **surroundings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
