"""Where a Redis lies and how to reach it: TCP, TLS or a unix socket."""

import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from crossover.dataplane.addresses import shown
from crossover.errors import ConfigError

_SEND_BUFFER = 2**19  # bytes, of a unix socket: the kernel adapts TCP's by itself, and leaves this one at 0.2 MB


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis and what a client proves and checks: `certificate` is the PEM text that a TLS server must present (or be signed by)."""

    host: str = ""
    port: int = 6379
    path: str = ""  # of a unix socket; then there is no host
    tls: bool = False
    password: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"redis{'s' if self.tls else ''}://{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected socket, encrypted and verified where TLS is asked for. Raises OSError (ssl.SSLError among them)."""
        if self.path:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.settimeout(timeout_s)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                client.connect(self.path)
            except OSError:
                client.close()
                raise
            return client
        client = socket.create_connection((self.host, self.port), timeout_s)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if not self.tls:
                return client
            # create_default_context verifies the certificate and the host name or address in it
            return ssl.create_default_context(cadata=self.certificate).wrap_socket(client, server_hostname=self.host)
        except OSError:
            client.close()
            raise


def redis_address(url: str, *, password: str | None = None, certificate: str | None = None) -> RedisAddress:
    """The address in `url`: redis://host:port, rediss://host:port (TLS) or unix:///path. Raises ConfigError.

    A password in the URL is refused: URLs end up in logs.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        parts, port = None, 0
    if parts is None or parts.scheme not in ("redis", "rediss", "unix") or parts.query or parts.fragment:
        raise ConfigError(f"Redis URL {shown(url)!r}: expected redis://host:port, rediss://host:port or unix:///path")
    if parts.password is not None or parts.username is not None:
        raise ConfigError(f"Redis URL of {parts.hostname}: it carries a password; give the password by itself")
    if parts.scheme == "unix":
        return RedisAddress(path=parts.path, password=password)
    if not parts.hostname:
        raise ConfigError(f"Redis URL {shown(url)!r}: it names no host")
    tls = parts.scheme == "rediss"
    return RedisAddress(parts.hostname, port, "", tls, password, certificate if tls else None)
