"""The servers behind the template's hosts and brokers: real Redis with the tensor module, real RabbitMQ, by resource."""

import fcntl
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from crossover.errors import Lost, MissingTool, RunFailed
from crossover.local import processes
from crossover.local.moto_patches.ec2_instances import ROLE_TAG
from crossover.local.moto_patches.resource_types import secret
from crossover.local.rabbitmq_server import RabbitServer
from crossover.local.redis_server import RedisServer

_SECRET_ARN = re.compile(r"arn:aws:secretsmanager:[\w:/+=.@-]+")
_MODULE = Path(__file__).resolve().parents[2] / "redis_module"


class Servers:
    """What runs for the deployed resources; `stop` ends all of it, and nothing starts afterwards."""

    def __init__(self, folder: Path) -> None:
        self.redis: dict[str, RedisServer] = {}  # by instance id
        self.brokers: dict[str, RabbitServer] = {}  # by the broker's name
        self._addresses: dict[str, str] = {}  # private address of an instance -> URL of its server
        self._folder = folder
        self._lock = threading.Lock()
        self._rebooting: set[str] = set()  # brokers that are away for a moment, as Amazon MQ's are at maintenance
        self._over = False

    def start_instance(self, identity: str, tags: Mapping[str, str], address: str, user_data: str) -> None:
        """A host with the role `redis` runs redis-server with the secret's password; other roles are not known here."""
        if tags.get(ROLE_TAG) != "redis":
            return
        self._go_on()
        found = _SECRET_ARN.search(user_data)
        server = RedisServer(
            self._folder / "redis" / identity,
            password=secret(found.group().rstrip(".:")) if found else None,
            module=tensor_module(),
        )
        with self._kept(server) as over:
            if not over:
                self.redis[identity] = server
                self._addresses = {**self._addresses, address: server.url}

    @contextmanager
    def _kept(self, server: RedisServer | RabbitServer) -> Iterator[bool]:
        """Whether all is over: then what has just started is stopped again."""
        with self._lock:
            over = self._over
            yield over
        if over:
            server.stop()

    def _go_on(self) -> None:
        if self._over:
            raise RunFailed("the cloud on this machine has ended")

    def stop_instance(self, identity: str) -> None:
        with self._lock:
            server = self.redis.pop(identity, None)
            if server:
                self._addresses = {address: url for address, url in self._addresses.items() if url != server.url}
        if server:
            server.stop()

    def start_broker(self, name: str, username: str, password: str) -> str:
        """Its URL."""
        self._go_on()
        server = RabbitServer(self._folder / "rabbitmq" / name, username=username, password=password)
        with self._kept(server) as over:
            if not over:
                self.brokers[name] = server
        return server.url

    def reboot_broker(self, name: str) -> None:
        """Ended and started again on the same port: durable queues and persistent messages are there afterwards, connections are not."""
        with self._lock:
            server = self.brokers[name]
            self._rebooting.add(name)
        try:
            server.stop()
            self._go_on()
            server.start()
        finally:
            with self._lock:
                over = self._over
                self._rebooting.discard(name)
        if over:
            server.stop()

    def stop_broker(self, name: str) -> None:
        with self._lock:
            server = self.brokers.pop(name, None)
        if server:
            server.stop()

    def check(self, log: Path) -> None:
        """Raises Lost where a server has ended that nobody stopped; what it had logged is then kept in the file `log`."""
        with self._lock:
            there: dict[str, RedisServer | RabbitServer] = {**self.redis, **self.brokers}
            there = {name: server for name, server in there.items() if name not in self._rebooting}
        for name, server in there.items():
            if server.status is None:
                continue
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"".join(each.read_bytes() for each in server.logs if each.exists()))
            raise Lost(
                f"{server.program} ({name}) has ended ({processes.end_words(server.status)}), and the run cannot go on without it; "
                f"its log: {log}"
            )

    def runs(self, url: str) -> bool:
        """Whether the database at `url` is one of these, and has not ended."""
        with self._lock:
            return any(server.url == url and server.status is None for server in self.redis.values())

    def reachable(self, text: str) -> str:
        """`text` with every rediss://PRIVATE-ADDRESS:PORT of a host replaced by its server's URL on this machine."""
        for address, url in self._addresses.items():
            text = re.sub(rf"rediss?://{re.escape(address)}(?::\d+)?(?![\d.])", url, text)
        return text

    def stop(self) -> None:
        with self._lock:  # what is still starting stops itself
            self._over = True
            hosts, brokers = list(self.redis), list(self.brokers)
        for identity in hosts:
            self.stop_instance(identity)
        for name in brokers:
            self.stop_broker(name)


def tensor_module() -> Path:
    """The tensor engine's .so, built when it is missing or older than its source. Raises MissingTool, RunFailed."""
    target = _MODULE / "build" / "tensors.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max((path.stat().st_mtime for path in (_MODULE / "src").rglob("*") if path.is_file()), default=0.0)
        if target.exists() and target.stat().st_mtime >= newest:
            return target
        if not (shutil.which("g++") and shutil.which("make")):
            raise MissingTool(
                "g++ and make: needed to build the tensor engine; install them with: apt-get install g++ make"
            )
        command = ["make", "-C", str(_MODULE), "core"]
        built = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
        if built.returncode or not target.exists():
            raise RunFailed(f"make -C {_MODULE.name} core failed:\n{(built.stdout + built.stderr)[-2000:]}")
        return target
