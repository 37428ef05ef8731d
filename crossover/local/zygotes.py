"""The parent's side of the zygotes: it starts one, requests environments from it, and reports when they end."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crossover.errors import Unavailable
from crossover.local import servers
from crossover.local.sessions import WITHOUT_FILES

ZygoteKind = Literal["plain", "torch"]
_ENVIRONMENT = {
    **WITHOUT_FILES,
    "LANG": "C.UTF-8",
    # A worker has two or three threads, and every arena keeps free pages of its own. Fixed thresholds keep a third less
    # free memory after a training step than glibc's own, which grow with what was freed; they cost no time.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
_SCRIPT = Path(__file__).with_name("zygote.py")


@dataclass(frozen=True, kw_only=True)
class ForkStart:
    """Everything that a forked execution environment needs to start.

    `environment`: all its variables; `folder`: its working directory; `path`: entries put before sys.path; `handler`: the function as
    `module.function`; `title`: the name that `ps` shows, cut to 15 bytes; `log`: file descriptor for its output. `Zygote.fork` sends a
    duplicate of `log`; the caller still closes its own.
    """

    environment: Mapping[str, str]
    folder: Path
    path: Sequence[Path]
    handler: str
    title: str
    log: int


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The Python that functions run on: this process's own by default, or another one such as an emulator's.

    `command(kind)`: returns the interpreter and its options, which come before the script's path; `start_s`: the most seconds that
    `Zygote.fork` waits for a reply, imports included.
    """

    command: Callable[[ZygoteKind], Sequence[str]] = lambda kind: (sys.executable, "-I")
    start_s: float = 60.0


class Zygote:
    """A fork server (zygote): a process that has imported the large modules and forks execution environments from itself. It runs from the
    object's creation to `close`.

    `on_exit(process id, wait status)`: called from a thread for each environment that ends; if the fork server ends by itself, for all that
    are left, with SIGKILL as status. Ends after `close` has begun may go unreported. `output`: the fork server's log file.
    """

    def __init__(
        self, kind: ZygoteKind, *, on_exit: Callable[[int, int], None], output: Path, runtime: Runtime | None = None
    ) -> None:
        """Start the fork server's process, without waiting for its imports, and the thread that listens to it. `kind`: "torch" or "plain"
        (without torch); `runtime`: its Python, None for this process's; `on_exit`, `output`: see the class.
        """
        runtime = runtime or Runtime()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
        environment.update(_ENVIRONMENT)
        with theirs, output.open("ab") as log:
            self._process = servers.start_process(
                [*runtime.command(kind), _SCRIPT, kind, str(theirs.fileno())],
                environment=environment,
                folder="/",
                output=log,
                pass_fds=[theirs.fileno()],
            )
        self._kind, self._channel, self._output, self._on_exit = kind, ours, output, on_exit
        self._start_s = runtime.start_s
        self._lock = threading.Lock()
        self._pending: dict[int, Future[int]] = {}
        self._forked: set[int] = set()  # those whose end was not told yet
        self._number = 0
        self._closed = False
        self._hung_up = (
            False  # sooner than the process is seen to have ended: a process that is killed closes its socket first
        )
        self._listener = threading.Thread(target=self._listen, name=f"zygote-{kind}", daemon=True)
        self._listener.start()

    @property
    def is_alive(self) -> bool:
        """True if the fork server still runs."""
        return not (self._closed or self._hung_up) and self._process.poll() is None

    def fork(self, start: ForkStart) -> int:
        """Let the fork server fork a new environment, and return its process id; the first call waits for the fork server's imports. Raises
        Unavailable if the fork server has ended, TimeoutError if it does not reply within the runtime's `start_s` seconds (60). After a
        TimeoutError the environment may still be forked later.
        """
        reply: Future[int] = Future()
        with self._lock:
            self._number += 1
            self._pending[self._number] = reply
            request = {
                "id": self._number,
                "environment": dict(start.environment),
                "folder": str(start.folder),
                "path": [str(entry) for entry in start.path],
                "handler": start.handler,
                "title": start.title,
            }
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [start.log])
            except OSError as error:
                self._hung_up = True
                del self._pending[self._number]
                raise self._build_end_error() from error
        return reply.result(self._start_s)

    def close(self) -> None:
        """End the fork server and its environments, and wait for the fork server. Ends of environments from now on may go unreported to
        `on_exit`.
        """
        self._closed = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)  # wakes the listening thread, which a close would not
        servers.stop_process(self._process, grace_s=1.0)
        self._listener.join()

    def _listen(self) -> None:
        """Receive the fork server's messages (a forked process id, the end of an environment) until it hangs up. Then fail all pending
        forks and report its environments as killed. Runs in a thread.
        """
        while True:
            try:
                message = self._channel.recv(65536)
            except OSError:
                message = b""
            if not message:
                break
            answer = json.loads(message)
            if "exited" in answer:
                self._forked.discard(answer["exited"])
                self._on_exit(answer["exited"], answer["status"])
            else:
                self._forked.add(answer["pid"])
                with self._lock:
                    reply = self._pending.pop(answer["id"])
                reply.set_result(answer["pid"])
        self._hung_up = True
        with self._lock:
            self._channel.close()
            for reply in self._pending.values():
                reply.set_exception(self._build_end_error())
            self._pending.clear()
        for pid in (
            self._forked if not self._closed else ()
        ):  # a killed fork server takes its processes with it, without a message
            self._on_exit(pid, signal.SIGKILL)

    def _build_end_error(self) -> Unavailable:
        """Return (not raise) the error for a request to a fork server that has ended, with the end of its log."""
        tail = self._output.read_text(errors="replace", encoding="utf-8")[-500:]
        return Unavailable(
            f"the {self._kind} fork server for local functions has ended; its last words: {tail.strip() or 'none'}"
        )


def describe_wait_status(status: int) -> str:
    """Return a process's wait status as text in Lambda's words: `exit status 1`, `signal: killed`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"signal: {_SIGNALS.get(number, f'signal {number}')}"
    return f"exit status {os.waitstatus_to_exitcode(status)}"


_SIGNALS = {6: "aborted", 8: "floating point exception", 9: "killed", 11: "segmentation fault", 15: "terminated"}
__all__ = ["ForkStart", "Runtime", "Zygote", "ZygoteKind", "describe_wait_status"]
