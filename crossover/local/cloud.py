"""The cloud on this machine: deploys the same templates that go to AWS."""

import compileall
import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from crossover.errors import ConfigError, Lost, MissingTool, RunFailed
from crossover.experiment import Experiment
from crossover.local import moto_patches, permissions, servers
from crossover.local.endpoint import Endpoint
from crossover.local.fleet_programs import Fleets
from crossover.local.lambdas import Answer, Function, Lambdas
from crossover.local.moto_patches import step_functions
from crossover.local.moto_patches.instances import ROLE_TAG
from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, read_secret
from crossover.local.servers import RabbitServer, RedisServer
from crossover.local.zygotes import Runtime, ZygoteKind
from crossover.stores import clients, connecting
from crossover.stores.protocols import TensorStore, Traffic

# --- code -------------------------------------------------------------------------------------------------------------


class CodeCache:
    """A folder in which function zips are unpacked, one subfolder for each different content (named by its SHA-256)."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which is created when the first zip is unpacked."""
        self._folder = folder
        self._lock = threading.Lock()

    def unpack(self, archive: bytes) -> Path:
        """Return the folder with the unpacked content of the zip `archive`. At its first use the zip is unpacked and compiled to bytecode,
        because on Lambda the start of a function does not include compiling either. Later calls return the same folder, whose files must
        not be changed.
        """
        target = self._folder / hashlib.sha256(archive).hexdigest()[:16]
        with self._lock:
            if not target.exists():
                half = target.with_suffix(".part")
                zipfile.ZipFile(io.BytesIO(archive)).extractall(half)
                compileall.compile_dir(half, quiet=2, stripdir=half, prependdir=target)
                os.rename(half, target)
        return target


# --- assembly ---------------------------------------------------------------------------------------------------------
# A CDK cloud assembly: its stacks in the order of their dependencies, and the files they need, uploaded as the CDK command line does.
#
# Source: the cloud assembly's manifest (manifest.json) and asset manifests (*.assets.json), AWS CDK's cloud-assembly-schema.

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A CloudFormation stack of a CDK cloud assembly: its template as JSON text, its parameters {name: value} and tags {key: value}."""

    name: str
    template: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]

    @cached_property
    def resources(self) -> dict[str, Any]:
        """The resources of the template by logical id, as the template declares them; {} if it has none. Each access gives the same
        dictionary, which must not be changed.
        """
        return dict(json.loads(self.template).get("Resources", {}))

    def properties_of_type(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the properties of each of the stack's resources whose CloudFormation type is `kind`: as the template declares them, with
        functions such as Ref unresolved; {} for a resource without properties.
        """
        yield from (each.get("Properties", {}) for each in self.resources.values() if each["Type"] == kind)


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file or folder (`path`) of a CDK cloud assembly to be uploaded to `bucket` under `key`. `zipped`: whether it is uploaded as a zip;
    always so for a folder.
    """

    path: Path
    zipped: bool
    bucket: str
    key: str


def read_assembly(assembly: Path) -> tuple[list[Stack], list[Asset]]:
    """Return the stacks of a cloud assembly, each after the stacks that it depends on, and all assets (files to upload) of the assembly.

    Raises ConfigError if the folder is no cloud assembly or holds container images.
    """
    manifest = assembly / "manifest.json"
    if not manifest.is_file():
        raise ConfigError(
            f"{assembly}: not a CDK cloud assembly (no manifest.json); `cdk synth` or `crossover deploy` makes one"
        )
    artifacts = json.loads(manifest.read_text(encoding="utf-8"))["artifacts"]
    stacks = [_read_stack(assembly, name, artifacts[name]) for name in _sort_stacks(artifacts)]
    manifests = [each for each in artifacts.values() if each["type"] == "cdk:asset-manifest"]
    assets = [asset for each in manifests for asset in _read_assets(assembly, assembly / each["properties"]["file"])]
    return stacks, assets


def _sort_stacks(artifacts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the stacks among a cloud assembly's artifacts, each after the stacks that it depends on. `artifacts`: descriptions
    by name, from manifest.json.
    """
    seen: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        """Yield the names of the stacks that the artifact `name` depends on, then its own if it is a stack; those yielded before are left
        out.
        """
        if name in seen or name not in artifacts:
            return
        seen.add(name)
        for before in artifacts[name].get("dependencies", []):
            yield from visit(before)
        if artifacts[name]["type"] == "aws:cloudformation:stack":
            yield name

    for name in artifacts:
        yield from visit(name)


