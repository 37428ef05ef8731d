"""A client of one Redis for many threads and many invocations."""

import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from crossover import runtime
from crossover.dataplane.redis_address import RedisAddress
from crossover.dataplane.redis_wire import Allocate, Argument, ErrorReply, RedisConnection
from crossover.errors import Missing, Refused, Unavailable
from crossover.runtime.retries import REDIS

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
        """The reply to a command on `keys`; see RedisConnection.command for `place` and the reply's types."""
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
        """A connection, and whether it was used before."""
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
