"""Nothing started may outlive the process that started it, however that process ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crossover.local import servers, watchdog
from tests.local.parts import eventually

# A main process with a child, a grandchild that left its session, and a temporary folder; it prints what the test needs and waits.
MAIN = """
import pathlib, sys, time
from crossover.local import servers

with servers.exit_on_signals(), servers.temporary_folder() as folder:
    child = servers.start_process(["sh", "-c", "setsid sleep 3600 & sleep 3600"])
    try:
        print(servers.mark_variable()[servers.MARK], folder, flush=True)
        while True:
            time.sleep(0.1)
    finally:
        print("left in order", flush=True)
"""


@pytest.fixture
def main_process() -> subprocess.Popen[str]:
    """Return a new process that runs MAIN, with its output on a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup has it ignored
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_outlives_the_main_process(main_process: subprocess.Popen[str], number: signal.Signals) -> None:
    """End a process by this signal: its children, grandchildren and temporary folder are gone; unless it was killed, its `with` blocks are
    left in order.
    """
    assert main_process.stdout
    value, _, folder = main_process.stdout.readline().strip().partition(" ")
    mark = f"{servers.MARK}={value}".encode()
    eventually(lambda: len(watchdog.find_marked(mark)) == 3, what="shell and both sleeps run")
    assert Path(folder).is_dir()

    main_process.send_signal(number)
    rest = main_process.stdout.read()
    main_process.wait()
    main_process.stdout.close()

    eventually(lambda: not watchdog.find_marked(mark), what=f"children ended after {number.name}")
    eventually(lambda: not Path(folder).exists(), what="temporary folder removed")
    assert ("left in order" in rest) == (number is not signal.SIGKILL)


# Its watchdog is killed: one folder was named to it, the other is new. It prints both and waits.
ORPHANED = """
import time
from crossover.local import servers

with servers.temporary_folder() as first:
    child = servers.start_process(["sleep", "3600"])
    guard = servers._ensure_guard()
    guard._watchdog.kill()
    guard._watchdog.wait()
    {before}
    with servers.temporary_folder() as second:
        print(guard.value, first, second, flush=True)
        {then}
print("left in order", flush=True)
"""


@pytest.mark.parametrize("before", ["", "servers.restart_dead_watchdog()"])
def test_a_killed_watchdog_has_a_successor(before: str) -> None:
    """Kill the watchdog, then the process: its child and both temporary folders are gone all the same. `before`: code
    that runs in between.
    """
    main = subprocess.Popen(
        [sys.executable, "-c", ORPHANED.format(before=before, then="time.sleep(3600)")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert main.stdout
    value, *folders = main.stdout.readline().split()
    assert all(Path(folder).is_dir() for folder in folders)
    main.kill()
    main.communicate()
    eventually(lambda: not watchdog.find_marked(f"{servers.MARK}={value}".encode()), what="the child is gone")
    eventually(lambda: not any(Path(folder).exists() for folder in folders), what="both folders are gone")


def test_a_watchdog_killed_at_the_end_spoils_nothing() -> None:
    """Kill the watchdog just before the process ends: the process ends without an error, and its folders are gone."""
    code = ORPHANED.format(
        before="", then="servers._ensure_guard()._watchdog.kill(); servers._ensure_guard()._watchdog.wait()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout.endswith("left in order\n")
    assert not any(Path(folder).exists() for folder in ended.stdout.split()[1:3])


def test_stop_kills_what_a_dead_script_left_of_its_group() -> None:
    """Stop a script that was killed: the process that it had started is killed too."""
    script = servers.start_process(["sh", "-c", "sleep 3600 & wait"])
    mark = f"{servers.MARK}={servers.mark_variable()[servers.MARK]}".encode()
    eventually(lambda: len(watchdog.find_marked(mark, group=script.pid)) == 2, what="script and sleep run")
    script.kill()
    script.wait()
    assert servers.stop_process(script) == -signal.SIGKILL
    assert watchdog.find_marked(mark, group=script.pid) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(-9, "killed by SIGKILL"), (137, "killed by SIGKILL"), (1, "exit status 1"), (0, "exit status 0")],
)
def test_how_a_process_ended(status: int, words: str) -> None:
    """Check the words for an exit status: a signal's name, or the status."""
    assert servers.describe_exit(status) == words


def test_stop_kills_a_process_that_ignores_the_signal() -> None:
    """Stop a process that ignores SIGTERM: it is killed after the grace period, and stopping it again is harmless."""
    child = servers.start_process(
        [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"]
    )
    status = Path(f"/proc/{child.pid}/status")
    ignoring = f"{1 << (signal.SIGTERM - 1):016x}"
    eventually(lambda: _ignored(status) >= int(ignoring, 16), what="the child ignores SIGTERM")
    assert servers.stop_process(child, grace_s=0.05) == -signal.SIGKILL
    assert servers.stop_process(child) == -signal.SIGKILL  # harmless to repeat


def _ignored(status: Path) -> int:
    """Return a number other than 0 if the process of this /proc status file ignores SIGTERM."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
    mask = int(line.split()[1], 16)
    return mask & (1 << (signal.SIGTERM - 1))


def test_signal_handlers_are_put_back() -> None:
    """Send SIGTERM within `exit_on_signals`: SystemExit with 128 + SIGTERM is raised, and the former handler is back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, servers.exit_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