def _read_stack(assembly: Path, name: str, artifact: Mapping[str, Any]) -> Stack:
    """Return the Stack that `artifact` describes, with its template read from the folder `assembly`. `name`: the stack's name if the
    artifact gives none.
    """
    properties = artifact["properties"]
    return Stack(
        name=properties.get("stackName", name),
        template=(assembly / properties["templateFile"]).read_text(encoding="utf-8"),
        parameters=properties.get("parameters", {}),
        tags=properties.get("tags", {}),
    )


def _read_assets(assembly: Path, manifest: Path) -> Iterator[Asset]:
    """Yield one Asset for each destination of each file or folder that an asset manifest lists. Raises ConfigError if the manifest lists a
    container image, because this machine cannot run it. `assembly`: the assembly's folder; `manifest`: the asset manifest's file in it.
    """
    content = json.loads(manifest.read_text(encoding="utf-8"))
    if content.get("dockerImages"):
        raise ConfigError(f"{manifest.name}: container images cannot run locally; set functions.packaging to layer")
    for file in content.get("files", {}).values():
        source = file["source"]
        for destination in file["destinations"].values():
            yield Asset(
                path=assembly / source["path"],
                zipped=source.get("packaging") == "zip",
                bucket=fill_placeholders(destination["bucketName"]),
                key=fill_placeholders(destination["objectKey"]),
            )


def fill_placeholders(text: str) -> str:
    """Return `text` with the CDK's placeholders for account, region and partition, such as ${AWS::Region} in the name of a bucket, replaced
    by those of this cloud.
    """
    return (
        text.replace("${AWS::AccountId}", ACCOUNT).replace("${AWS::Region}", REGION).replace("${AWS::Partition}", "aws")
    )


def read_asset(asset: Asset) -> bytes:
    """Return the bytes to upload for an asset: the file's content, or a zip of the folder, which is equal for equal names, contents and
    modes of the files.
    """
    if not asset.zipped or asset.path.is_file():
        return asset.path.read_bytes()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(asset.path.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(asset.path).as_posix(), _EPOCH)
                entry.external_attr = (path.stat().st_mode & 0xFFFF) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return target.getvalue()


def find_layer_keys(stacks: list[Stack]) -> set[str]:
    """Return the S3 keys of the archives of all Lambda layers in the stacks; a key that is a template function is returned as its JSON
    text. `deploy` replaces these archives by empty ones.

    Local functions do not use layers, because layers hold ARM code: third-party packages come from this environment.
    """
    layers = (each for stack in stacks for each in stack.properties_of_type("AWS::Lambda::LayerVersion"))
    keys = (each["Content"].get("S3Key") for each in layers)
    return {key if isinstance(key, str) else json.dumps(key) for key in keys}


def list_zygote_kinds(stacks: list[Stack]) -> list[ZygoteKind]:
    """Return, sorted, the kinds of fork servers that the Python functions of the stacks need: "torch" for functions tagged as computing,
    "plain" for others.
    """
    functions = (each for stack in stacks for each in stack.properties_of_type("AWS::Lambda::Function"))
    python = [each.get("Tags", []) for each in functions if each.get("Runtime", "").startswith("python")]
    kinds: set[ZygoteKind] = {
        "torch" if {"Key": "crossover:torch", "Value": "true"} in tags else "plain" for tags in python
    }
    return sorted(kinds)


