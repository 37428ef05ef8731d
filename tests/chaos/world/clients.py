"""The data plane's own clients of a process in the virtual world, and the servers that they reach."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from crossover.data.clients import Event
from crossover.data.connecting import choose_tensor_compute, open_object_tensors
from crossover.data.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore, Traffic
from crossover.data.rabbitmq import RabbitMessageBus
from crossover.data.redis_tensors import RedisTensorStore
from crossover.data.s3 import S3ObjectStore
from crossover.experiment import Experiment
from tests.chaos.world.broker import VirtualBroker
from tests.chaos.world.bucket import Bucket
from tests.chaos.world.database import DatabaseClient, DatabaseCompute, VirtualDatabase
from tests.chaos.world.rabbitmq import VirtualConnection
from tests.chaos.world.requests import Carry


class VirtualServers:
    """The servers of one world: a bucket, a broker, and `databases` Redis servers. `carry` takes every request to them;
    `now_s` is their clock.
    """

    def __init__(self, carry: Carry, *, databases: int, now_s: Callable[[], float] = lambda: 0.0) -> None:
        self.carry = carry
        self.bucket = Bucket(carry)
        self.databases = [VirtualDatabase(number, now_s) for number in range(databases)]
        self.broker = VirtualBroker()


class VirtualClients:
    """Clients of one process: an environment of a function, a program on an instance."""

    def __init__(self, servers: VirtualServers, run_machine: Callable[[str, Event], Event]) -> None:
        self._servers = servers
        self._tensor_stores: dict[int, RedisTensorStore] = {}
        self._to_broker: list[VirtualConnection] = []
        self.run_machine = run_machine

    def cut(self) -> None:
        """The broker sees the process's connections end: it died, or was frozen for longer than heartbeats may be missing."""
        for connection in self._to_broker:
            connection.cut()
        self._to_broker.clear()

    def objects(self, traffic: Traffic) -> ObjectStore:
        return S3ObjectStore("bucket", traffic, client=cast(Any, self._servers.bucket))

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        return self.objects(traffic)

    def uses_object_store(self, experiment: Experiment) -> bool:
        return experiment.storage.channel == "s3" and not self._servers.databases

    def _database(self, worker: int) -> VirtualDatabase:
        return self._servers.databases[worker % len(self._servers.databases)]

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        if self.uses_object_store(experiment):
            return open_object_tensors(self.objects(traffic))
        if worker not in self._tensor_stores:
            client = DatabaseClient(self._database(worker), self._servers.carry)
            kept_s = experiment.database.time_to_live_s
            self._tensor_stores[worker] = RedisTensorStore(client, traffic, time_to_live_s=kept_s)
        return self._tensor_stores[worker].with_traffic(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        store, compute = self.tensors(experiment, worker, traffic), experiment.database.compute
        if compute == "in_database" and isinstance(store, RedisTensorStore):
            return DatabaseCompute(store, self._database(worker))
        return choose_tensor_compute(store, compute="fetch")

    def bus(self, traffic: Traffic) -> MessageBus:
        url = "amqp://broker:5672"
        return RabbitMessageBus(url, username="trainer", password="", traffic=traffic, connect=self._connect)

    def _connect(self, parameters: Any) -> VirtualConnection:
        connection = VirtualConnection(self._servers.broker, self._servers.carry, parameters)
        self._to_broker.append(connection)
        return connection

    def hold_slot(self) -> AbstractContextManager[float]:
        return nullcontext(0.0)
