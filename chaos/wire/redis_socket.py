"""Sockets that lead to a virtual Redis: they speak RESP with our own connections and with redis-py's, whole command by whole command."""

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from chaos.wire import Carry, Lost, Refusal, Request
from chaos.wire.redis_server import RedisServer
from crossover.dataplane.redis_address import RedisAddress
from crossover.dataplane.redis_wire import ErrorReply


@dataclass(frozen=True, slots=True)
class VirtualRedisAddress(RedisAddress):
    """Where a virtual Redis lies; whoever connects gets a socket that is none."""

    server: RedisServer = field(kw_only=True, compare=False)
    carry: Carry = field(kw_only=True, compare=False)

    def connect(self, timeout_s: float) -> socket.socket:
        return cast(socket.socket, VirtualSocket(self.server, self.carry, timeout_s))


class VirtualSocket:
    """What RedisConnection and redis-py ask of a socket. A command is carried once its last byte is sent; then its reply can be read."""

    def __init__(self, server: RedisServer, carry: Carry, timeout_s: float) -> None:
        self._server, self._carry, self._timeout_s = server, carry, timeout_s
        self._sent, self._replies = b"", b""
        self._failure: type[OSError] | None = None
        self._silence: type[OSError] = TimeoutError  # what a time-out raises: the kernel's own is another than Python's
        try:
            carry(self._request("connect"), self._accepted)
        except Lost as lost:
            raise (TimeoutError if lost.silent else ConnectionRefusedError)("no connection") from None
        server.connections += 1
        self._number, self._life = server.connections, server.life

    def _request(self, operation: str, keys: tuple[str, ...] = (), bytes_out: int = 0) -> Request:
        number = getattr(self, "_number", 0)
        return Request("redis", operation, keys, bytes_out, number, self._server.number, self._timeout_s)

    def _accepted(self) -> tuple[None, int]:
        if not self._server.up:
            raise Lost
        return None, 0

    # --- what a socket is asked ---------------------------------------------------------------------------------------

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s, self._silence = (float("inf") if seconds is None else seconds), TimeoutError

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        if option == socket.SO_RCVTIMEO and isinstance(value, bytes):
            seconds, microseconds = struct.unpack("@ll", value)
            self._timeout_s, self._silence = seconds + microseconds / 1e6, BlockingIOError

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        data = b"".join(parts)
        self.sendall(data)
        return len(data)

    def sendall(self, data: bytes | memoryview) -> None:
        self._sent += data
        for command in self._commands():
            if not self._broken():
                self._ask(command)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self._replies:
            self._nothing_to_read()
        found = self._replies[:size]
        if not flags & socket.MSG_PEEK:
            self._replies = self._replies[size:]
        return found

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        found = self.recv(min(size or view.nbytes, view.nbytes))
        view[: len(found)] = found
        return len(found)

    def fileno(self) -> int:
        """For redis-py, which polls an idle connection: a pipe in which nothing ever comes, or one that nobody holds open."""
        return _pipe(hung_up=self._broken())

    def shutdown(self, how: int) -> None:
        """Nothing is held back that could be sent first."""

    def close(self) -> None:
        self._failure = self._failure or ConnectionResetError

    # --- what it does -------------------------------------------------------------------------------------------------

    def _broken(self) -> bool:
        return self._failure is not None or self._life != self._server.life

    def _nothing_to_read(self) -> None:
        failure = self._failure or (ConnectionResetError if self._broken() else BlockingIOError)
        raise failure("nothing to read")

    def _commands(self) -> Iterator[list[bytes]]:
        """Whole commands, as far as they are sent."""
        while self._sent:
            end = self._sent.find(b"\r\n")
            if end < 0:
                return
            arguments, at = [], end + 2
            for _ in range(int(self._sent[1:end])):
                end = self._sent.find(b"\r\n", at)
                if end < 0:
                    return
                length = int(self._sent[at + 1 : end])
                at = end + 2 + length + 2
                arguments.append(self._sent[end + 2 : at - 2])
            if at > len(self._sent):
                return
            self._sent = self._sent[at:]
            yield arguments

    def _ask(self, arguments: list[bytes]) -> None:
        def effect() -> tuple[bytes, int]:
            if self._broken():
                raise Lost
            reply = _reply(self._server, arguments)
            return reply, len(reply)

        operation = arguments[0].decode().upper()
        payload = len(arguments[-1]) if operation == "AI.TENSORSET" else 0
        try:
            self._replies += self._carry(self._request(operation, _keys(operation, arguments), payload), effect)
        except Refusal as refusal:
            self._replies += b"-%s refused by the virtual world\r\n" % refusal.code.encode()
        except Lost as lost:
            self._failure = self._silence if lost.silent else ConnectionResetError


def _keys(operation: str, arguments: Sequence[bytes]) -> tuple[str, ...]:
    """The keys that a command names, inputs before outputs."""
    if operation == "PING":
        return ()
    if operation in ("EXISTS", "UNLINK"):
        found: Sequence[bytes] = arguments[1:]
    elif operation == "EVAL":
        found = arguments[3 : 3 + int(arguments[2])]
    elif operation in ("TENSOR.MEAN", "TENSOR.MEDIAN", "TENSOR.TRIMMEDMEAN", "TENSOR.KRUM"):
        found = [*arguments[2 : 2 + int(arguments[1])], arguments[arguments.index(b"OUT") + 1]]
    elif operation in ("TENSOR.SGD", "TENSOR.ADAM"):
        states, out = (2 if operation == "TENSOR.ADAM" else 1), arguments.index(b"OUT")
        found = [*arguments[1 : 3 + states], *arguments[out + 1 : out + 2 + states]]
    else:
        found = arguments[1:2]
    return tuple(key.decode() for key in found if key != b"-")


def _reply(server: RedisServer, arguments: Sequence[bytes]) -> bytes:
    try:
        return encoded(server.execute(arguments))
    except ErrorReply as error:
        return b"-%s\r\n" % error.text.encode()


def encoded(reply: Any) -> bytes:
    """A reply as RESP2."""
    match reply:
        case None:
            return b"$-1\r\n"
        case str():
            return b"+%s\r\n" % reply.encode()
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


@cache
def _pipe(*, hung_up: bool) -> int:
    """The reading end of a pipe; its other end is held open for the life of the process, or nowhere."""
    reading, writing = os.pipe()
    if hung_up:
        os.close(writing)
    return reading
