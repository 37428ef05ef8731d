"""A RabbitMQ broker of our own: free ports, a folder, a port mapper (epmd) and a cookie of its own."""

import base64
import hashlib
import json
import os
import secrets
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
from crossover.local.ports import free_ports

_START_S = 120.0
_ATTEMPTS = 5
FREE_MB = 200  # with less free where it lives it takes no messages
_PORT_LOST = {  # what it says when another program has taken the port of ...
    "listener": ("eaddrinuse",),
    "node": (
        "dist_port_already_used",
        "could not bind to distribution port",
        "nodistribution",
        "no_reg_reply_from_epmd",
    ),
}
# One scheduler of each kind, asleep while idle: training needs the cores. Erlang reads its thousand modules by handing each search of a
# folder from one kind to the other, and on busy cores every such hand-over waits its turn: with two of each a start took 59 s beside two
# trainings, with one 10 to 38 s, alone 6.4 s either way.
_ERLANG = "+S 1:1 +SDcpu 1:1 +SDio 1 +sbwt none +sbwtdcpu none +sbwtdio none"
# Nodes would listen for one another on every network; who knows a node's cookie commands it. Not only the broker's node: the script starts
# others that look for a name server.
_OF_THIS_MACHINE = "-kernel inet_dist_use_interface {127,0,0,1}"


class RabbitServer(AbstractContextManager[Any]):
    """A broker on 127.0.0.1; it runs once this is made. `url` is amqp://127.0.0.1:port.

    `settings`: of its configuration, beside ours. Raises MissingTool, RunFailed with the broker's last words.
    """

    def __init__(self, folder: Path, *, username: str, password: str, settings: Mapping[str, object] = {}) -> None:
        self._folder = folder.resolve()
        self._username = username
        self._password = password
        self._settings = settings
        self._mapper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._program = Path(tools.need(tools.RABBITMQ))
        self.program, self.logs = tools.RABBITMQ, [self._folder / "rabbit.log", self._folder / "output.log"]
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it (again, on the same port) and wait until it speaks AMQP."""
        for _ in range(_ATTEMPTS):
            port, mapper_port, node_port = free_ports(3)
            self.port = self.port or port
            environment, said = self._environment(mapper_port, node_port), self._log_sizes()
            self._mapper = processes.start(
                ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"], environment=environment
            )
            with open(self._folder / "output.log", "ab") as log:
                self._process = processes.start(
                    [self._program], environment=environment, folder=self._folder, output=log
                )
            if self._answers(self._process):
                return
            ended = processes.end_words(self.status)
            self.stop()
            words = self._words(said)
            if any(each in words for each in _PORT_LOST["listener"]):
                self.port = 0
            elif not any(each in words for each in _PORT_LOST["node"]):
                raise RunFailed(f"rabbitmq-server did not start ({ended}); its last words:\n{words[-4000:]}")
        raise RunFailed(f"rabbitmq-server: {_ATTEMPTS} times a free port was taken by another program")

    def stop(self) -> None:
        """End broker and port mapper; queues and persistent messages stay in the folder. Harmless when they have ended."""
        for process in (self._process, self._mapper):
            if process is not None:
                processes.stop(process, patience_s=30.0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _environment(self, mapper_port: int, node_port: int) -> dict[str, str]:
        home = self._folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        cookie = home / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(16), encoding="utf-8")
            cookie.chmod(0o400)
        (self._folder / "enabled_plugins").write_text("[].\n", encoding="utf-8")
        return {
            "PATH": f"{self._program.parent}:{os.environ.get('PATH', os.defpath)}",  # its own Erlang before others
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_AFLAGS": _OF_THIS_MACHINE,
            "RABBITMQ_NODENAME": f"crossover{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self._configuration()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "no-such-file"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self._folder / "generated"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        }

    def _configuration(self) -> Path:
        definitions = self._folder / "definitions.json"
        definitions.touch(mode=0o600)
        definitions.write_text(json.dumps(_definitions(self._username, self._password)), encoding="utf-8")
        lines = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "load_definitions": definitions,
            "max_message_size": 16 * 2**20,  # RabbitMQ 4's own; earlier releases would take what AWS refuses
            "vm_memory_high_watermark.absolute": "2GB",
            "disk_free_limit.absolute": f"{FREE_MB}MB",
            "log.console": "false",
            "log.file": self._folder / "rabbit.log",
            **self._settings,
        }
        path = self._folder / "rabbitmq.conf"
        path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()), encoding="utf-8")
        return path

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether it came up. False once the process has ended."""
        end_s = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < end_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as client:
                client.settimeout(5.0)
                client.sendall(b"AMQP\x00\x00\x09\x01")
                if client.recv(8):
                    return True
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        return False

    def _log_sizes(self) -> dict[Path, int]:
        return {log: log.stat().st_size if log.exists() else 0 for log in self.logs}

    def _words(self, since: Mapping[Path, int]) -> str:
        """What its logs have gained since they had these sizes."""
        return "\n".join(
            log.read_bytes()[size:].decode(errors="replace") for log, size in since.items() if log.exists()
        )


def _definitions(username: str, password: str) -> dict[str, object]:
    """One virtual host, one user. A definitions file takes any character in a password, and only its hash."""
    salt = secrets.token_bytes(4)
    digest = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    return {
        "vhosts": [{"name": "/"}],
        "users": [
            {
                "name": username,
                "password_hash": digest,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "administrator",
            }
        ],
        "permissions": [{"user": username, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    }
