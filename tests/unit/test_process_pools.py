"""Pools of processes end with the process that asked for them, whatever ends it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crossover.pools import start_pool
from tests.local.parts import eventually
from tests.sampling import WHOLE

# Says who its workers are, once they compute without an end.
ASKS = """
import os, sys, time
from crossover.pools import start_pool

def work(folder):
    open(f"{folder}/{os.getpid()}", "w").close()
    while True:
        pass

if __name__ == "__main__":
    with start_pool(2) as working:
        list(working.map(work, [sys.argv[1]] * 2))
"""


def running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("time", range(10) if WHOLE else range(1))
def test_workers_end_with_who_asked(number: signal.Signals, time: int, tmp_path: Path) -> None:
    """Check that a pool's processes end if the process that started the pool gets the signal `number`. `time`: number of the repetition."""
    script, folder = tmp_path / "asks.py", tmp_path / "workers"
    script.write_text(ASKS)
    folder.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(folder)], stderr=subprocess.DEVNULL) as asking:
        try:
            eventually(lambda: len(list(folder.iterdir())) == 2, what="both compute")
        finally:
            asking.send_signal(number)
    eventually(lambda: not any(running(int(each.name)) for each in folder.iterdir()), what="both have ended")


def told(seen: list[int]) -> None:
    """Append this process's id to `seen`."""
    seen.append(os.getpid())


def test_each_begins_as_it_is_told() -> None:
    """Check that a pool with a function to call first in each process runs its jobs."""
    with start_pool(1, told, [1, 2]) as working:
        assert working.submit(abs, -3).result() == 3


def test_every_pool_of_the_product_is_one_of_these() -> None:
    """Check that only crossover/pools.py creates process pools, because others might outlive their command."""
    root = Path(__file__).parents[2]
    of: Callable[[Path], str] = lambda path: path.read_text(encoding="utf-8")  # noqa: E731
    using = [
        path
        for path in (root / "crossover").rglob("*.py")
        if "ProcessPoolExecutor(" in of(path) or "multiprocessing" in of(path)
    ]
    assert [path.relative_to(root).as_posix() for path in using] == ["crossover/pools.py"]
