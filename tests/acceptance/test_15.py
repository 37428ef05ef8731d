"""Wrong without a word: what strangers found with models, seeds, servers and faults of their own, a section for each kind of finding.

Each test here goes in by the door that the stranger took. What a finding's mend is made of has its tests where it lies.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import protocol, silent

FAULTS = silent.listed()
ROOT = Path(__file__).parents[2]


# --- faults planted again: the old behaviours, each found by the test that it names -----------------------------------


def test_each_silent_fault_can_be_planted() -> None:
    planted = [protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits) for fault in FAULTS]
    assert [why for fault in planted for why in protocol.missing(fault, protocol.ROOT)] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_silent_fault_is_found(fault: silent.Fault) -> None:
    assert silent.outcome(fault) == "found"


# --- the cloud on this machine asks who is there (1) ------------------------------------------------------------------

# --- damage: a byte, a kill, a full disk (2, 3) -----------------------------------------------------------------------

# --- waits, space, decoders, certificates (4) -------------------------------------------------------------------------


def on_a_small_disk(folder: Path, megabytes: int, *arguments: str, **variables: str) -> tuple[int, str]:
    """A command line where `folder` is a disk of that size: its exit status, and what it said on standard error."""
    mounted = f'mount -t tmpfs -o size={megabytes}m none "{folder}" && exec "$0" "$@"'
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    command = [*namespace, "sh", "-c", mounted, sys.executable, "-m", "crossover.cli", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_too_little_room_for_a_broker_is_told_before_anything_is_started(tmp_path: Path) -> None:
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


def test_a_home_that_cannot_be_written_hinders_nothing(tmp_path: Path) -> None:
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


# --- what the virtual world sees (5) ----------------------------------------------------------------------------------

# --- benchmarks run; the tensor module keeps what the mission uses (6, 7) ---------------------------------------------

# --- a model is the model that was trained (8 to 12) ------------------------------------------------------------------

# --- a verdict is one (13 to 15) --------------------------------------------------------------------------------------
