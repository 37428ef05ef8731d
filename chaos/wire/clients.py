"""The deployed clients of a process in the virtual world: everything as on AWS but the last step, where a connection is made."""

import json
from collections.abc import Callable
from typing import Any

from chaos.wire import Carry
from chaos.wire.broker import Broker
from chaos.wire.rabbitmq import VirtualConnection
from chaos.wire.redis_server import RedisServer
from chaos.wire.redis_socket import VirtualRedisAddress
from chaos.wire.s3 import BUCKET, S3Server
from crossover.clients.deployed import DeployedClients
from crossover.clients.protocol import Event
from crossover.dataplane.rabbitmq import RabbitMessageBus
from crossover.dataplane.redis_client import RedisClient
from crossover.dataplane.redis_compute import RedisCompute
from crossover.dataplane.s3 import S3ObjectStore
from crossover.dataplane.traffic import Traffic

_BROKER = "amqp://broker:5672"
RunMachine = Callable[[str, Event], Event]


class Servers:
    """The servers of one world: a bucket, a broker, and `databases` Redis servers whose keys expire by `clock` (unix seconds)."""

    def __init__(self, carry: Carry, *, clock: Callable[[], float], databases: int) -> None:
        self.carry = carry
        self.bucket = S3Server(carry)
        self.databases = [RedisServer(clock, number=number) for number in range(databases)]
        self.broker = Broker()
        self.s3_client = self.bucket.client()

    def environment(self) -> dict[str, str]:
        """What a stack would write for its functions."""
        urls = " ".join(f"redis://database-{server.number}:6379" for server in self.databases)
        addresses = {"CROSSOVER_REDIS": urls} if urls else {}
        return {"CROSSOVER_BUCKET": BUCKET, "CROSSOVER_BROKER": _BROKER, **addresses}


class VirtualClients(DeployedClients):
    """Clients of one process: an environment of a function, a program on an instance."""

    def __init__(self, servers: Servers, run_machine: RunMachine) -> None:
        self._connections = _Connections(servers)
        self._run_machine = run_machine
        super().__init__(servers.environment(), connect=self._connections)

    def run_machine(self, name: str, event: Event) -> Event:
        return self._run_machine(name, event)

    def cut(self) -> None:
        """The broker sees the process's connections end: it died, or was frozen for longer than heartbeats may be missing."""
        for connection in self._connections.to_broker:
            connection.cut()
        self._connections.to_broker.clear()

    def _secret(self, name: str) -> str | None:
        return json.dumps({"username": "trainer", "password": "secret"}) if name == "BROKER_SECRET" else None


class _Connections:
    """dataplane/connecting.py, into the virtual world."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.to_broker: list[VirtualConnection] = []

    def object_store(self, url: str, traffic: Traffic) -> S3ObjectStore:
        return S3ObjectStore(url, traffic, client=self._servers.s3_client)

    def tensor_store(
        self, url: str, *, password: str | None, certificate: str | None, time_to_live_s: float, traffic: Traffic
    ) -> RedisCompute:
        number = self._servers.environment()["CROSSOVER_REDIS"].split().index(url)
        host = url.removeprefix("redis://").partition(":")[0]
        address = VirtualRedisAddress(host, server=self._servers.databases[number], carry=self._servers.carry)
        return RedisCompute(RedisClient(address), traffic, time_to_live_s=time_to_live_s)

    def message_bus(self, url: str, *, username: str, password: str, traffic: Traffic) -> RabbitMessageBus:
        return RabbitMessageBus(url, username=username, password=password, traffic=traffic, connect=self._to_broker)

    def _to_broker(self, parameters: Any) -> VirtualConnection:
        connection = VirtualConnection(self._servers.broker, self._servers.carry, parameters)
        self.to_broker.append(connection)
        return connection
