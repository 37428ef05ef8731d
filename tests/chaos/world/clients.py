"""The data plane's own clients of a process in the virtual world, and the servers that they reach."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from crossover.experiment import Experiment
from crossover.stores.clients import Event
from crossover.stores.connecting import choose_tensor_compute, open_object_tensors
from crossover.stores.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore, Traffic
from crossover.stores.rabbitmq import RabbitMessageBus
from crossover.stores.redis_tensors import RedisTensorStore
from crossover.stores.s3 import S3ObjectStore
from tests.chaos.world.broker import VirtualBroker
from tests.chaos.world.bucket import Bucket
from tests.chaos.world.database import DatabaseClient, DatabaseCompute, VirtualDatabase
from tests.chaos.world.rabbitmq import VirtualConnection
from tests.chaos.world.requests import Carry


class VirtualServers:
    """The servers of one world: a bucket, a broker, and `databases` Redis servers. `carry`: carries each request to a server and its reply
    back; `now_s`: returns the servers' time in seconds.
    """

    def __init__(self, carry: Carry, *, databases: int, now_s: Callable[[], float] = lambda: 0.0) -> None:
        """Start all servers empty. `databases`: number of Redis servers."""
        self.carry = carry
        self.bucket = Bucket(carry)
        self.databases = [VirtualDatabase(number, now_s) for number in range(databases)]
        self.broker = VirtualBroker()


class VirtualClients:
    """The data plane's clients of one process: a function's environment, or a program on an instance. `run_machine`: runs a state machine
    to its end and returns its output.
    """

    def __init__(self, servers: VirtualServers, run_machine: Callable[[str, Event], Event]) -> None:
        """Open nothing yet. `servers`: the servers to connect to."""
        self._servers = servers
        self._tensor_stores: dict[int, RedisTensorStore] = {}
        self._to_broker: list[VirtualConnection] = []
        self.run_machine = run_machine

    def cut(self) -> None:
        """Break the process's connections to the broker, because it died or was frozen for too long."""
        for connection in self._to_broker:
            connection.cut()
        self._to_broker.clear()

    def objects(self, traffic: Traffic) -> ObjectStore:
        """Return a client of the bucket that counts into `traffic`."""
        return S3ObjectStore("bucket", traffic, client=cast(Any, self._servers.bucket))

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        """Return a client of the bucket for training data."""
        return self.objects(traffic)

    def uses_object_store(self, experiment: Experiment) -> bool:
        """Return whether vectors are exchanged through S3, because there is no database."""
        return experiment.storage.channel == "s3" and not self._servers.databases

    def _database(self, worker: int) -> VirtualDatabase:
        """Return the database of a worker; workers share them in turn if there are fewer databases."""
        return self._servers.databases[worker % len(self._servers.databases)]

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        """Return the tensor store of a worker: in the bucket if there is no database, else in the worker's database."""
        if self.uses_object_store(experiment):
            return open_object_tensors(self.objects(traffic))
        if worker not in self._tensor_stores:
            client = DatabaseClient(self._database(worker), self._servers.carry)
            kept_s = experiment.database.time_to_live_s
            self._tensor_stores[worker] = RedisTensorStore(client, traffic, time_to_live_s=kept_s)
        return self._tensor_stores[worker].with_traffic(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        """Return the computing for a worker's tensor store: in the database if the experiment asks for that and there is one, else by
        fetching the vectors.
        """
        store, compute = self.tensors(experiment, worker, traffic), experiment.database.compute
        if compute == "in_database" and isinstance(store, RedisTensorStore):
            return DatabaseCompute(store, self._database(worker))
        return choose_tensor_compute(store, compute="fetch")

    def bus(self, traffic: Traffic) -> MessageBus:
        """Return a message bus that is connected to the virtual broker."""
        url = "amqp://broker:5672"
        return RabbitMessageBus(url, username="trainer", password="", traffic=traffic, connect=self._connect)

    def _connect(self, parameters: Any) -> VirtualConnection:
        """Return a new connection to the virtual broker, and remember it."""
        connection = VirtualConnection(self._servers.broker, self._servers.carry, parameters)
        self._to_broker.append(connection)
        return connection

    def hold_slot(self) -> AbstractContextManager[float]:
        """Return a context manager that does nothing and gives 0.0, the seconds waited: there is no limit of concurrent workers."""
        return nullcontext(0.0)
