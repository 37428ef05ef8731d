"""Open the stores, bus and state machines that a function's or instance's environment names."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

from crossover.errors import ConfigError, Unavailable, rebuild_error
from crossover.experiment import Experiment
from crossover.runtime import MACHINE, MACHINE_REQUEST, Pauses
from crossover.stores import connecting
from crossover.stores.clients import Event, lazy
from crossover.stores.protocols import (
    ConnectedObjectStore,
    ConnectedTensorStore,
    MessageBus,
    ObjectStore,
    TensorCompute,
    TensorStore,
    Traffic,
)

# --- aws calls --------------------------------------------------------------------------------------------------------

# Refusals that the user can fix.
EXPIRED_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "AuthFailure",
}
DENIED_CODES = {"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"}


def list_items(session: Any, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """Yield the items in the response field `key` of all pages of an AWS `operation`; a page is requested when it is needed.

    `session`: boto3 session; `service`: such as "ec2"; `operation`: boto3's name of a method that has a paginator; `arguments`: of
    that method. Raises botocore's ClientError for a page that AWS refuses.
    """
    for page in session.client(service).get_paginator(operation).paginate(**arguments):
        yield from page.get(key, [])


def get_error_code(error: Any) -> str:
    """Return the error code of a botocore ClientError, such as "AccessDenied"; "" if it has none."""
    return str(error.response.get("Error", {}).get("Code", ""))


class ToleratedErrors(AbstractContextManager[None]):
    """Context manager that suppresses a botocore ClientError whose code is one of `refusals`, or whose text contains one of them.
    Other errors pass.
    """

    def __init__(self, *refusals: str) -> None:
        """Set the error codes, or parts of error texts, to suppress."""
        self._refusals = refusals

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Return True, which suppresses the error, if it is a ClientError whose code is one of the refusals or whose text contains one."""
        from botocore.exceptions import ClientError

        if not isinstance(error, ClientError):
            return False
        return get_error_code(error) in self._refusals or any(each in str(error) for each in self._refusals)


