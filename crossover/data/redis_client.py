"""A connection to Redis: its address, its wire protocol, and commands with their retries. Vectors are sent without a copy."""

import mmap
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlsplit

from crossover import runtime
from crossover.data.protocols import shown
from crossover.errors import ConfigError, Missing, Refused, Unavailable
from crossover.runtime import REDIS

# --- redis address ----------------------------------------------------------------------------------------------------

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
        """Return a connected socket, encrypted and verified if the address asks for TLS. Raises OSError (ssl.SSLError among them)."""
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
    """Parse the address in `url`: redis://host:port, rediss://host:port (TLS) or unix:///path. Raises ConfigError.

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


# --- redis wire -------------------------------------------------------------------------------------------------------
# One connection to a Redis, moving vectors without copying them.
#
# RESP (redis.io/docs/latest/develop/reference/protocol-spec): a payload is handed to the kernel from the caller's memory (sendmsg) and
# received into the caller's memory (recv_into). redis-py copies it into the whole command on the way out and through its reader on the way
# in.

Argument = str | bytes | int | float | memoryview
Allocate = Callable[[int], memoryview]  # the memory for a payload of so many bytes

_HUGE_FROM = 4 * 2**20  # bytes: from here on, few large pages instead of thousands of page faults


class ErrorReply(Exception):
    """The server's answer was an error; the connection is in order. `text` begins with a code such as ERR, NOKEY, WRONGTYPE."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


