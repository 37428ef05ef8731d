"""Child processes that never outlive this process.

Three nets, each for what the one before cannot catch: context managers and `atexit` for an orderly end, signals turned into an orderly end
(`ending_on_signals`), and the watchdog (watchdog.py), a process of its own that notices a kill -9. A watchdog that is itself killed has a
successor as soon as that is noticed. PR_SET_PDEATHSIG is not among them: it fires when the starting *thread* ends, and servers are started
from request threads here.
"""

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from crossover.local import watchdog

MARK = "CROSSOVER_STARTED_BY"  # in the environment of everything started here; the watchdog looks for it

_lock = threading.Lock()
_guard: "_Guard | None" = None


class _Guard:
    """This process's mark, its watchdog, and what is to end with it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.value = f"{self.pid}-{secrets.token_hex(8)}"
        self.children: list[subprocess.Popen[bytes]] = []
        self.folders: list[Path] = []
        self._lock = threading.Lock()
        self._watchdog = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, f"{MARK}={self.value}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,  # what a dead watchdog did not read must not be written once more when the pipe is closed
            start_new_session=True,  # a Ctrl-C in the terminal must not reach it
        )

    def remove(self, folder: Path) -> None:
        """`folder` goes with this process."""
        with self._lock:
            self.folders.append(folder)
            self._tell("remove", folder)

    def keep(self, folder: Path) -> None:
        with self._lock:
            self.folders.remove(folder)
            self._tell("keep", folder)

    def _tell(self, verb: str, folder: Path) -> None:
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its successor is told of all folders
            self._watchdog.stdin.write(f"{verb} {folder}\n".encode())

    def look_after_the_watchdog(self) -> None:
        with self._lock:
            if self._watchdog.poll() is None:
                return
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = self._started()
            for folder in self.folders:
                self._tell("remove", folder)

    def end(self) -> None:
        if os.getpid() != self.pid:  # a fork of the main process runs atexit too
            return
        for child in reversed(self.children):
            if child.poll() is None:
                stop(child, patience_s=3.0)
        watchdog.kill_marked(f"{MARK}={self.value}".encode())
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()


def _current() -> _Guard:
    global _guard
    with _lock:
        if _guard is None or _guard.pid != os.getpid():
            _guard = _Guard()
            atexit.register(_guard.end)
        else:
            _guard.look_after_the_watchdog()
        return _guard


def look_after_the_watchdog() -> None:
    """Start another one should it have been killed; every start of a process and every new folder does so too."""
    _current()


def mark() -> dict[str, str]:
    """The environment variable that lets the watchdog find a process: for those who start processes in another way."""
    return {MARK: _current().value}


def start(
    arguments: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    output: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, standard output and error to `output`; it ends with this process at the latest.

    `environment` replaces this process's (the mark is added), `folder` is its working directory. Raises FileNotFoundError.
    """
    guard = _current()
    child = subprocess.Popen(
        [str(argument) for argument in arguments],
        env={**(os.environ if environment is None else environment), MARK: guard.value},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )
    with _lock:
        guard.children = [each for each in guard.children if each.poll() is None] + [child]
    return child


def stop(child: subprocess.Popen[bytes], *, number: signal.Signals = signal.SIGTERM, patience_s: float = 10.0) -> int:
    """Ask the process to end; after `patience_s` kill its whole group. Returns its exit status.

    Harmless when it has ended: what it left of its group, as a killed script leaves its server, is killed. Members that survive an orderly
    end are left to the watchdog.
    """
    if child.poll() is not None:
        watchdog.kill_marked(f"{MARK}={_current().value}".encode(), group=child.pid)
    else:
        child.send_signal(number)
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def end_words(status: int | None) -> str:
    """How a process ended, by its exit status: `killed by SIGKILL`. A shell tells its program's signal as 128 + number."""
    if status is None:
        return "it runs, and does not answer"
    number = -status if status < 0 else status - 128
    known = number in {each.value for each in signal.Signals}
    return f"killed by {signal.Signals(number).name}" if known else f"exit status {status}"


@contextlib.contextmanager
def temporary_folder(prefix: str = "crossover-") -> Iterator[Path]:
    """A folder that is removed at the end of the block, and by the watchdog if this process does not live to do it."""
    path = Path(tempfile.mkdtemp(prefix=prefix))
    with removed_at_the_end(path):
        yield path


@contextlib.contextmanager
def removed_at_the_end(path: Path) -> Iterator[None]:
    """Remove `path` at the end of the block, or when this process ends, however it ends."""
    guard = _current()
    guard.remove(path)
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)
        guard.keep(path)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP end this process as `sys.exit` does: every `with` on the way out is left in order.

    Only in the main thread and only where nobody else handles the signal; SIGINT is KeyboardInterrupt already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    changed = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
