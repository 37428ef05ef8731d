"""Clients of a deployment: what the stack wrote into the environment of a function or program, made into stores, bus and machines.

Redis connections and the S3 client live as long as the process; an AMQP connection lives for one invocation, because a function that AWS
has frozen cannot answer heartbeats (`amqp-per-invocation` in docs/aws.md). Secrets are read by ARN, once per process, and stand nowhere
else.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from crossover.clients.protocol import Event
from crossover.clients.step_functions import StepFunctions
from crossover.dataplane import connecting
from crossover.dataplane.protocols import (
    ConnectedObjectStore,
    ConnectedTensorStore,
    MessageBus,
    ObjectStore,
    TensorCompute,
    TensorStore,
)
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError
from crossover.experiment import Experiment

PREFIX = "CROSSOVER_"


class DeployedClients:
    """Clients by the variables CROSSOVER_* of `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._tensor_stores: dict[int, ConnectedTensorStore] = {}
        self._object_stores: dict[str, ConnectedObjectStore] = {}
        self._secrets: dict[str, str] = {}  # by ARN
        self._state_machines = StepFunctions(environment)

    def _fact(self, name: str) -> str:
        try:
            return self._environment[PREFIX + name]
        except KeyError:
            raise ConfigError(f"{PREFIX}{name}: not in the environment; the stack sets it for what needs it") from None

    # --- objects ------------------------------------------------------------------------------------------------------

    def _bucket(self, name: str, traffic: Traffic) -> ObjectStore:
        if name not in self._object_stores:
            self._object_stores[name] = connecting.object_store(name, traffic)
        return self._object_stores[name].beside(traffic)

    def objects(self, traffic: Traffic) -> ObjectStore:
        return self._bucket(self._fact("BUCKET"), traffic)

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        buckets = self._environment.get(PREFIX + "DATA_BUCKETS", "").split()
        return self._bucket(buckets[worker] if buckets else self._fact("BUCKET"), traffic)

    # --- tensors ------------------------------------------------------------------------------------------------------

    def through_objects(self, experiment: Experiment) -> bool:
        return experiment.storage.channel == "s3" and not self._environment.get(PREFIX + "REDIS")

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        if self.through_objects(experiment):
            return connecting.object_tensors(self.objects(traffic))
        if worker not in self._tensor_stores:
            urls = self._fact("REDIS").split()
            rank = worker % len(urls)
            self._tensor_stores[worker] = connecting.tensor_store(
                urls[rank],
                password=self._secret("REDIS_SECRET"),
                certificate=self._certificate(urls[rank], rank),
                time_to_live_s=experiment.database.time_to_live_s,
                traffic=traffic,
            )
        return self._tensor_stores[worker].beside(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        return connecting.tensor_compute(
            self.tensors(experiment, worker, traffic),
            compute=experiment.database.compute,
        )

    def _certificate(self, url: str, rank: int) -> str | None:
        """The host's own certificate, which it uploaded at boot under a prefix that only its role may write."""
        if not url.startswith("rediss:"):
            return None
        return self.objects(Traffic()).get(f"{self._fact('REDIS_CERTIFICATES')}{rank}.pem").decode()

    # --- bus, machines, slots -----------------------------------------------------------------------------------------

    def bus(self, traffic: Traffic) -> MessageBus:
        login = json.loads(self._secret("BROKER_SECRET") or "{}")
        return connecting.message_bus(
            self._fact("BROKER"), username=login["username"], password=login["password"], traffic=traffic
        )

    def run_machine(self, name: str, event: Event) -> Event:
        return self._state_machines.run(name, event)

    def slot(self) -> AbstractContextManager[float]:
        folder = self._environment.get(PREFIX + "SLOTS")
        if not folder:
            return nullcontext(0.0)
        from crossover.clients.slots import slot  # on one machine only

        return slot(folder)

    # --- secrets ------------------------------------------------------------------------------------------------------

    def _secret(self, name: str) -> str | None:
        arn = self._environment.get(PREFIX + name)
        if not arn:
            return None
        if arn not in self._secrets:
            import boto3

            self._secrets[arn] = boto3.client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"]
        return self._secrets[arn]
