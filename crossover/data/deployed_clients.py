"""Open the stores, bus and state machines that a function's or instance's environment names."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

from crossover.data import connecting
from crossover.data.clients import Event, lazy
from crossover.data.protocols import (
    ConnectedObjectStore,
    ConnectedTensorStore,
    MessageBus,
    ObjectStore,
    TensorCompute,
    TensorStore,
    Traffic,
)
from crossover.errors import ConfigError, Unavailable, ended_with
from crossover.experiment import Experiment
from crossover.runtime import MACHINE, MACHINE_REQUEST, Pauses

# --- aws calls --------------------------------------------------------------------------------------------------------

# Refusals that the user can mend.
EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
}
DENIED = {"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}


def entries(session: Any, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """Yield the items that a paginated AWS operation lists under the response field `key`."""
    for page in session.client(service).get_paginator(operation).paginate(**arguments):
        yield from page.get(key, [])


def code_of(error: Any) -> str:
    """Return the error code of a botocore ClientError; empty if it has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


class Tolerating(AbstractContextManager[None]):
    """A refusal with one of these codes, or words, ends the block and nothing else: what was asked for is not there."""

    def __init__(self, *refusals: str) -> None:
        self._refusals = refusals

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        from botocore.exceptions import ClientError

        if not isinstance(error, ClientError):
            return False
        return code_of(error) in self._refusals or any(each in str(error) for each in self._refusals)


def parameter(session: Any, name: str) -> str:
    """Return the value of an SSM parameter; "" if there is none."""
    with Tolerating("ParameterNotFound"):
        return str(session.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
    return ""


def parameters(session: Any, path: str) -> dict[str, str]:
    """All of SSM's below `path`, by what their names add to it."""
    listed = entries(session, "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True)
    return {each["Name"].removeprefix(path): each["Value"] for each in listed}


def is_aws(session: Any) -> bool:
    """Whether clients of `session` talk to AWS, whatever redirected them: a variable, a profile, a service's own endpoint."""
    hosts = [
        urlsplit(str(session.client(name).meta.endpoint_url)).hostname or ""
        for name in ("sts", "lambda", "stepfunctions")
    ]
    return all(re.search(r"(^|\.)(amazonaws\.com(\.cn)?|api\.aws)$", host) for host in hosts)


# --- step functions ---------------------------------------------------------------------------------------------------
# State machines that a program starts, and what Step Functions says of an execution that failed, in plain words.

UNDER_WAY = ("RUNNING", "PENDING_REDRIVE")


class StepFunctions:
    """Machines by their ARNs in the environment: CROSSOVER_MACHINE_<NAME>.

    An execution's name carries run, machine, worker and round, so that a program that starts again takes up the one that it has started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def run(self, name: str, event: Event) -> Event:
        """Start it, or take it up, and wait for its end; the event it ends with. Raises RunFailed with the cause, Unavailable."""
        variable = f"CROSSOVER_MACHINE_{name.upper()}"
        arn = self._environment.get(variable)
        if not arn:
            raise ConfigError(f"{variable}: not in the environment; the stack sets it for what starts it")
        kind = failure = ""
        for attempt in range(1 + MACHINE.again):
            found = self._ended(arn, f"{event['run']}-{name}-{event['worker']}-{event['round']}-{attempt}", event)
            if found["status"] == "SUCCEEDED":
                ended: Event = json.loads(found.get("output") or "{}")
                return ended
            told = found.get("error", found["status"]), found.get("cause", "")
            kind, failure = innermost_kind(*told), plain_cause(*told)
        raise ended_with(kind, f"{name}, worker {event['worker']}, round {event['round']}: {failure}")

    def _ended(self, arn: str, name: str, event: Event) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        states = self._client
        try:
            with suppress(states.exceptions.ExecutionAlreadyExists):
                states.start_execution(stateMachineArn=arn, name=name, input=json.dumps(event))
            execution = f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
            pause = Pauses(0.05, 1.0)
            while (found := states.describe_execution(executionArn=execution))["status"] in UNDER_WAY:
                pause()
            return dict(found)
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"Step Functions, {name}: {error}") from error

    @lazy
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "stepfunctions",
            config=Config(retries={"mode": "standard", "total_max_attempts": 1 + MACHINE_REQUEST.again}),
        )


# Why Lambda itself ended a function, and what helps: Lambda's message says neither.
_ADVICE = {
    "Runtime.OutOfMemory": "it used all its memory: raise functions.memory_mb.{step}, or lower training.batch_size",
    "Runtime.ExitError": "its log says why; a function that is killed had most often too little functions.memory_mb.{step}",
    "Sandbox.Timedout": "raise functions.timeout_s, or give it more processor by functions.memory_mb.{step}",
}


def innermost_kind(error: str, cause: str) -> str:
    """Return the innermost error type named in `cause`; `error` if `cause` names none."""
    kinds: list[str] = re.findall(r'errorType\\*": ?\\*"([\w.]+)', cause)
    return kinds[-1] if kinds else error


def plain_cause(error: str, cause: str) -> str:
    """Describe a failure: the step that failed, the innermost error type and message in `cause`, and advice if there is any."""
    text = cause or error
    messages = re.findall(r'errorMessage\\*": ?\\*"(.*?)\\*"[,}]', text)
    if not messages:
        return text[:1_000] if cause else error
    where = re.findall(r"(\w+ failed, worker \d+, epoch \d+, round \d+)", text)
    kind, step = innermost_kind(error, cause), where[-1].split()[0] if where else "default"
    advice = f"; {_ADVICE[kind].format(step=step)}" if kind in _ADVICE else ""
    return f"{where[-1] if where else 'a step failed'}: {kind}: {messages[-1]}{advice}"


# --- deployed ---------------------------------------------------------------------------------------------------------
# Clients of a deployment: what the stack wrote into the environment of a function or program, made into stores, bus and machines.
#
# Redis connections and the S3 client live as long as the process; an AMQP connection lives for one invocation, because a function that AWS
# has frozen cannot answer heartbeats (`amqp-per-invocation` in docs/aws.md). Secrets are read by ARN, once per process, and stand nowhere
# else.

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
        """Fetch the host's own certificate, which it uploaded at boot under a prefix that only its role may write."""
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
        from crossover.data.clients import slot  # on one machine only

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
