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
from crossover.errors import ConfigError, Missing, Refused, Unavailable
from crossover.runtime import REDIS
from crossover.stores.protocols import redact_url

# --- redis address ----------------------------------------------------------------------------------------------------

_SEND_BUFFER = 2**19  # bytes, of a unix socket: the kernel adapts TCP's by itself, and leaves this one at 0.2 MB


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address of a Redis server: `host` and `port`, or the `path` of a unix socket. `password`: the client's, None for none. `tls`:
    whether the connection is encrypted. `certificate`: PEM text that a TLS server must present or be signed by; None: the system's
    authorities.
    """

    host: str = ""
    port: int = 6379
    path: str = ""  # of a unix socket; then there is no host
    tls: bool = False
    password: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Return the address as a URL without the password."""
        return f"unix://{self.path}" if self.path else f"redis{'s' if self.tls else ''}://{self.host}:{self.port}"

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a socket connected to the server; with `tls` it is encrypted and the certificate verified. `timeout_s`: limit for
        the connection and later for each wait. Raises OSError.
        """
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


def parse_address(url: str, *, password: str | None = None, certificate: str | None = None) -> RedisAddress:
    """Return the address in `url`: redis://host:port, rediss://host:port (TLS) or unix:///path. The port is 6379 if the URL has none.
    `certificate`: PEM text that a TLS server must present or be signed by; not used without TLS.

    Raises ConfigError for any other URL, and for one with a password, since URLs end up in logs.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        parts, port = None, 0
    if parts is None or parts.scheme not in ("redis", "rediss", "unix") or parts.query or parts.fragment:
        raise ConfigError(
            f"Redis URL {redact_url(url)!r}: expected redis://host:port, rediss://host:port or unix:///path"
        )
    if parts.password is not None or parts.username is not None:
        raise ConfigError(f"Redis URL of {parts.hostname}: it carries a password; give the password by itself")
    if parts.scheme == "unix":
        return RedisAddress(path=parts.path, password=password)
    if not parts.hostname:
        raise ConfigError(f"Redis URL {redact_url(url)!r}: it names no host")
    tls = parts.scheme == "rediss"
    return RedisAddress(parts.hostname, port, "", tls, password, certificate if tls else None)


# --- redis wire -------------------------------------------------------------------------------------------------------
# One connection to a Redis, moving vectors without copying them.
#
# RESP (redis.io/docs/latest/develop/reference/protocol-spec): a payload is handed to the kernel from the caller's memory (sendmsg) and
# received into the caller's memory (recv_into). redis-py copies it into the whole command on the way out and through its reader on the way
# in.

Argument = str | bytes | int | float | memoryview
Allocate = Callable[[int], memoryview]  # from a payload's length in bytes to the memory that receives it

_HUGE_FROM = 4 * 2**20  # bytes: from here on, few large pages instead of thousands of page faults


class ErrorReply(Exception):
    """Error for an error reply of the server; the connection stays usable. `text`: the reply, which begins with a code such as ERR,
    NOKEY or WRONGTYPE.
    """

    def __init__(self, text: str) -> None:
        """Create the error from the server's reply `text`."""
        super().__init__(text)
        self.text = text

    @property
    def code(self) -> str:
        """First word of the reply, such as NOKEY."""
        return self.text.partition(" ")[0]


