"""Clients of a deployment: what the stack wrote into the environment of a function or program, made into stores, bus and machines.

Redis connections and the S3 client live as long as the process; an AMQP connection lives for one invocation, because
a frozen function cannot
answer heartbeats (docs/aws.md, 9). Secrets are read by ARN, once per process, and stand nowhere else.
"""

import json
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crossover.context import Machines
from crossover.dataplane import connecting
from crossover.dataplane.protocols import MessageBus, ObjectStore, TensorCompute, TensorStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError, Unavailable, ended_with
from crossover.experiment import Experiment

if TYPE_CHECKING:
    from crossover.dataplane.files import FileObjectStore
    from crossover.dataplane.redis_tensors import RedisTensorStore
    from crossover.dataplane.redisai import RedisAITensorStore
    from crossover.dataplane.s3 import S3ObjectStore

PREFIX = "CROSSOVER_"
MACHINE_ATTEMPTS = 3
UNDER_WAY = ("RUNNING", "PENDING_REDRIVE")


class DeployedClients:
    """Clients by the variables CROSSOVER_* of `environment`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._tensor_stores: dict[tuple[str, int], RedisTensorStore | RedisAITensorStore] = {}
        self._object_stores: dict[str, S3ObjectStore | FileObjectStore] = {}

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
        key = (experiment.database.engine, worker)
        if key not in self._tensor_stores:
            urls = self._fact("REDIS").split()
            rank = worker % len(urls)
            self._tensor_stores[key] = connecting.tensor_store(
                urls[rank],
                password=self._secret("REDIS_SECRET"),
                certificate=self._certificate(urls[rank], rank),
                engine=experiment.database.engine,
                time_to_live_s=experiment.database.time_to_live_s,
                traffic=traffic,
            )
        return self._tensor_stores[key].beside(traffic)

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

    def machines(self) -> Machines:
        return self._machines

    @cached_property
    def _machines(self) -> Machines:
        return StepFunctions(self._environment)

    def slot(self) -> AbstractContextManager[float]:
        folder = self._environment.get(PREFIX + "SLOTS")
        if not folder:
            return nullcontext(0.0)
        from crossover.clients.slots import slot  # on one machine only

        return slot(folder)

    # --- secrets ------------------------------------------------------------------------------------------------------

    @cached_property
    def _secrets(self) -> dict[str, str]:
        return {}

    def _secret(self, name: str) -> str | None:
        arn = self._environment.get(PREFIX + name)
        if not arn:
            return None
        if arn not in self._secrets:
            import boto3

            self._secrets[arn] = boto3.client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"]
        return self._secrets[arn]


class StepFunctions:
    """Machines by their ARNs in the environment: CROSSOVER_MACHINE_<NAME>.

    An execution's name carries run, machine, worker and round, so that a program that starts again takes up the one that it has started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def run(self, name: str, event: dict[str, Any]) -> dict[str, Any]:
        """Start it, or take it up, and wait for its end; the event it ends with. Raises RunFailed with the cause, Unavailable."""
        arn = self._environment.get(f"{PREFIX}MACHINE_{name.upper()}")
        if not arn:
            raise ConfigError(
                f"{PREFIX}MACHINE_{name.upper()}: not in the environment; the stack sets it for what starts it"
            )
        kind = failure = ""
        for attempt in range(MACHINE_ATTEMPTS):  # a name whose execution failed is taken for 90 days
            found = self._ended(arn, f"{event['run']}-{name}-{event['worker']}-{event['round']}-{attempt}", event)
            if found["status"] == "SUCCEEDED":
                ended: dict[str, Any] = json.loads(found.get("output") or "{}")
                return ended
            told = found.get("error", found["status"]), found.get("cause", "")
            kind, failure = innermost_kind(*told), plain_cause(*told)
        raise ended_with(kind, f"{name}, worker {event['worker']}, round {event['round']}: {failure}")

    def _ended(self, arn: str, name: str, event: dict[str, Any]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        states = self._client
        try:
            with suppress(states.exceptions.ExecutionAlreadyExists):
                states.start_execution(stateMachineArn=arn, name=name, input=json.dumps(event))
            execution = f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
            pause_s = 0.05
            while (found := states.describe_execution(executionArn=execution))["status"] in UNDER_WAY:
                time.sleep(pause_s)
                pause_s = min(1.2 * pause_s, 1.0)
            return dict(found)
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"Step Functions, {name}: {error}") from error

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client("stepfunctions", config=Config(retries={"mode": "standard", "total_max_attempts": 8}))


# What Lambda itself ends a function for, and what helps; its own words name neither.
_ADVICE = {
    "Runtime.OutOfMemory": "it used all its memory: raise functions.memory_mb.{step}, or lower training.batch_size",
    "Runtime.ExitError": "its log says why; a function that is killed had most often too little functions.memory_mb.{step}",
    "Sandbox.Timedout": "raise functions.timeout_s, or give it more processor by functions.memory_mb.{step}",
}


def innermost_kind(error: str, cause: str) -> str:
    """The name of the error that nested causes begin with."""
    kinds: list[str] = re.findall(r'errorType\\*": ?\\*"([\w.]+)', cause)
    return kinds[-1] if kinds else error


def plain_cause(error: str, cause: str) -> str:
    """A failure in plain words: the innermost errorMessage of nested causes, behind the steps it passed through, and what helps."""
    text = cause or error
    messages = re.findall(r'errorMessage\\*": ?\\*"(.*?)\\*"[,}]', text)
    if not messages:
        return text[:1_000] if cause else error
    where = re.findall(r"(\w+ failed, worker \d+, epoch \d+, round \d+)", text)
    kind, step = innermost_kind(error, cause), where[-1].split()[0] if where else "default"
    advice = f"; {_ADVICE[kind].format(step=step)}" if kind in _ADVICE else ""
    return f"{where[-1] if where else 'a step failed'}: {kind}: {messages[-1]}{advice}"
