"""redis-py over the sockets that a RedisAddress makes: one place says how a Redis is reached, for commands with payloads and without."""

from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.retry import Retry

from crossover import runtime
from crossover.dataplane.redis_address import RedisAddress
from crossover.runtime.retries import REDIS_CONTROL


def redis_py(address: RedisAddress, *, timeout_s: float, connect_s: float, idle_s: float) -> redis.Redis:
    """A client for many threads; a connection that was idle for `idle_s` answers a PING before it is used again."""
    pauses = _Pauses(cap=REDIS_CONTROL.most_s, base=REDIS_CONTROL.first_s)
    pool = ConnectionPool(
        connection_class=_Connection,
        address=address,
        idle_s=max(1, round(idle_s)),
        password=address.password,
        driver_info=None,  # to say who it is, it reads its version off the disk and asks twice, at every new connection
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=connect_s,
        retry=Retry(pauses, REDIS_CONTROL.again, supported_errors=(redis.ConnectionError,)),
    )
    return redis.Redis.from_pool(pool)


class _Connection(AbstractConnection):
    """Connected by its address. redis-py's own check of idle connections asks a clock that nobody can set; this one does the same."""

    def __init__(self, address: RedisAddress, idle_s: float, **settings: Any) -> None:
        self.address, self.host, self.port = address, address.host or address.path, address.port
        self._idle_s, self._used_s = idle_s, runtime.monotonic()
        super().__init__(**settings)

    def repr_pieces(self) -> list[tuple[str, str]]:
        return [("address", str(self.address))]

    def check_health(self) -> None:
        if runtime.monotonic() > self._used_s + self._idle_s:
            self.retry.call_with_retry(self._send_ping, self._ping_failed, with_failure_count=True)
        self._used_s = runtime.monotonic()

    def _connect(self) -> Any:
        client = self.address.connect(float(self.socket_connect_timeout or 0))
        client.settimeout(self.socket_timeout)
        return client

    def _host_error(self) -> str:
        return str(self.address)


class _Pauses(ExponentialBackoff):
    """redis-py sleeps by itself for as long as this says: it has slept already."""

    def compute(self, failures: int) -> float:
        runtime.sleep(super().compute(failures))
        return 0.0
