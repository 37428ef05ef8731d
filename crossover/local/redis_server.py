"""A redis-server of our own: a free port, a folder of its own, stopped with this process at the latest."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from crossover.errors import RunFailed
from crossover.local import processes, tools
from crossover.local.ports import free_port

_START_S = 30.0
_ATTEMPTS = 5  # free ports can be lost to another program
_LONGEST_SOCKET_PATH = 100  # bytes; the kernel takes 107
# Redis takes new memory for each large value on its way in and out. Huge pages make first touches of it 512 times rarer; without the
# threshold what was freed is taken again (jemalloc returns pieces of 8 MB and more at once, to be cleared once more).
MEMORY = "thp:always,oversize_threshold:0"  # MALLOC_CONF; cdk/boot/redis.sh sets the same


class RedisServer(AbstractContextManager[Any]):
    """redis-server on 127.0.0.1, with the tensor module if `module` (a .so) is given; it runs once this is made.

    `url` (redis://127.0.0.1:port) and `socket_url` (unix://) carry no password. What is acknowledged is on the disk (append-only file,
    synced always), and comes back after `kill()` and `start()` in the same folder. `settings`: lines of redis.conf beside ours, or instead.
    Raises MissingTool, RunFailed with the server's last words.
    """

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        module: Path | None = None,
        settings: Mapping[str, object] = {},
    ) -> None:
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._password = password
        self._module = _quoted(str(module.resolve())) if module else ""
        self._settings = settings
        self._program = tools.need(tools.REDIS)
        self.program, self.logs = tools.REDIS, [self._folder / "redis.log"]
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def start(self) -> None:
        """Start it (again, on the same port) and wait until it answers; data of the folder is loaded by then."""
        for _ in range(_ATTEMPTS):
            self.port = self.port or free_port()
            with open(self._folder / "redis.log", "ab") as log:
                self._process = processes.start(
                    [self._program, self._configuration()],
                    environment={  # no credentials
                        "LANG": "C.UTF-8",
                        "PATH": os.environ.get("PATH", os.defpath),
                        "MALLOC_CONF": MEMORY,
                    },
                    folder=self._folder,
                    output=log,
                )
            if self._answers():
                return
            words, ended = self._last_words(), processes.end_words(self.status)
            self.stop()
            if "Address already in use" not in words:
                raise RunFailed(f"redis-server did not start ({ended}); its last words:\n{words}")
            self.port = 0
        raise RunFailed(f"redis-server: {_ATTEMPTS} free ports in a row were taken by other programs")

    def stop(self) -> None:
        """End it in order; its data stays in the folder. Harmless when it has ended."""
        processes.stop(self._process)

    def kill(self) -> None:
        """End it as a power failure would (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _socket(self) -> Path:
        path = self._folder / "redis.sock"
        if len(str(path).encode()) > _LONGEST_SOCKET_PATH:
            return Path(f"/tmp/crossover-redis-{self.port}.sock")
        return path

    def _configuration(self) -> Path:
        lines = {
            "bind": "127.0.0.1",
            "port": self.port,
            "unixsocket": self._socket,
            "unixsocketperm": 700,
            "dir": self._folder,
            "daemonize": "no",
            "set-proc-title": "no",  # it would overwrite the environment, and with it the mark that the watchdog looks for
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always",
            "lazyfree-lazy-user-del": "yes",  # freeing a large vector must not hold up the other clients
            "lazyfree-lazy-expire": "yes",
            "disable-thp": "no",  # Redis would keep huge pages from itself and the module where all programs get them
            **self._settings,
        }
        if self._password:
            lines["requirepass"] = _quoted(self._password)
        if self._module:
            lines["loadmodule"] = self._module
        path = self._folder / "redis.conf"
        path.touch(mode=0o600)  # it holds the password
        path.write_text("".join(f"{name} {value}\n" for name, value in lines.items()), encoding="utf-8")
        return path

    def _answers(self) -> bool:
        """Whether it came up: PING answered, data loaded. False once the process has ended."""
        end_s = time.monotonic() + _START_S
        while self._process.poll() is None:
            with suppress(OSError):
                if self._ping().endswith(b"+PONG\r\n"):
                    return True
            if time.monotonic() > end_s:
                return False
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
        return False

    def _ping(self) -> bytes:
        login = f"AUTH {_quoted(self._password)}\r\n".encode() if self._password else b""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(str(self._socket))
            client.sendall(login + b"PING\r\nQUIT\r\n")
            reply = b""
            while received := client.recv(4096):
                reply += received
        return reply.removesuffix(b"+OK\r\n")

    def _last_words(self) -> str:
        return (self._folder / "redis.log").read_text(errors="replace", encoding="utf-8")[-2000:]


def _quoted(value: str) -> str:
    """`value` as redis.conf and inline commands quote it."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in value.encode()) + '"'
