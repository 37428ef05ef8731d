"""One connection to a Redis, moving vectors without copying them.

RESP (redis.io/docs/latest/develop/reference/protocol-spec): a payload is handed to the kernel from the caller's memory (sendmsg) and
received into the caller's memory (recv_into). redis-py copies it into the whole command on the way out and through its reader on the way
in.
"""

import mmap
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any

from crossover.dataplane.redis_address import RedisAddress

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
        """An element of an array: an error among them is a value, or the elements behind it would be left unread."""
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
    """The command as RESP in as few pieces as possible; payloads (memoryviews) stay where they are."""
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
