"""The watchdog: ends what a main process left behind, however that process ended (kill -9 included).

A script of its own (standard library, no package) that reads its standard input. End of file means that the main process is gone: then
every process whose environment carries the main process's mark is killed, and every folder it named is removed. The mark is found in /proc,
so children's children and daemons (epmd, Erlang's helpers) are found as well.

    python -I -S watchdog.py NAME=value      lines on standard input: "remove PATH" | "keep PATH"
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

_SCANS = 200  # at 50 ms: ten seconds for killed processes to leave /proc


def find_marked(mark: bytes, *, group: int = 0) -> list[int]:
    """Return the ids of all other processes that were started with `mark` in their environment, except zombies and processes whose
    environment this user may not read.

    `mark`: b"NAME=value"; `group`: only processes of this process group, 0 for all.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            ours = mark in (entry / "environ").read_bytes().split(b"\0") and not _is_zombie(entry)
            if ours and group in (0, os.getpgid(int(entry.name))):
                found.append(int(entry.name))
        except OSError:  # gone meanwhile, or another user's
            continue
    return found


def _is_zombie(entry: Path) -> bool:
    """Return whether a process has ended and only waits for its parent. `entry`: its folder in /proc."""
    return (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def kill_marked(mark: bytes, *, group: int = 0) -> None:
    """Kill all processes that have `mark` (b"NAME=value") in their environment, until two scans in a row find none, for about ten seconds
    at most.

    Several scans are needed because a process may fork while it is being killed. `group`: only processes of this process group, 0 for all.
    """
    quiet = 0
    for _ in range(_SCANS):
        pids = find_marked(mark, group=group)
        quiet = 0 if pids else quiet + 1
        if quiet == 2:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.05)


def main() -> None:
    """Watch standard input and clean up when it closes. A line `remove PATH` adds a folder to delete, `keep PATH` takes it back. At the end
    of the input, kill every process with the mark given as argument and delete the folders.

    Signals that would end this program are ignored until then.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its main process ends, not before
    mark = sys.argv[1].encode()
    folders: dict[str, None] = {}
    for line in sys.stdin:
        verb, _, path = line.rstrip("\n").partition(" ")
        if verb == "remove":
            folders[path] = None
        elif verb == "keep":
            folders.pop(path, None)
    kill_marked(mark)
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