def make_empty_zip() -> bytes:
    """Return the bytes of a zip with one empty file, `python/placeholder`, which is uploaded in place of a layer's archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("python/placeholder", _EPOCH), b"")
    return target.getvalue()


# --- state databases --------------------------------------------------------------------------------------------------
# The workers' databases of a deployed experiment, for this process: what is in them when a run fails is kept.


@contextmanager
def open_databases(cloud: "LocalCloud", experiment: Experiment, *, function: str) -> Iterator[dict[int, TensorStore]]:
    """Return a context manager that opens the workers' tensor databases on `cloud`, yields {worker's rank: database}, and closes them at
    the end.

    `experiment`: gives the keys' lifetime; `function`: name of the deployed function whose environment holds the databases' addresses and
    password. A database whose server has ended is left out.
    """
    from moto.awslambda.models import lambda_backends

    environment = cloud.function(lambda_backends[ACCOUNT][REGION].get_function(function)).environment
    stores = {
        worker: connecting.open_tensor_store(
            url,
            password=read_secret(environment["CROSSOVER_REDIS_SECRET"]),
            time_to_live_s=experiment.database.time_to_live_s,
            traffic=Traffic(),
        )
        for worker, url in enumerate(cloud.servers.replace_addresses(environment["CROSSOVER_REDIS"]).split())
        if cloud.servers.is_running(url)
    }
    try:
        yield dict(stores)
    finally:
        for store in stores.values():
            store.close()


# --- hosted -----------------------------------------------------------------------------------------------------------
# The servers behind the template's hosts and brokers: real Redis with the tensor module, real RabbitMQ, by resource.

_SECRET_ARN = re.compile(r"arn:aws:secretsmanager:[\w:/+=.@-]+")
_MODULE = Path(__file__).resolve().parents[2] / "redis_module"


class Servers:
    """The real Redis and RabbitMQ servers that run for the database hosts and brokers of the deployed templates. `redis`: by the host's
    instance id; `brokers`: by the broker's name. `stop` ends all of them; none can be started afterwards.
    """

    def __init__(self, folder: Path) -> None:
        """Start with no servers. `folder`: receives their files."""
        self.redis: dict[str, RedisServer] = {}  # by instance id
        self.brokers: dict[str, RabbitServer] = {}  # by the broker's name
        self._addresses: dict[str, str] = {}  # private address of an instance -> URL of its server
        self._folder = folder
        self._lock = threading.Lock()
        self._rebooting: set[str] = set()  # brokers that are away for a moment, as Amazon MQ's are at maintenance
        self._over = False

    def start_instance(self, identity: str, tags: Mapping[str, str], address: str, user_data: str) -> None:
        """Start redis-server with the tensor module, which is built if needed, for an EC2 instance whose tag for the role is `redis`, and
        wait until it answers; do nothing for other instances. Its password is the secret whose ARN is in `user_data`, the boot script (as
        plain text); none if there is no ARN.

        `identity`: the instance's id; `address`: its private address, which `replace_addresses` will replace. Raises RunFailed if the
        server does not start or this cloud has ended; MissingTool if a program is missing. If this cloud ends meanwhile, the server is
        stopped again without an error.
        """
        if tags.get(ROLE_TAG) != "redis":
            return
        self._require_running()
        found = _SECRET_ARN.search(user_data)
        server = RedisServer(
            self._folder / "redis" / identity,
            password=read_secret(found.group().rstrip(".:")) if found else None,
            module=build_tensor_module(),
        )
        with self._register(server) as over:
            if not over:
                self.redis[identity] = server
                self._addresses = {**self._addresses, address: server.url}

    @contextmanager
    def _register(self, server: RedisServer | RabbitServer) -> Iterator[bool]:
        """Return a context manager that holds the lock of this object's lists while its block runs, so that the block can add the just
        started `server` to them. It yields whether the cloud has ended meanwhile: the block must then add nothing, and the server is
        stopped after the block. If the block raises an error, that passes and the server runs on.
        """
        with self._lock:
            over = self._over
            yield over
        if over:
            server.stop()

    def _require_running(self) -> None:
        """Raise RunFailed if this cloud has been stopped."""
        if self._over:
            raise RunFailed("the cloud on this machine has ended")

    def stop_instance(self, identity: str) -> None:
        """Stop the Redis server of the instance with the id `identity`, if it has one; `replace_addresses` no longer knows its address."""
        with self._lock:
            server = self.redis.pop(identity, None)
            if server:
                self._addresses = {address: url for address, url in self._addresses.items() if url != server.url}
        if server:
            server.stop()

    def start_broker(self, name: str, username: str, password: str) -> str:
        """Start a RabbitMQ server for the broker `name`, with one user (`username`, `password`), wait until it answers, and return its URL,
        which holds no password.

        Raises RunFailed if the server does not start or this cloud had ended before; MissingTool if RabbitMQ is not installed. If the cloud
        ends meanwhile, the server is stopped and its URL is returned all the same. No broker of that name may be running.
        """
        self._require_running()
        server = RabbitServer(self._folder / "rabbitmq" / name, username=username, password=password)
        with self._register(server) as over:
            if not over:
                self.brokers[name] = server
        return server.url

    def reboot_broker(self, name: str) -> None:
        """Stop the broker `name`, start it again, and wait until it answers. Its port stays the same unless another program takes it
        meanwhile. Raises KeyError if there is no such broker; RunFailed if this cloud has ended before the new start, or the broker does
        not start: it then stays stopped. If the cloud ends during the start, the broker is stopped again without an error.

        Durable queues and persistent messages survive; connections do not. `check` accepts that it is away meanwhile.
        """
        with self._lock:
            server = self.brokers[name]
            self._rebooting.add(name)
        try:
            server.stop()
            self._require_running()
            server.start()
        finally:
            with self._lock:
                over = self._over
                self._rebooting.discard(name)
        if over:
            server.stop()

    def stop_broker(self, name: str) -> None:
        """Stop the RabbitMQ server of the broker `name` and remove it from `brokers`; do nothing if it has none."""
        with self._lock:
            server = self.brokers.pop(name, None)
        if server:
            server.stop()

    def check(self, log: Path) -> None:
        """Raise Lost if a Redis or RabbitMQ server has ended although nobody stopped it. Copy its log to the file `log` first."""
        with self._lock:
            there: dict[str, RedisServer | RabbitServer] = {**self.redis, **self.brokers}
            there = {name: server for name, server in there.items() if name not in self._rebooting}
        for name, server in there.items():
            if server.status is None:
                continue
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(b"".join(each.read_bytes() for each in server.logs if each.exists()))
            raise Lost(
                f"{server.program} ({name}) has ended ({servers.describe_exit(server.status)}), and the run cannot go on without it; "
                f"its log: {log}"
            )

    def is_running(self, url: str) -> bool:
        """Return whether `url` is the address of one of these Redis servers, and that server runs."""
        with self._lock:
            return any(server.url == url and server.status is None for server in self.redis.values())

    def replace_addresses(self, text: str) -> str:
        """Return `text` with each URL of a database host's private address (redis://ADDRESS:PORT or rediss://...) replaced by the URL of
        that host's server on this machine; all else is unchanged.
        """
        for address, url in self._addresses.items():
            text = re.sub(rf"rediss?://{re.escape(address)}(?::\d+)?(?![\d.])", url, text)
        return text

    def stop(self) -> None:
        """Stop all Redis and RabbitMQ servers. A server that is just being started is stopped by its starter. Starting one afterwards
        raises RunFailed.
        """
        with self._lock:  # what is still starting stops itself
            self._over = True
            hosts, brokers = list(self.redis), list(self.brokers)
        for identity in hosts:
            self.stop_instance(identity)
        for name in brokers:
            self.stop_broker(name)


def build_tensor_module() -> Path:
    """Return the path of the Redis module with the tensor commands (tensors.so). Build the module by make first if it is missing or older
    than its source; other processes wait for the build.

    If it must be built: raises MissingTool if g++ or make is missing, RunFailed if the build fails.
    """
    target = _MODULE / "build" / "tensors.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max((path.stat().st_mtime for path in (_MODULE / "src").rglob("*") if path.is_file()), default=0.0)
        if target.exists() and target.stat().st_mtime >= newest:
            return target
        if not (shutil.which("g++") and shutil.which("make")):
            raise MissingTool(
                "g++ and make: needed to build the tensor engine; install them with: apt-get install g++ make"
            )
        command = ["make", "-C", str(_MODULE), "core"]
        built = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
        if built.returncode or not target.exists():
            raise RunFailed(f"make -C {_MODULE.name} core failed:\n{(built.stdout + built.stderr)[-2000:]}")
        return target


# --- cloud ------------------------------------------------------------------------------------------------------------
# The cloud on one machine: the synthesized templates deployed to stand-ins for the AWS APIs, with real servers and real functions.
#
#     with LocalCloud(workspace) as cloud:
#         cloud.deploy(assembly)
#         states = cloud.session().client("stepfunctions")
#
# Everything lies below `workspace`; every process ends with the block, and with this process however that ends. Layers are ignored: their
# archives hold ARM code, so local functions take third-party packages from this environment, without numpy, which the layers do not have.
# First-party code comes from the deployed zips alone.

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
_EXECUTIONS_END_S = 3.0  # their functions are killed by then
_WORDS = 2000  # characters of an error: some quote a whole template


class LocalCloud:
    """An emulation of AWS on this machine: the APIs of moto (an emulator in Python) with real functions, state machines, databases and
    brokers. It runs within its `with` block; only one at a time in a process, because moto's state is global. Only there it has the
    attributes `servers`, `lambdas`, `fleets` and `endpoint`, its parts.

    An object is used for one block: its shared clients keep the address of the first.

    `workspace`: folder of all its files. `cores`: number of functions with torch that may compute at the same time, by default the
    machine's CPU cores. `concurrency`: the account's limit of concurrent executions. `runtime`: the Python that functions run on, by
    default this process's.
    """

    _only_one: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, workspace: Path, *, cores: int | None = None, concurrency: int = 1000, runtime: Runtime | None = None
    ) -> None:
        """Store the settings, which the class explains; nothing is started before the `with` block."""
        self.workspace = workspace.resolve()
        self.cores = cores or os.cpu_count() or 1
        self._concurrency, self._runtime = concurrency, runtime
        self._clients: dict[str, Any] = {}
        self._making = threading.Lock()
        self._end = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the cloud, without any stack, and return it. Raises RunFailed if another one runs in this process."""
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
        """Stop the cloud."""
        self.stop()

    def _start(self) -> None:
        """Create the workspace, start functions, fleets and the HTTP endpoint, install the patches of moto, and delete all resources that
        moto still holds. Each part registers how it is stopped. Redis and RabbitMQ start only when a stack needs them.
        """
        self._end.enter_context(servers.exit_on_signals())
        self.workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
        clients.create_slots(self.workspace / "slots", self.cores)
        self.servers = Servers(self.workspace)
        self._end.callback(self.servers.stop)
        self._code = CodeCache(self.workspace / "code")
        self.lambdas = Lambdas(
            self.workspace,
            cores=self.cores,
            concurrency=self._concurrency,
            variables=self._build_variables,
            sink=self._append_log,
            runtime=self._runtime,
        )
        self._end.callback(self.lambdas.close)
        self.fleets = Fleets(
            self.workspace / "logs" / "fleets",
            fetch_code=self._fetch_program_code,
            environment=self._build_program_environment,
            on_leave=moto_patches.instances.decrement_capacity,
        )
        self._end.callback(self.fleets.stop)
        changes = self._end.enter_context(Replacements())
        self.patch_moto(changes)
        self._end.callback(_reset_moto)
        _reset_moto()
        self.endpoint = Endpoint(self.workspace / "logs" / "endpoint.log")
        self._end.callback(self.endpoint.stop)
        self._end.callback(self._end_executions)
        self._bootstrap()

    def patch_moto(self, changes: Replacements) -> None:
        """Install the patches that connect moto to this cloud; `changes` undoes them when the cloud stops.

        Test doubles of an account override this to add their own patches.
        """
        moto_patches.install(changes, cloud=self)

    def stop(self) -> None:
        """End every process and restore moto; harmless to repeat. The deployed stacks are lost; the files in `workspace` stay."""
        self._end.close()

    def session(self) -> Any:
        """Return a boto3 Session whose clients talk to this cloud."""
        return self.endpoint.session()

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which any AWS tool talks to this cloud, such as `cdk deploy --method=direct`.

        They hold its address and credentials: everybody who has them has full access.
        """
        return self.endpoint.environment()

    def client(self, service: str) -> Any:
        """Return the boto3 client of `service` for this cloud; it never retries a request. It is built once and shared, because building
        one is not thread-safe, but using it is.
        """
        from botocore.config import Config

        with self._making:
            if service not in self._clients:
                # A broker starts within the request that creates it, and a busy machine takes its time.
                config = Config(max_pool_connections=64, read_timeout=300, retries={"total_max_attempts": 1})
                self._clients[service] = self.session().client(service, config=config)
            return self._clients[service]

    def deploy(self, assembly: Path) -> None:
        """Deploy every stack of the cloud assembly in the folder `assembly` whose name is not deployed yet, and wait until its resources
        exist. Stacks that are deployed are not updated, but all assets are uploaded again.

        Raises ConfigError if the folder cannot be deployed here, RunFailed if a stack or a type of resource in it cannot be created. Stacks
        that were created before a failure stay; the one that failed is deleted.
        """
        stacks, assets = read_assembly(assembly)
        self._check_types(stacks)
        for kind in list_zygote_kinds(stacks):
            self.lambdas.prepare(kind)
        self._upload(stacks, assets)
        there = self.stacks()
        for stack in stacks:
            if stack.name not in there:
                self._create(stack)

    def stacks(self) -> list[str]:
        """Return the names of all stacks that are deployed on this cloud, the oldest first."""
        described = self.client("cloudformation").describe_stacks()["Stacks"]
        return [each["StackName"] for each in sorted(described, key=lambda each: each["CreationTime"])]

    def destroy(self, name: str | None = None) -> None:
        """Stop the executions of the stack `name` and delete it; if `name` is None, do so for all stacks, the newest first. Does nothing if
        no stack has that name. Raises RunFailed at the first that cannot be deleted; those not deleted by then stay.
        """
        for stack in reversed(self.stacks()):
            if name in (None, stack):
                self._stop_executions(self._list_state_machines(stack))
                self._delete(stack)

    def _delete(self, stack: str) -> None:
        """Delete the stack named `stack`. Raises RunFailed if CloudFormation refuses, or if the stack still exists afterwards."""
        from botocore.exceptions import ClientError

        try:
            self.client("cloudformation").delete_stack(StackName=stack)
        except ClientError as error:
            words = error.response["Error"].get("Message", str(error))
            raise RunFailed(f"{stack}: could not be deleted: {words}"[:_WORDS]) from error
        if stack in self.stacks():
            raise RunFailed(f"{stack}: could not be deleted; its events say why")

    def check(self, log: Path) -> None:
        """Raise Lost if a Redis or RabbitMQ server has ended although nobody stopped it; its log is first copied to the file `log`. Before
        that, start a new watchdog (the process that ends our processes after a kill -9) if the current one was killed.

        Callers that follow a run call this repeatedly.
        """
        servers.restart_dead_watchdog()
        self.servers.check(log)

    def _list_state_machines(self, stack: str) -> list[str]:
        """Return the ARNs of the state machines that the stack named `stack` has created."""
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
        listed = (each for page in pages for each in page["StackResourceSummaries"])
        return [
            each["PhysicalResourceId"]
            for each in listed
            if each["ResourceType"] == "AWS::StepFunctions::StateMachine" and each.get("PhysicalResourceId")
        ]

    def _stop_executions(self, machines: Iterable[str]) -> None:
        """Stop the running executions of the state machines with these ARNs; machines that do not exist are left out.

        Deleting a state machine does not end its executions, and after a failure other branches continue.
        """
        states = self.client("stepfunctions")
        for arn in machines:
            running = states.get_paginator("list_executions").paginate(stateMachineArn=arn, statusFilter="RUNNING")
            with contextlib.suppress(
                states.exceptions.StateMachineDoesNotExist
            ):  # of a stack whose deletion failed half way
                for execution in (each for page in running for each in page["executions"]):
                    states.stop_execution(executionArn=execution["executionArn"], cause="its cloud ends")

    def _end_executions(self) -> None:
        """Stop all executions, functions and servers while the patches of moto are still installed, and wait up to 3 s for executions to
        end.

        A task that continued in the unpatched moto would look for a Lambda service on port 5000.
        """
        step_functions.stop_executions()
        self.lambdas.close()
        self.servers.stop()  # a stack that is still being made fails at its next server
        step_functions.join_executions(_EXECUTIONS_END_S)

    def invoke(self, name: str, payload: bytes, client_context: str | None = None) -> Answer:
        """Invoke the function `name` (a name or an ARN) synchronously, without HTTP, and return its answer.

        `payload`: the event as JSON; `client_context`: as in Lambda's API, base64. Raises TooLarge, TooManyRequests, or moto's error if
        there is no such function; an error of the function itself is in the answer.
        """
        return self.lambdas.invoke(self.function(_find_function(name)), payload, client_context=client_context)

    def function(self, deployed: Any) -> Function:
        """Return the Function (code folder, handler, limits, variables as the template gives them) with which this cloud runs a deployed
        function; its code is unpacked if it was not before. `deployed`: moto's object of the function.
        """
        tags: Mapping[str, str] = deployed.tags or {}
        return Function(
            name=deployed.function_name,
            arn=deployed.function_arn,
            handler=deployed.handler,
            folder=self._code.unpack(deployed.code_bytes),
            environment={key: str(value) for key, value in (deployed.environment_vars or {}).items()},
            timeout_s=float(deployed.timeout),
            memory_mb=int(deployed.memory_size),
            torch=tags.get("crossover:torch") == "true",
            waits=tags.get("crossover:waits") == "true",
            log_group=deployed.logs_group_name,
        )

    def _build_variables(self, function: Function) -> dict[str, str]:
        """Return the environment variables with which a function runs here: its own with local addresses, the cloud's address with an
        access key of the function's role, and CROSSOVER_SLOTS, the folder of the compute slots.
        """
        own = {name: self.servers.replace_addresses(value) for name, value in function.environment.items()}
        cloud = self.endpoint.environment(permissions.make_access_key(str(_find_function(function.arn).role)))
        return {**own, **cloud, "CROSSOVER_SLOTS": str(self.workspace / "slots")}

    def _fetch_program_code(self, url: str, role: str) -> Path:
        """Return the folder with the unpacked code of a fleet's program. `url`: its zip in S3, fetched with the permissions of the IAM role
        `role`. Raises RunFailed if that fails.
        """
        from botocore.exceptions import ClientError

        bucket, _, key = url.removeprefix("s3://").partition("/")
        s3 = self.endpoint.session(permissions.make_access_key(role)).client("s3")
        try:
            return self._code.unpack(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        except ClientError as error:
            raise RunFailed(f"{url}: the fleet's instances cannot fetch their code: {error}") from error

    def _build_program_environment(self, given: Mapping[str, str], role: str) -> dict[str, str]:
        """Return the environment variables with which a fleet's program runs here: `given` with local addresses, shorter timeouts than on
        AWS, and the cloud's address with an access key of the IAM role `role`.
        """
        own = {name: self.servers.replace_addresses(value) for name, value in given.items()}
        # A process that dies is noticed sooner than an instance, because no host boots here.
        soon = {"CROSSOVER_LEASE_S": "3", "CROSSOVER_ABSENCE_S": "120", "CROSSOVER_LOOK_S": "0.2"}
        alone = {"CROSSOVER_ADDRESS": "127.0.0.1", "NCCL_SOCKET_IFNAME": "lo"}  # what they listen on for one another
        cloud = self.endpoint.environment(permissions.make_access_key(role))
        return {**own, **soon, **alone, **cloud, "CROSSOVER_SLOTS": str(self.workspace / "slots")}

    def _append_log(self, function: Function, stream: str, printed: list[str]) -> None:
        """Append the lines `printed` by a function to the log stream `stream` of its log group, all with the present time; a missing stream
        is created. If the group was deleted, the lines are dropped.
        """
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
        """Create the SSM parameter and the asset bucket that `cdk bootstrap` creates in an account."""
        self.client("ssm").put_parameter(Name=BOOTSTRAP_PARAMETER, Value="30", Type="String")
        self.client("s3").create_bucket(Bucket=f"cdk-hnb659fds-assets-{ACCOUNT}-{REGION}")

    def _check_types(self, stacks: list[Stack]) -> None:
        """Raise RunFailed if a stack contains a resource of a type that this cloud cannot create."""
        known = moto_patches.list_supported_types(self)
        for stack in stacks:
            for logical_id, resource in stack.resources.items():
                if (kind := resource["Type"]) not in known:
                    raise RunFailed(
                        f"{stack.name}: {logical_id} is an {kind}, which the local cloud does not know; give it a maker in "
                        f"crossover/local/moto_patches, or add it to WITHOUT_EFFECT there"
                    )

    def _upload(self, stacks: list[Stack], assets: list[Asset]) -> None:
        """Upload all `assets` to their buckets in this cloud's S3, which must exist, replacing those there. Instead of the archive of a
        layer that one of `stacks` declares, an empty zip is uploaded.
        """
        s3 = self.client("s3")
        layers = find_layer_keys(stacks)
        for asset in assets:
            body = make_empty_zip() if asset.key in layers else read_asset(asset)
            s3.put_object(Bucket=asset.bucket, Key=asset.key, Body=body)

    def _create(self, stack: Stack) -> None:
        """Create a stack by CloudFormation, which returns once all resources exist. If that fails, delete what it created and raise
        RunFailed with CloudFormation's message, at most 2,000 characters.
        """
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


def _find_function(name: str) -> Any:
    """Return moto's object of the deployed function with the name or ARN `name`. Raises moto's error if there is none."""
    from moto.awslambda.models import lambda_backends

    return lambda_backends[ACCOUNT][REGION].get_function(name)


def _reset_moto() -> None:
    """Delete all resources of all services in moto."""
    from moto.moto_api._internal.models import moto_api_backend

    moto_api_backend.reset()