def read_parameter(session: Any, name: str) -> str:
    """Return the value of the AWS SSM parameter `name` as it is stored, so that of a SecureString is not decrypted; "" if the
    parameter does not exist. `session`: boto3 session. Raises botocore's ClientError if the request is refused for another reason.
    """
    with ToleratedErrors("ParameterNotFound"):
        return str(session.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
    return ""


def read_parameters(session: Any, path: str) -> dict[str, str]:
    """Return {rest of the name: value} of all AWS SSM parameters whose names begin with `path`, at any depth; {} if there are none.
    Values are as stored: those of SecureStrings are not decrypted. `session`: boto3 session.
    """
    listed = list_items(session, "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True)
    return {each["Name"].removeprefix(path): each["Value"] for each in listed}


def is_aws(session: Any) -> bool:
    """Return whether the sts, lambda and stepfunctions clients of the boto3 `session` talk to AWS itself, not to another endpoint set
    by an environment variable or profile, such as a local emulation. No request is sent.
    """
    hosts = [
        urlsplit(str(session.client(name).meta.endpoint_url)).hostname or ""
        for name in ("sts", "lambda", "stepfunctions")
    ]
    return all(re.search(r"(^|\.)(amazonaws\.com(\.cn)?|api\.aws)$", host) for host in hosts)


# --- step functions ---------------------------------------------------------------------------------------------------
# State machines that a program starts, and what Step Functions says of an execution that failed, in plain words.

RUNNING_STATES = ("RUNNING", "PENDING_REDRIVE")


class StepFunctions:
    """Client that runs state machines, whose ARNs are in `environment` as CROSSOVER_MACHINE_<NAME>.

    An execution's name is made of run, machine, worker, round and the number of the try, so that a restarted program finds the execution
    that it had started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Prepare without any request. `environment`: variables with the machines' ARNs. Region and credentials are boto3's
        defaults for this process, not read from `environment`.
        """
        self._environment = environment

    def run(self, name: str, event: Event) -> Event:
        """Start the state machine `name` with the input `event`, or find the execution that an earlier call with the same run, worker
        and round in its `event` started, and wait for its end. Returns its output event. A failed execution is started again under
        another name, twice at most.

        Raises RunFailed, or the UserError that ended the execution, with the cause; Unavailable if Step Functions does not answer;
        ConfigError if the machine's ARN is not in the environment.
        """
        variable = f"CROSSOVER_MACHINE_{name.upper()}"
        arn = self._environment.get(variable)
        if not arn:
            raise ConfigError(f"{variable}: not in the environment; the stack sets it for what starts it")
        kind = failure = ""
        for attempt in range(1 + MACHINE.again):
            found = self._wait_for_execution(
                arn, f"{event['run']}-{name}-{event['worker']}-{event['round']}-{attempt}", event
            )
            if found["status"] == "SUCCEEDED":
                ended: Event = json.loads(found.get("output") or "{}")
                return ended
            told = found.get("error", found["status"]), found.get("cause", "")
            kind, failure = find_innermost_error(*told), describe_cause(*told)
        raise rebuild_error(kind, f"{name}, worker {event['worker']}, round {event['round']}: {failure}")

    def _wait_for_execution(self, arn: str, name: str, event: Event) -> dict[str, Any]:
        """Start the execution `name` of the machine `arn` with the input `event` unless it exists (it then keeps its own input),
        and poll until it ends, without a timeout. Returns the response of DescribeExecution. Raises Unavailable for every error of
        boto3 and AWS, also for a refused request.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        states = self._client
        try:
            with suppress(states.exceptions.ExecutionAlreadyExists):
                states.start_execution(stateMachineArn=arn, name=name, input=json.dumps(event))
            execution = f"{arn.replace(':stateMachine:', ':execution:')}:{name}"
            pause = Pauses(0.05, 1.0)
            while (found := states.describe_execution(executionArn=execution))["status"] in RUNNING_STATES:
                pause()
            return dict(found)
        except (BotoCoreError, ClientError) as error:
            raise Unavailable(f"Step Functions, {name}: {error}") from error

    @lazy
    def _client(self) -> Any:
        """Boto3 client of Step Functions, made at the first access."""
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


def find_innermost_error(error: str, cause: str) -> str:
    """Return the name of the innermost error type in `cause`, the JSON text of a failed execution; `error` if `cause` names none."""
    kinds: list[str] = re.findall(r'errorType\\*": ?\\*"([\w.]+)', cause)
    return kinds[-1] if kinds else error


def describe_cause(error: str, cause: str) -> str:
    """Return in words why an execution failed: the step that failed, the innermost error type and message, and for some errors of
    Lambda itself advice. If `cause` has no error message, return its first 1,000 characters, or `error` if it is empty. `error`,
    `cause`: from DescribeExecution.
    """
    text = cause or error
    messages = re.findall(r'errorMessage\\*": ?\\*"(.*?)\\*"[,}]', text)
    if not messages:
        return text[:1_000] if cause else error
    where = re.findall(r"(\w+ failed, worker \d+, epoch \d+, round \d+)", text)
    kind, step = find_innermost_error(error, cause), where[-1].split()[0] if where else "default"
    advice = f"; {_ADVICE[kind].format(step=step)}" if kind in _ADVICE else ""
    return f"{where[-1] if where else 'a step failed'}: {kind}: {messages[-1]}{advice}"


# --- deployed ---------------------------------------------------------------------------------------------------------
# Clients of a deployment: what the stack wrote into the environment of a function or program, made into stores, bus and machines.
#
# Redis connections and the S3 client live as long as the process; an AMQP connection lives for one invocation, because a function that AWS
# has frozen cannot answer heartbeats (`amqp-per-invocation` in docs/aws.md). Secrets are read by ARN, once per process, and not stored
# else.

PREFIX = "CROSSOVER_"


class DeployedClients:
    """Clients of a deployed function or program. Each is opened at its first use, at the address that a CROSSOVER_* variable in
    `environment` has.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Prepare without opening any client. `environment`: variables of the process."""
        self._environment = environment
        self._tensor_stores: dict[int, ConnectedTensorStore] = {}
        self._object_stores: dict[str, ConnectedObjectStore] = {}
        self._secrets: dict[str, str] = {}  # by ARN
        self._state_machines = StepFunctions(environment)

    def _read_variable(self, name: str) -> str:
        """Return the variable CROSSOVER_`name` of the environment that this object was given; "" if it is set but empty. Raises ConfigError
        if it is not set.
        """
        try:
            return self._environment[PREFIX + name]
        except KeyError:
            raise ConfigError(f"{PREFIX}{name}: not in the environment; the stack sets it for what needs it") from None

    # --- objects ------------------------------------------------------------------------------------------------------

    def _open_bucket(self, name: str, traffic: Traffic) -> ObjectStore:
        """Return a client of the bucket `name`, whose requests are counted in `traffic`. The bucket is opened once per process."""
        if name not in self._object_stores:
            self._object_stores[name] = connecting.open_object_store(name, traffic)
        return self._object_stores[name].with_traffic(traffic)

    def objects(self, traffic: Traffic) -> ObjectStore:
        """Return a client of the run's bucket, whose requests are counted in `traffic`. Raises ConfigError if its name is not in
        the environment.
        """
        return self._open_bucket(self._read_variable("BUCKET"), traffic)

    def data(self, worker: int, traffic: Traffic) -> ObjectStore:
        """Return a client of the bucket with the training data of `worker`: its own one if each worker has one, otherwise the
        run's. Requests are counted in `traffic`. Raises ConfigError if no bucket's name is in the environment.
        """
        buckets = self._environment.get(PREFIX + "DATA_BUCKETS", "").split()
        return self._open_bucket(buckets[worker] if buckets else self._read_variable("BUCKET"), traffic)

    # --- tensors ------------------------------------------------------------------------------------------------------

    def uses_object_store(self, experiment: Experiment) -> bool:
        """Return whether the experiment's vectors are stored in the bucket: if `storage.channel` is s3 and no Redis is deployed."""
        return experiment.storage.channel == "s3" and not self._environment.get(PREFIX + "REDIS")

    def tensors(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorStore:
        """Return a client of the tensor store of `worker`: the bucket if the `experiment` stores vectors there, otherwise the
        worker's Redis server, whose connections are opened once per process. If there are fewer servers than workers, they are
        shared. Requests are counted in `traffic`. Written keys expire as the `experiment` of the first call for this worker says. Raises
        ConfigError if the environment names no server, ClientError if AWS refuses the password's secret, Missing if the server's
        certificate is not stored yet.
        """
        if self.uses_object_store(experiment):
            return connecting.open_object_tensors(self.objects(traffic))
        if worker not in self._tensor_stores:
            urls = self._read_variable("REDIS").split()
            rank = worker % len(urls)
            self._tensor_stores[worker] = connecting.open_tensor_store(
                urls[rank],
                password=self._read_secret(secret)
                if (secret := self._environment.get(f"{PREFIX}REDIS_SECRET"))
                else None,
                certificate=self._fetch_certificate(urls[rank], rank),
                time_to_live_s=experiment.database.time_to_live_s,
                traffic=traffic,
            )
        return self._tensor_stores[worker].with_traffic(traffic)

    def compute(self, experiment: Experiment, worker: int, traffic: Traffic) -> TensorCompute:
        """Return a client that averages and updates the vectors of `worker`: in the database, or by fetching them, as
        `database.compute` of the `experiment` says. Requests are counted in `traffic`.
        """
        return connecting.choose_tensor_compute(
            self.tensors(experiment, worker, traffic),
            compute=experiment.database.compute,
        )

    def _fetch_certificate(self, url: str, rank: int) -> str | None:
        """Return the certificate (PEM text) that the Redis host number `rank` uploaded to the bucket at boot; None if `url` is not
        encrypted. Asks once, without waiting, and counts the request in no record. Raises Missing if the host has not uploaded it yet,
        ConfigError if CROSSOVER_REDIS_CERTIFICATES is not set.
        """
        if not url.startswith("rediss:"):
            return None
        return self.objects(Traffic()).get(f"{self._read_variable('REDIS_CERTIFICATES')}{rank}.pem").decode()

    # --- bus, machines, slots -----------------------------------------------------------------------------------------

    def bus(self, traffic: Traffic) -> MessageBus:
        """Return a new client of the RabbitMQ broker, not yet connected, with user name and password from its secret. Requests are
        counted in `traffic`. Raises ConfigError if the address or the secret's ARN is not in the environment.
        """
        login = json.loads(self._read_secret(self._read_variable("BROKER_SECRET")))
        return connecting.open_message_bus(
            self._read_variable("BROKER"), username=login["username"], password=login["password"], traffic=traffic
        )

    def run_machine(self, name: str, event: Event) -> Event:
        """Run the state machine `name` with the input `event` to its end, as StepFunctions.run does, and with its errors; return
        its output event.
        """
        return self._state_machines.run(name, event)

    def hold_slot(self) -> AbstractContextManager[float]:
        """Return a context manager that holds a compute slot in the folder CROSSOVER_SLOTS of the environment, and gives the seconds spent
        waiting for it. Without such a folder, as on AWS, it does nothing and gives 0. Raises FileNotFoundError when it is entered if the
        folder has no slots.
        """
        folder = self._environment.get(PREFIX + "SLOTS")
        if not folder:
            return nullcontext(0.0)
        from crossover.stores.clients import hold_slot  # on one machine only

        return hold_slot(folder)

    # --- secrets ------------------------------------------------------------------------------------------------------

    def _read_secret(self, arn: str) -> str:
        """Return the text of the secret `arn`, read once per process. Raises botocore's ClientError if AWS refuses it."""
        if arn not in self._secrets:
            import boto3

            self._secrets[arn] = boto3.client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"]
        return self._secrets[arn]
