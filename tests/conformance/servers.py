"""What the conformance suites run against: real servers of our own, started once per session."""

import contextlib
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from crossover.errors import MissingTool
from crossover.local.servers import RabbitServer, RedisServer
from tests.chaos.world.requests import Effect, Request
from tests.ports import held_port
from tests.redis_module.servers import building

ROOT = Path(__file__).parents[2]
PASSWORD = "p \"x'#,: ü"  # every character that a configuration file, a URL or an inline command could trip over
USERNAME = "trainer"
IN_MEMORY = {"appendonly": "no"}  # what is acknowledged need not be on the disk


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a server: its certificate, which clients verify it against, and its private key."""

    certificate: Path
    key: Path


class TlsRedisServer(RedisServer):
    """A Redis server with a second port, for TLS."""

    def __init__(self, folder: Path, *, tls: TlsFiles, password: str | None = None, module: Path | None = None) -> None:
        """Start Redis with a port for TLS besides its plain one. `module`: tensor module to load."""
        self.tls_port, self._held = held_port()
        self.tls_url = f"rediss://127.0.0.1:{self.tls_port}"
        settings = {
            **IN_MEMORY,
            "tls-port": self.tls_port,
            "tls-cert-file": tls.certificate.resolve(),
            "tls-key-file": tls.key.resolve(),
            "tls-ca-cert-file": tls.certificate.resolve(),
            "tls-auth-clients": "no",
        }
        super().__init__(folder, password=password, module=module, settings=settings)

    def __exit__(self, *ended: Any) -> None:
        """Stop the server and release the port for TLS."""
        super().__exit__(*ended)
        self._held.close()


class TlsRabbitServer(RabbitServer):
    """A RabbitMQ server with a second port, for TLS."""

    def __init__(self, folder: Path, *, tls: TlsFiles, username: str, password: str) -> None:
        """Start RabbitMQ with a port for TLS besides its plain one."""
        self.tls_port, self._held = held_port()
        self.tls_url = f"amqps://127.0.0.1:{self.tls_port}"
        settings = {
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.certfile": tls.certificate.resolve(),
            "ssl_options.keyfile": tls.key.resolve(),
            "ssl_options.cacertfile": tls.certificate.resolve(),
            "ssl_options.verify": "verify_none",  # of clients: they log in by password
            "ssl_options.fail_if_no_peer_cert": "false",
        }
        super().__init__(folder, username=username, password=password, settings=settings)

    def __exit__(self, *ended: Any) -> None:
        """Stop the server and release the port for TLS."""
        super().__exit__(*ended)
        self._held.close()


def module(target: str, product: str) -> Path:
    """Return the path of the tensor module, built if it is missing. Skips the test if it cannot be built."""
    path = ROOT / "redis_module" / "build" / product
    with building():
        if not path.exists():
            command = ["make", "-C", str(ROOT / "redis_module"), target, f"PYTHON={sys.executable}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"the tensor module ({product}) was not built: {done.stderr[-400:]}")
    return path


def self_made(folder: Path) -> TlsFiles:
    """Write a new key and a certificate signed by it into `folder`, made as the hosts on AWS make theirs at boot (cdk/boot/redis.sh), and
    return the files.
    """
    files = TlsFiles(folder / "server.pem", folder / "server.key")
    folder.mkdir(parents=True, exist_ok=True)
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "30",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    out = ["-out", str(files.certificate), "-keyout", str(files.key)]
    subprocess.run([*new, *names, *out], check=True, capture_output=True)
    return files


def redis_server(folder: Path, target: str, product: str, tls: TlsFiles) -> TlsRedisServer:
    """Return a Redis server with the tensor module and TLS. Skips the test if a program is missing."""
    try:
        return TlsRedisServer(folder, tls=tls, password=PASSWORD, module=module(target, product))
    except MissingTool as error:
        pytest.skip(str(error))


def rabbit_server(folder: Path, tls: TlsFiles) -> TlsRabbitServer:
    """Return a RabbitMQ server with TLS. Skips the test if a program is missing."""
    try:
        return TlsRabbitServer(folder, tls=tls, username=USERNAME, password=PASSWORD)
    except MissingTool as error:
        pytest.skip(str(error))


class AtOnce:
    """A connection to a virtual server without a simulated world: each request takes effect immediately, one at a time."""

    def __init__(self) -> None:
        """Make the lock that keeps requests apart."""
        self._lock = threading.Lock()

    def __call__(self, request: Request, effect: Effect) -> Any:
        """Do the request, and return its answer."""
        with self._lock:
            return effect()[0]


class Proxy:
    """A TCP port that forwards to another one and can break every connection, immediately or after a number of bytes towards the server."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        """Start to listen on a new port and pass each connection on to `port` of this machine."""
        self._target = port
        self._pairs: list[socket.socket] = []
        self._lock = threading.Lock()
        self._remaining: int | None = None
        self.connections = 0
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every open connection. New ones are accepted."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for each in pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def cut_after(self, bytes_: int) -> None:
        """Break the connections, one time, once `bytes_` more bytes have gone to the server."""
        with self._lock:
            self._remaining = bytes_

    def __enter__(self) -> Self:
        """Return the proxy."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening and break all connections."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        """Accept connections and forward them until the proxy is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._pairs += [client, server]
                self.connections += 1
            for source, target, counted in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, target, counted), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        """Forward bytes from one socket to another. `counted`: whether they count for `cut_after`."""
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if counted and self._spent(len(data)):
                    self.cut()
                    return
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _spent(self, bytes_: int) -> bool:
        """Count bytes, and return True if the connections must be broken now."""
        with self._lock:
            if self._remaining is None:
                return False
            self._remaining -= bytes_
            if self._remaining > 0:
                return False
            self._remaining = None
            return True
