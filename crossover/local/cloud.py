"""The cloud on one machine: the synthesized templates deployed to stand-ins for the AWS APIs, with real servers and real functions.

    with LocalCloud(workspace) as cloud:
        cloud.deploy(assembly)
        states = cloud.session().client("stepfunctions")

Everything lies below `workspace`; every process ends with the block, and with this process however that ends. Layers are ignored: their
archives hold ARM code, so local functions take third-party packages from this environment, without numpy, which the layers do not have.
First-party code comes from the deployed zips alone.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from crossover.clients import slots
from crossover.errors import RunFailed
from crossover.local import assembly as assemblies
from crossover.local import moto_patches, permissions, processes
from crossover.local.code import Code
from crossover.local.endpoint import Endpoint
from crossover.local.fleet_programs import Fleets
from crossover.local.hosted import Servers
from crossover.local.lambda_runtime import Answer, Function, Lambdas, Runtime
from crossover.local.moto_patches import executions
from crossover.local.moto_patches.account import Account
from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
_EXECUTIONS_END_S = 3.0  # their functions are killed by then
_WORDS = 2000  # characters of an error: some quote a whole template


class LocalCloud:
    """One at a time per process, because moto's state is the process's. `cores`: how many functions compute side by side; `runtime`: the
    Python that functions run on, by default this process's.
    """

    _only_one: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, workspace: Path, *, cores: int | None = None, concurrency: int = 1000, runtime: Runtime | None = None
    ) -> None:
        self.workspace = workspace.resolve()
        self.cores = cores or os.cpu_count() or 1
        self._concurrency, self._runtime = concurrency, runtime
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()
        self._end = contextlib.ExitStack()
        self.account = Account()  # its limits, which tests change

    def __enter__(self) -> Self:
        if not self._only_one.acquire(blocking=False):
            raise RunFailed("a local cloud runs in this process already; stop it first")
        self._end.callback(self._only_one.release)
        try:
            self._start()
        except BaseException:
            self._end.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        self._end.enter_context(processes.ending_on_signals())
        self.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        slots.create(self.workspace / "slots", self.cores)
        self.servers = Servers(self.workspace)
        self._end.callback(self.servers.stop)
        self._code = Code(self.workspace / "code")
        self.lambdas = Lambdas(
            self.workspace,
            cores=self.cores,
            concurrency=self._concurrency,
            variables=self._variables,
            sink=self._log,
            runtime=self._runtime,
        )
        self._end.callback(self.lambdas.close)
        self.fleets = Fleets(
            self.workspace / "logs" / "fleets",
            unpacked=self._program_code,
            environment=self._program_environment,
            left=moto_patches.auto_scaling.decrement,
        )
        self._end.callback(self.fleets.stop)
        changes = self._end.enter_context(Replacements())
        moto_patches.install(changes, cloud=self)
        self._end.callback(_forget_everything)
        _forget_everything()
        self.endpoint = Endpoint(self.workspace / "logs" / "endpoint.log")
        self._end.callback(self.endpoint.stop)
        self._end.callback(self._end_executions)
        self._bootstrap()

    def stop(self) -> None:
        """End every process and put moto back; harmless to repeat. Stacks are forgotten, files below `workspace` stay."""
        self._end.close()

    def session(self) -> Any:
        """A boto3 Session whose clients talk to this cloud."""
        return self.endpoint.session()

    def environment(self) -> dict[str, str]:
        """Variables with which any AWS tool talks to this cloud (the CDK command line: `cdk deploy --method=direct`): its address and
        credentials, which let in whoever has them.
        """
        return self.endpoint.environment()

    def client(self, service: str) -> Any:
        """A client made once and shared: boto's clients are safe in many threads, making one is not."""
        from botocore.config import Config

        with self._making:
            if service not in self._clients:
                # A broker starts within the request that creates it, and a busy machine takes its time.
                config = Config(max_pool_connections=64, read_timeout=300, retries={"total_max_attempts": 1})
                self._clients[service] = self.session().client(service, config=config)
            return self._clients[service]

    def deploy(self, assembly: Path) -> None:
        """Deploy every stack of the cloud assembly that is not there yet. Raises ConfigError, RunFailed, MissingTool."""
        stacks, assets = assemblies.read(assembly)
        self._check_types(stacks)
        for kind in assemblies.worker_kinds(stacks):
            self.lambdas.prepare(kind)
        self._upload(stacks, assets)
        there = self.stacks()
        for stack in stacks:
            if stack.name not in there:
                self._create(stack)

    def stacks(self) -> list[str]:
        """The names of the deployed stacks, the oldest first, whoever deployed them."""
        described = self.client("cloudformation").describe_stacks()["Stacks"]
        return [each["StackName"] for each in sorted(described, key=lambda each: each["CreationTime"])]

    def destroy(self, name: str | None = None) -> None:
        """Delete the stack `name`, or all of them, the youngest first."""
        for stack in reversed(self.stacks()):
            if name in (None, stack):
                self._stop_executions(self._machines_of(stack))
                self.client("cloudformation").delete_stack(StackName=stack)
                if stack in self.stacks():
                    raise RunFailed(f"{stack}: could not be deleted; its events say why")

    def check(self, log: Path) -> None:
        """For whoever follows a run, again and again. Raises Lost where one of the servers has ended by itself; what it had logged is then
        kept in the file `log`.
        """
        processes.look_after_the_watchdog()
        self.servers.check(log)

    def _machines_of(self, stack: str) -> list[str]:
        """ARNs of those that the stack made, whatever others are named."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
        listed = (each for page in pages for each in page["StackResourceSummaries"])
        return [
            each["PhysicalResourceId"]
            for each in listed
            if each["ResourceType"] == "AWS::StepFunctions::StateMachine" and each.get("PhysicalResourceId")
        ]

    def _stop_executions(self, machines: Iterable[str]) -> None:
        """After a failure the other branches go on, and a machine's deletion does not end them."""
        states = self.client("stepfunctions")
        for arn in machines:
            running = states.get_paginator("list_executions").paginate(stateMachineArn=arn, statusFilter="RUNNING")
            with contextlib.suppress(
                states.exceptions.StateMachineDoesNotExist
            ):  # of a stack whose deletion failed half way
                for execution in (each for page in running for each in page["executions"]):
                    states.stop_execution(executionArn=execution["executionArn"], cause="its cloud ends")

    def _end_executions(self) -> None:
        """While moto is still ours: a task that came back to the real moto would look for a Lambda service on port 5000."""
        executions.stop()
        self.lambdas.close()
        self.servers.stop()  # a stack that is still being made fails at its next server
        executions.join(_EXECUTIONS_END_S)

    def invoke(self, name: str, payload: bytes, client_context: str | None = None) -> Answer:
        """Invoke a function by name or ARN, in this process."""
        return self.lambdas.invoke(self.function(_deployed(name)), payload, client_context=client_context)

    def function(self, deployed: Any) -> Function:
        """The function as this cloud runs it, from moto's."""
        tags: Mapping[str, str] = deployed.tags or {}
        return Function(
            name=deployed.function_name,
            arn=deployed.function_arn,
            handler=deployed.handler,
            folder=self._code.unpacked(deployed.code_bytes),
            environment={key: str(value) for key, value in (deployed.environment_vars or {}).items()},
            timeout_s=float(deployed.timeout),
            memory_mb=int(deployed.memory_size),
            torch=tags.get("crossover:torch") == "true",
            waits=tags.get("crossover:waits") == "true",
            log_group=deployed.logs_group_name,
        )

    def _variables(self, function: Function) -> dict[str, str]:
        own = {name: self.servers.reachable(value) for name, value in function.environment.items()}
        cloud = self.endpoint.environment(permissions.access_key(str(_deployed(function.arn).role)))
        return {**own, **cloud, "CROSSOVER_SLOTS": str(self.workspace / "slots")}

    def _program_code(self, url: str, role: str) -> Path:
        """The folder with a fleet's code: what its instances, under their role, would unpack. Raises RunFailed where they may not."""
        from botocore.exceptions import ClientError

        bucket, _, key = url.removeprefix("s3://").partition("/")
        s3 = self.endpoint.session(permissions.access_key(role)).client("s3")
        try:
            return self._code.unpacked(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        except ClientError as error:
            raise RunFailed(f"{url}: the fleet's instances cannot fetch their code: {error}") from error

    def _program_environment(self, given: Mapping[str, str], role: str) -> dict[str, str]:
        own = {name: self.servers.reachable(value) for name, value in given.items()}
        # A process that dies is noticed sooner than an instance: nobody boots here.
        soon = {"CROSSOVER_LEASE_S": "3", "CROSSOVER_ABSENCE_S": "120", "CROSSOVER_LOOK_S": "0.2"}
        alone = {"CROSSOVER_ADDRESS": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo"}  # what they listen on for one another
        cloud = self.endpoint.environment(permissions.access_key(role))
        return {**own, **soon, **alone, **cloud, "CROSSOVER_SLOTS": str(self.workspace / "slots")}

    def _log(self, function: Function, stream: str, printed: list[str]) -> None:
        from moto.logs.models import logs_backends

        # No role may create groups: a line that comes late must not bring a deleted one back.
        group = logs_backends[ACCOUNT][REGION].groups.get(function.log_group)
        if group is None:
            return
        if stream not in group.streams:
            group.create_log_stream(stream)
        now = int(time.time() * 1000)
        group.put_log_events(stream, [{"timestamp": now, "message": line} for line in printed])

    def _bootstrap(self) -> None:
        """What `cdk bootstrap` would have made."""
        self.client("ssm").put_parameter(Name=BOOTSTRAP_PARAMETER, Value="30", Type="String")
        self.client("s3").create_bucket(Bucket=f"cdk-hnb659fds-assets-{ACCOUNT}-{REGION}")

    def _check_types(self, stacks: list[assemblies.Stack]) -> None:
        known = moto_patches.supported(self)
        for stack in stacks:
            for logical_id, resource in stack.resources.items():
                if (kind := resource["Type"]) not in known:
                    raise RunFailed(
                        f"{stack.name}: {logical_id} is an {kind}, which the local cloud does not know; give it a maker in "
                        f"crossover/local/moto_patches, or add it to WITHOUT_EFFECT there"
                    )

    def _upload(self, stacks: list[assemblies.Stack], assets: list[assemblies.Asset]) -> None:
        s3 = self.client("s3")
        layers = assemblies.layer_keys(stacks)
        for asset in assets:
            body = assemblies.empty_zip() if asset.key in layers else assemblies.content(asset)
            s3.put_object(Bucket=asset.bucket, Key=asset.key, Body=body)

    def _create(self, stack: assemblies.Stack) -> None:
        from botocore.exceptions import ClientError

        try:
            self.client("cloudformation").create_stack(
                StackName=stack.name,
                TemplateBody=stack.template,
                Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in stack.parameters.items()],
                Tags=[{"Key": key, "Value": value} for key, value in stack.tags.items()],
                Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
            )
        except ClientError as error:
            with contextlib.suppress(ClientError):  # CloudFormation rolls back too
                self.client("cloudformation").delete_stack(StackName=stack.name)
            raise RunFailed(f"{stack.name}: {error.response['Error'].get('Message', error)}"[:_WORDS]) from error


def _deployed(name: str) -> Any:
    """moto's function of this name or ARN."""
    from moto.awslambda.models import lambda_backends

    return lambda_backends[ACCOUNT][REGION].get_function(name)


def _forget_everything() -> None:
    from moto.moto_api._internal.models import moto_api_backend

    moto_api_backend.reset()
