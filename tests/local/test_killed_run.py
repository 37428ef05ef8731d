"""`crossover run` killed with -9: neither a process nor a temporary folder of it is left; what it reached is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local.parts import eventually

ROOT = Path(__file__).parents[2]


def find_processes(folder: Path) -> list[int]:
    """Return the ids of the processes whose TMPDIR is `folder`: the run and everything that it has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["assembly", "cloud/redis"])
def test_a_killed_run_leaves_no_process_and_no_folder(tmp_path: Path, moment: str) -> None:
    """Kill a run once its temporary folder contains `moment`: no process and no temporary folder is left, and the results say only that a
    run has begun.
    """
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = "from crossover.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", "config/spirt.yaml", "--out", str(tmp_path / "out")]
    run = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: any(temporary.glob(f"crossover-*/{moment}")), what=f"the run has {moment}", timeout_s=300)
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    eventually(lambda: not find_processes(temporary), what="no process is left")
    eventually(lambda: not any(temporary.glob("crossover-*")), what="no folder is left")
    left = [path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == ["unfinished/where"], "nothing but that a run has begun, which --resume begins anew"