def new_memory(bytes_: int) -> memoryview:
    """Fresh memory that nobody clears first, given back when the last view of it goes."""
    if bytes_ < _HUGE_FROM:
        return memoryview(bytearray(bytes_))
    memory = mmap.mmap(-1, bytes_, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class RedisConnection:
    """A socket that speaks RESP2. Not thread-safe. After any exception but ErrorReply it must be closed: half a reply may be left in it.

    Raises OSError: TimeoutError where the server is silent for `timeout_s`, ConnectionError where it hangs up.
    """

    def __init__(self, address: RedisAddress, *, timeout_s: float) -> None:
        self._socket = address.connect(timeout_s)
        self._tls = isinstance(self._socket, ssl.SSLSocket)
        self._timeout_s = timeout_s
        self._read = b""
        # A Python time-out makes the socket non-blocking, and MSG_WAITALL void; the kernel's own time-outs do not. TLS has no such flag.
        self.set_timeout(timeout_s)

    def set_timeout(self, timeout_s: float) -> None:
        """How long each wait for the server may last."""
        self._timeout_s = timeout_s
        if self._tls:
            self._socket.settimeout(timeout_s)
            return
        self._socket.settimeout(None)
        interval = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def close(self) -> None:
        self._socket.close()

    def command(self, arguments: Sequence[Argument], place: Allocate | None = None) -> Any:
        """Send a command and read its reply: str for a status, int, bytes, None, list.

        `place` chooses the memory for a payload: a bulk string that is the whole reply or its last element, which then is a memoryview.
        """
        try:
            self._send(_encoded(arguments))
            return self._reply(place)
        except BlockingIOError:  # the kernel's time-out
            raise TimeoutError(f"no answer within {self._timeout_s:g} s") from None

    def _send(self, parts: list[memoryview]) -> None:
        if self._tls:
            for part in parts:
                self._socket.sendall(part)
            return
        while parts:
            sent = self._socket.sendmsg(parts)
            while parts and sent >= parts[0].nbytes:
                sent -= parts.pop(0).nbytes
            if sent:
                parts[0] = parts[0][sent:]

    def _reply(self, place: Allocate | None) -> Any:
        line = self._line()
        match line[:1]:
            case b"+":
                return line[1:].decode()
            case b":":
                return int(line[1:])
            case b"$":
                return self._bulk(int(line[1:]), place)
            case b"*":
                count = int(line[1:])
                return None if count < 0 else [self._element(place if i == count - 1 else None) for i in range(count)]
            case b"-":
                raise ErrorReply(line[1:].decode(errors="replace"))
        raise ConnectionError(f"{line[:20]!r} is no reply of a Redis server")

    def _element(self, place: Allocate | None) -> Any:
        """Read one element of an array. An error is returned, not raised, because the elements behind it must still be read."""
        try:
            return self._reply(place)
        except ErrorReply as error:
            return error

    def _line(self) -> bytes:
        while b"\r\n" not in self._read:
            self._read += self._received()
        line, self._read = self._read.split(b"\r\n", 1)
        return line

    def _received(self) -> bytes:
        received = self._socket.recv(4096)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        return received

    def _bulk(self, bytes_: int, place: Allocate | None) -> bytes | memoryview | None:
        if bytes_ < 0:
            return None
        memory = memoryview(bytearray(bytes_)) if place is None else place(bytes_)
        at = min(len(self._read), bytes_)
        memory[:at] = self._read[:at]
        self._read = self._read[at:]
        flags = 0 if self._tls else socket.MSG_WAITALL
        while at < bytes_:
            received = self._socket.recv_into(memory[at:], 0, flags)
            if not received:
                raise ConnectionResetError("the server closed the connection")
            at += received
        while len(self._read) < 2:
            self._read += self._received()
        self._read = self._read[2:]
        return bytes(memory) if place is None else memory


def _encoded(arguments: Sequence[Argument]) -> list[memoryview]:
    """Encode the command as RESP in as few pieces as possible; payloads (memoryviews) stay where they are."""
    parts: list[memoryview] = []
    text = b"*%d\r\n" % len(arguments)
    for argument in arguments:
        if isinstance(argument, memoryview):
            payload = argument.cast("B")
            parts += [memoryview(text + b"$%d\r\n" % payload.nbytes), payload]
            text = b"\r\n"
            continue
        # repr is the shortest decimal that reads back as the same double
        encoded = (
            argument
            if isinstance(argument, bytes)
            else (repr(argument) if isinstance(argument, float) else str(argument)).encode()
        )
        text += b"$%d\r\n%b\r\n" % (len(encoded), encoded)
    parts.append(memoryview(text))
    return [part for part in parts if part.nbytes]


# --- redis client -----------------------------------------------------------------------------------------------------
# A client of one Redis for many threads and many invocations.

_CONNECT_S = 5.0
_ALIVE_WITHIN_S = 2.0  # how long the liveness check of an idle connection waits
_LATER = ("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "CLUSTERDOWN")  # codes of a server that will answer later


class RedisClient:
    """Connections to one Redis, made when needed, one per thread at a time, reused by later invocations.

    A Lambda function freezes between invocations and its connections may die meanwhile: one that was idle for `idle_s` answers a PING
    before it is used again. Every wait ends after `timeout_s`. A command whose reused connection breaks is sent once more: each command of
    the data plane may be repeated. Raises Unavailable (no answer), Missing (NOKEY), Refused (any other error reply), naming command and
    key, never payload or password.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        timeout_s: float = 120.0,
        idle_s: float = 5.0,
        connect: Callable[..., Any] = RedisConnection,
    ) -> None:
        self.address = address
        self._connect = connect
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._idle: list[tuple[RedisConnection, float]] = []  # (connection, when it was last used)
        self._lock = runtime.lock()
        self._pid = os.getpid()

    def command(self, name: str, *arguments: Argument, keys: Sequence[str] = (), place: Allocate | None = None) -> Any:
        """Send a command and return its reply. `keys`: the keys it uses, for errors. See RedisConnection.command for `place` and the
        reply's types.
        """
        for attempt in range(1 + REDIS.again):
            connection, reused = self._take(fresh=attempt > 0)
            try:
                reply = connection.command([name, *arguments], place)
            except ErrorReply as error:
                self._give_back(connection)
                _refuse(error.text, name, keys)
            except TimeoutError as error:
                connection.close()
                raise Unavailable(f"{name} {_named(keys)} on {self.address}: {error}") from None
            except (OSError, ValueError) as error:
                connection.close()
                if not reused:
                    raise Unavailable(f"{name} {_named(keys)} on {self.address}: {_said(error)}") from None
                continue
            except BaseException:  # half a reply may be left in it
                connection.close()
                raise
            self._give_back(connection)
            return reply
        raise AssertionError("the second attempt has a connection of its own")

    def close(self) -> None:
        """Close every idle connection; the next command makes a new one."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _take(self, *, fresh: bool) -> tuple[RedisConnection, bool]:
        """Return a connection, and whether it was used before. `fresh`: always open a new one."""
        while not fresh:
            with self._lock:
                if self._pid != os.getpid():  # a fork: these connections belong to the parent
                    self._idle, self._pid = [], os.getpid()
                if not self._idle:
                    break
                connection, used_at = self._idle.pop()
            if self._alive(connection, idle_s=runtime.monotonic() - used_at):
                return connection, True
            connection.close()
        return self._connected(), False

    def _give_back(self, connection: RedisConnection) -> None:
        with self._lock:
            self._idle.append((connection, runtime.monotonic()))

    def _alive(self, connection: RedisConnection, *, idle_s: float) -> bool:
        if idle_s < self._idle_s:
            return True
        try:
            connection.set_timeout(_ALIVE_WITHIN_S)
            alive = bool(connection.command(["PING"]) == "PONG")
            connection.set_timeout(self._timeout_s)
        except (OSError, ErrorReply):
            return False
        return alive

    def _connected(self) -> RedisConnection:
        try:
            connection: RedisConnection = self._connect(self.address, timeout_s=_CONNECT_S)
        except ssl.SSLCertVerificationError as error:
            raise Refused(f"{self.address}: it shows another certificate than expected: {_said(error)}") from None
        except OSError as error:
            raise Unavailable(f"{self.address}: no connection: {_said(error)}") from None
        try:
            if self.address.password:
                connection.command(["AUTH", self.address.password])
            connection.set_timeout(self._timeout_s)
        except ErrorReply as error:  # the server's words may repeat what was sent: they are not passed on
            connection.close()
            if "max number of clients" in error.text:
                raise Unavailable(f"{self.address}: it has as many clients as it takes") from None
            raise Refused(f"{self.address}: the password was refused") from None
        except OSError as error:
            connection.close()
            raise Unavailable(f"{self.address}: no connection: {_said(error)}") from None
        return connection


def _refuse(text: str, command: str, keys: Sequence[str]) -> NoReturn:
    """Raise what an error reply means."""
    code, _, rest = text.partition(" ")
    if code == "NOKEY":
        raise Missing(next((key for key in keys if f"'{key}'" in rest), keys[0] if keys else command))
    if code in _LATER:
        raise Unavailable(f"{command} {_named(keys)}: {text}")
    if rest.startswith("unknown command"):  # the rest of Redis's words are the arguments
        raise Refused(f"{command}: the server does not know this command; is the tensor module loaded?")
    if code in ("NOAUTH", "WRONGPASS"):
        raise Refused(f"{command}: the server wants a password, or another one")
    words = rest if code == "ERR" else text
    raise Refused(f"{command} {_named(keys)}: {words.removeprefix(command + ': ')}")


def _named(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
