"""Redis servers with the tensor module: own folder, free port and socket, always stopped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from crossover.local import servers
from tests.ports import held_port

ROOT = Path(__file__).parents[2]
MODULE = ROOT / "redis_module"
READY_S = 60  # an emulated server needs seconds
ANSWER_S = 120  # and one that a sanitizer watches, too
NO_RETRY = Retry(NoBackoff(), 0)
# What a server or a sanitizer says that found itself broken.
BROKEN = ("ASSERTION FAILED", "BUG REPORT START", "ERROR: AddressSanitizer", "WARNING: ThreadSanitizer")


def build(target: str, product: str, **variables: str) -> Path:
    """Run `make -C redis_module target`, and return the path of the product. Skips the test if the compiler is missing."""
    if shutil.which("make") is None or shutil.which("g++") is None:
        pytest.skip("the tensor module is built with make and g++, which this machine lacks")
    command = ["make", "-C", str(MODULE), target, *(f"{name}={value}" for name, value in variables.items())]
    with building():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return MODULE / "build" / product


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Hold the lock of builds for the time of the block, against other test processes and `crossover.local.cloud.build_tensor_module`."""
    (MODULE / "build").mkdir(exist_ok=True)
    with (MODULE / "build" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Client(redis.Redis):
    """redis-py's client with a typed `execute_command`."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its reply."""
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


class Server:
    """One process of redis-server with the tensor module. `program`: another command than redis-server; `config`: its options by name. Its
    folder and port stay the same over restarts, and are given up by `close`.
    """

    def __init__(
        self,
        module: Path,
        *,
        program: Sequence[str] | None = None,
        module_arguments: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make the server's temporary folder and hold a port for it; start() runs the server.

        `module` is the path of the module that the server loads, and `module_arguments` are the words after it at --loadmodule. `program`
        is another command than redis-server, `config` are Redis's options by name, and `environment` adds variables to the server's
        environment.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="tensors-"))
        self.port, self._port_holder = held_port()
        self.path = str(self.folder / "socket")
        self._command = [
            *(program or [servers.require_program(servers.REDIS)]),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            self.path,
        ]
        self._command += ["--dir", str(self.folder), "--save", "", "--enable-debug-command", "yes"]
        self._command += ["--repl-diskless-sync-delay", "0"]
        for name, value in (config or {}).items():
            self._command += [f"--{name}", *value.split(" ")]
        self._command += ["--loadmodule", str(module), *module_arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []

    @property
    def log(self) -> str:
        """The server's log so far."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process of the server."""
        assert self._process is not None
        return self._process

    def start(self) -> Server:
        """Start the server, wait until it answers, and return it. Raises AssertionError if it ends, or is not ready after READY_S."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        give_up = time.monotonic() + READY_S
        while True:
            assert self.process.poll() is None, f"the server ended at once:\n{self.log}"
            assert time.monotonic() < give_up, f"the server is not ready after {READY_S} s:\n{self.log}"
            try:
                with contextlib.closing(redis.Redis(unix_socket_path=self.path, retry=NO_RETRY)) as probe:
                    probe.ping()
                return self
            # Not listening yet, loading its data (BusyLoadingError), or a module, longer than redis-py waits.
            except (redis.ConnectionError, redis.TimeoutError):
                time.sleep(0.01)

    def client(self, **options: Any) -> Client:
        """Return a new client with a connection of its own over the Unix socket. `stop` closes it."""
        made = Client(unix_socket_path=self.path, retry=NO_RETRY, **{"socket_timeout": ANSWER_S, **options})
        self._clients.append(made)
        return made

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Close all clients, end the server by a signal, and return its exit status."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.process.send_signal(how)
        return self.process.wait(timeout=120)

    def close(self) -> None:
        """Kill the server if it runs, and delete its folder. Raises AssertionError if its log reports a crash or a sanitizer's finding."""
        if self._process is not None and self._process.poll() is None:
            self.stop(signal.SIGKILL)
        self._port_holder.close()
        log = self.log
        begins = [log.index(word) for word in BROKEN if word in log]
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not begins, log[max(0, min(begins) - 2_000) :][:20_000]


Start = Callable[..., Server]


@contextlib.contextmanager
def starting(default: Path) -> Iterator[Start]:
    """Yield a function that starts servers. All end with the block. `default`: path of the module."""
    with contextlib.ExitStack() as ends:

        def start(module: Path = default, **options: Any) -> Server:
            """Start a server with the module, and return it. `options`: further arguments of Server."""
            server = Server(module, **options)
            ends.callback(server.close)
            return server.start()

        yield start


def until(condition: Callable[[], bool], *, what: str, timeout_s: float = ANSWER_S) -> None:
    """Poll until `condition` returns True. Raises AssertionError after `timeout_s` seconds. `what`: words for the failure."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, f"not after {timeout_s} s: {what}"
        time.sleep(0.002)


def statistics(client: Client) -> dict[str, Any]:
    """Return the counters of TENSOR.STATS by name."""
    reply = client.execute_command("TENSOR.STATS")
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