def allocate_memory(bytes_: int) -> memoryview:
    """Return new writable memory of `bytes_` bytes, all zero, which is freed with its last view. From 4 MiB on it is mapped anew, in
    huge pages if the system has them, and so costs no clearing here.
    """
    if bytes_ < _HUGE_FROM:
        return memoryview(bytearray(bytes_))
    memory = mmap.mmap(-1, bytes_, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


class RedisConnection:
    """One connection that speaks Redis's protocol RESP2; not thread-safe. After any exception except ErrorReply it must be closed,
    since part of a reply may still be unread.

    Raises OSError: TimeoutError if the server sends nothing for `timeout_s`, ConnectionError if it closes the connection.
    """

    def __init__(self, address: RedisAddress, *, timeout_s: float) -> None:
        """Connect to `address`. `timeout_s`: longest wait, in seconds, for the connection and for each answer. Raises OSError."""
        self._socket = address.connect(timeout_s)
        self._tls = isinstance(self._socket, ssl.SSLSocket)
        self._timeout_s = timeout_s
        self._read = b""
        # A Python time-out makes the socket non-blocking, and MSG_WAITALL void; the kernel's own time-outs do not. TLS has no such flag.
        self.set_timeout(timeout_s)

    def set_timeout(self, timeout_s: float) -> None:
        """Set to `timeout_s` seconds how long each later wait for the server may last, in receiving and in sending."""
        self._timeout_s = timeout_s
        if self._tls:
            self._socket.settimeout(timeout_s)
            return
        self._socket.settimeout(None)
        interval = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def command(self, arguments: Sequence[Argument], place: Allocate | None = None) -> Any:
        """Send a command, a list of its name and arguments, and return its reply: str for a status, int, bytes, None for nil, or a list
        of these, in which an error is an ErrorReply. Raises ErrorReply for an error as the whole reply; OSError (TimeoutError,
        ConnectionError and others) or ValueError if connection or reply is broken, and what `place` raises: close the connection then.

        `place`: takes a length in bytes and returns the memory into which the payload is received; the payload is a bulk string
        that is the whole reply or its last element, and is returned as that memory. None: bytes are returned.
        """
        try:
            self._send(_encode_command(arguments))
            return self._read_reply(place)
        except BlockingIOError:  # the kernel's time-out
            raise TimeoutError(f"no answer within {self._timeout_s:g} s") from None

    def _send(self, parts: list[memoryview]) -> None:
        """Send all `parts` in order, without joining them. The list is changed: without TLS it is empty afterwards."""
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

    def _read_reply(self, place: Allocate | None) -> Any:
        """Read one reply and return it, with the types of `command`. `place`: allocates memory for its payload, None for bytes.
        Raises ErrorReply for an error reply, ConnectionError for bytes that are no reply.
        """
        line = self._read_line()
        match line[:1]:
            case b"+":
                return line[1:].decode()
            case b":":
                return int(line[1:])
            case b"$":
                return self._read_bulk(int(line[1:]), place)
            case b"*":
                count = int(line[1:])
                return (
                    None if count < 0 else [self._read_element(place if i == count - 1 else None) for i in range(count)]
                )
            case b"-":
                raise ErrorReply(line[1:].decode(errors="replace"))
        raise ConnectionError(f"{line[:20]!r} is no reply of a Redis server")

    def _read_element(self, place: Allocate | None) -> Any:
        """Read one element of a list reply and return it. An ErrorReply is returned, not raised, because the elements after it must
        still be read. `place`: as in `_read_reply`.
        """
        try:
            return self._read_reply(place)
        except ErrorReply as error:
            return error

    def _read_line(self) -> bytes:
        """Read up to the next line end (CR LF) and return the line without it."""
        while b"\r\n" not in self._read:
            self._read += self._receive()
        line, self._read = self._read.split(b"\r\n", 1)
        return line

    def _receive(self) -> bytes:
        """Wait for bytes from the socket and return up to 4,096 of them. Raises ConnectionResetError if the server closed the
        connection.
        """
        received = self._socket.recv(4096)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        return received

    def _read_bulk(self, bytes_: int, place: Allocate | None) -> bytes | memoryview | None:
        """Read a bulk string of `bytes_` bytes and return it: as bytes, or as the memory that `place` returned; None if the length is
        negative (nil). Raises ConnectionResetError if the server closes the connection before the end.
        """
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
            self._read += self._receive()
        self._read = self._read[2:]
        return bytes(memory) if place is None else memory


def _encode_command(arguments: Sequence[Argument]) -> list[memoryview]:
    """Return a command's bytes in RESP as a list of buffers, as few as possible; memoryview arguments are not copied."""
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
_RETRYABLE_CODES = (
    "LOADING",
    "BUSY",
    "TRYAGAIN",
    "MASTERDOWN",
    "CLUSTERDOWN",
)  # codes of a server that will answer later


class RedisClient:
    """Thread-safe client of one Redis server with a pool of connections, which later invocations use again.

    A connection that was idle for `idle_s` seconds must answer a PING before it is used again. Every wait ends after `timeout_s`. A
    command whose used connection breaks is sent once more on a new one, so every command must be repeatable. Raises Unavailable (no
    answer), Missing (NOKEY), Refused (other error replies); messages name command and key, never payload or password.
    """

    def __init__(
        self,
        address: RedisAddress,
        *,
        timeout_s: float = 120.0,
        idle_s: float = 5.0,
        connect: Callable[..., Any] = RedisConnection,
    ) -> None:
        """Prepare a client without connecting. `timeout_s`: longest wait for an answer, `idle_s`: idle time after which a
        connection is checked, both in seconds. `connect`: opens a connection.
        """
        self.address = address
        self._connect = connect
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._idle: list[tuple[RedisConnection, float]] = []  # (connection, when it was last used)
        self._lock = runtime.lock()
        self._pid = os.getpid()

    def command(self, name: str, *arguments: Argument, keys: Sequence[str] = (), place: Allocate | None = None) -> Any:
        """Send the command `name` with `arguments` and return its reply, of the types that RedisConnection.command returns. Raises
        Missing, Refused or Unavailable. If a used connection breaks, the command is sent once more on a new one; after a timeout it
        is not.

        `keys`: keys that the command uses, for errors. `place`: takes a length in bytes and returns memory for the payload (see
        RedisConnection.command); None: bytes.
        """
        for attempt in range(1 + REDIS.again):
            connection, reused = self._take_connection(fresh=attempt > 0)
            try:
                reply = connection.command([name, *arguments], place)
            except ErrorReply as error:
                self._return_connection(connection)
                _raise_error_reply(error.text, name, keys)
            except TimeoutError as error:
                connection.close()
                raise Unavailable(f"{name} {_list_keys(keys)} on {self.address}: {error}") from None
            except (OSError, ValueError) as error:
                connection.close()
                if not reused:
                    raise Unavailable(
                        f"{name} {_list_keys(keys)} on {self.address}: {_describe_error(error)}"
                    ) from None
                continue
            except BaseException:  # half a reply may be left in it
                connection.close()
                raise
            self._return_connection(connection)
            return reply
        raise AssertionError("the second attempt has a connection of its own")

    def close(self) -> None:
        """Close every idle connection; the next command makes a new one. A connection in use stays open and returns to the pool."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _take_connection(self, *, fresh: bool) -> tuple[RedisConnection, bool]:
        """Return (connection, whether it was used before): one from the pool that still works, or a new one. Broken ones are closed; after
        a fork the parent's are left alone. Raises the errors of `_connect_and_login`. `fresh`: always open a new one.
        """
        while not fresh:
            with self._lock:
                if self._pid != os.getpid():  # a fork: these connections belong to the parent
                    self._idle, self._pid = [], os.getpid()
                if not self._idle:
                    break
                connection, used_at = self._idle.pop()
            if self._is_alive(connection, idle_s=runtime.monotonic() - used_at):
                return connection, True
            connection.close()
        return self._connect_and_login(), False

    def _return_connection(self, connection: RedisConnection) -> None:
        """Put the connection back into the pool."""
        with self._lock:
            self._idle.append((connection, runtime.monotonic()))

    def _is_alive(self, connection: RedisConnection, *, idle_s: float) -> bool:
        """Return whether the connection still works.

        It is assumed to if it was last used less than the client's `idle_s` ago; otherwise it must answer a PING within 2 seconds.
        `idle_s`: seconds since its last use.
        """
        if idle_s < self._idle_s:
            return True
        try:
            connection.set_timeout(_ALIVE_WITHIN_S)
            alive = bool(connection.command(["PING"]) == "PONG")
            connection.set_timeout(self._timeout_s)
        except (OSError, ErrorReply):
            return False
        return alive

    def _connect_and_login(self) -> RedisConnection:
        """Return a new connection, logged in if the address has a password. Raises Unavailable, or Refused if password or
        certificate are wrong.
        """
        try:
            connection: RedisConnection = self._connect(self.address, timeout_s=_CONNECT_S)
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"{self.address}: it shows another certificate than expected: {_describe_error(error)}"
            ) from None
        except OSError as error:
            raise Unavailable(f"{self.address}: no connection: {_describe_error(error)}") from None
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
            raise Unavailable(f"{self.address}: no connection: {_describe_error(error)}") from None
        return connection


def _raise_error_reply(text: str, command: str, keys: Sequence[str]) -> NoReturn:
    """Raise the error for `text`, the server's error reply: Missing for NOKEY, Unavailable if the server will answer later (e.g. LOADING),
    otherwise Refused. `command`, `keys`: for the message.
    """
    code, _, rest = text.partition(" ")
    if code == "NOKEY":
        raise Missing(next((key for key in keys if f"'{key}'" in rest), keys[0] if keys else command))
    if code in _RETRYABLE_CODES:
        raise Unavailable(f"{command} {_list_keys(keys)}: {text}")
    if rest.startswith("unknown command"):  # the rest of Redis's words are the arguments
        raise Refused(f"{command}: the server does not know this command; is the tensor module loaded?")
    if code in ("NOAUTH", "WRONGPASS"):
        raise Refused(f"{command}: the server wants a password, or another one")
    words = rest if code == "ERR" else text
    raise Refused(f"{command} {_list_keys(keys)}: {words.removeprefix(command + ': ')}")


def _list_keys(keys: Sequence[str]) -> str:
    """Return the first three of `keys` as text, and how many more there are."""
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _describe_error(error: BaseException) -> str:
    """Return the error's message, or its class name if it has none."""
    return str(error) or type(error).__name__
