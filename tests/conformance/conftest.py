"""The implementations under test: each suite asks for a factory by name, each test gets keys of its own."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crossover.experiment import Experiment
from crossover.local import servers as processes
from crossover.local.moto_patches import objects
from crossover.local.moto_patches.replacing import Replacements
from crossover.stores import connecting
from crossover.stores.clients import Event
from crossover.stores.protocols import MessageBus, ObjectStore, TensorStore, Traffic
from tests.additions.sqlite_store import SqliteObjectStore
from tests.additions.sqlite_vectors import SqliteTensorStore
from tests.chaos.world.clients import VirtualClients, VirtualServers
from tests.conformance import servers
from tests.conformance.servers import TlsFiles, TlsRabbitServer, TlsRedisServer
from tests.ports import held_port

OBJECT_STORES = ("memory", "files", "s3", "s3-virtual", "sqlite")
TENSOR_STORES = ("memory", "objects", "redis", "redis-tls", "redis-socket", "redis-virtual", "sqlite")
BUSES = ("memory", "rabbitmq", "rabbitmq-tls", "rabbitmq-virtual")
BUCKET = "conformance"


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Yield a folder that is deleted after the session, however it ends."""
    with processes.temporary_folder() as path:
        yield path


@pytest.fixture(scope="session")
def tls(folder: Path) -> TlsFiles:
    """Return the TLS files that servers of this session use."""
    return servers.self_made(folder / "tls")


@pytest.fixture(scope="session")
def redis(folder: Path, tls: TlsFiles) -> Iterator[TlsRedisServer]:
    """Yield a running Redis server with the tensor module and TLS."""
    with servers.redis_server(folder / "redis", "core", "tensors.so", tls) as server:
        yield server


@pytest.fixture(scope="session")
def rabbit(folder: Path, tls: TlsFiles) -> Iterator[TlsRabbitServer]:
    """Yield a running RabbitMQ server with TLS."""
    with servers.rabbit_server(folder / "rabbit", tls) as server:
        yield server


@pytest.fixture(scope="session")
def virtual() -> VirtualServers:
    """Return the servers of the virtual world, reached at once, so that each stand-in passes the suite of the server it stands for."""
    return VirtualServers(servers.AtOnce(), databases=1)


@pytest.fixture
def deserted_port() -> Iterator[int]:
    """Yield a port at which nobody listens, and nobody else will."""
    port, holder = held_port()
    with holder:
        yield port


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Yield the URL of a server that speaks S3."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    with Replacements() as changes:
        objects.serialize_conditional_puts(changes)
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


@pytest.fixture(scope="session")
def s3_client(s3_endpoint: str) -> Iterator[Any]:
    """Yield boto3's client of the S3 server."""
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint)
    yield client
    client.close()


@pytest.fixture
def s3(s3_client: Any) -> Any:
    """Return boto3's client of the S3 server, with one bucket. The bucket is made for each test, because a local cloud of another test file
    in this process makes moto forget everything.
    """
    s3_client.create_bucket(Bucket=BUCKET)
    return s3_client


def _clients(request: pytest.FixtureRequest) -> VirtualClients:
    """Return data plane clients for virtual servers; functions cannot be invoked."""

    def nobody(name: str, event: Event) -> Event:
        """Fail: no test invokes a function."""
        raise AssertionError(name)

    return VirtualClients(request.getfixturevalue("virtual"), nobody)


MakeObjects = Callable[[str, Traffic], ObjectStore]
MakeTensors = Callable[[str, Traffic], TensorStore]
MakeBus = Callable[[str, Traffic], MessageBus]


@pytest.fixture(scope="session")
def make_objects(request: pytest.FixtureRequest, folder: Path) -> MakeObjects:
    """Return a function that makes an object store by its name in OBJECT_STORES."""

    def make(name: str, traffic: Traffic) -> ObjectStore:
        """Return the object store implementation with that name, counting into `traffic`."""
        if name == "s3":
            from crossover.stores.s3 import S3ObjectStore

            client = request.getfixturevalue("s3_client")
            client.create_bucket(Bucket=BUCKET)
            return S3ObjectStore(BUCKET, traffic, client=client)
        if name == "s3-virtual":
            return _clients(request).objects(traffic)
        if name == "files":
            return connecting.open_object_store(f"file://{folder}/objects", traffic)
        if name == "sqlite":
            return SqliteObjectStore(f"{folder}/objects.sqlite", traffic)
        from crossover.stores.memory import MemoryObjectStore

        return MemoryObjectStore(traffic)

    return make


@pytest.fixture(scope="session")
def make_tensors(request: pytest.FixtureRequest, tls: TlsFiles) -> Iterator[MakeTensors]:
    """Return a function that makes a tensor store by its name in TENSOR_STORES."""
    made = []

    def make(name: str, traffic: Traffic) -> TensorStore:
        """Return the tensor store implementation with that name, counting into `traffic`."""
        from crossover.stores.memory import MemoryObjectStore, MemoryTensorStore

        if name == "memory":
            return MemoryTensorStore(traffic)
        if name == "objects":
            return connecting.open_object_tensors(MemoryObjectStore(traffic))
        if name == "sqlite":
            folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("vectors")
            return SqliteTensorStore(f"sqlite://{folder}/vectors.sqlite", traffic=traffic)
        if name == "redis-virtual":
            return _clients(request).tensors(Experiment(name="x", architecture="spirt"), 0, traffic)
        server: TlsRedisServer = request.getfixturevalue(name.partition("-")[0])
        urls = {"redis-tls": server.tls_url, "redis-socket": server.socket_url}
        store = connecting.open_tensor_store(
            urls.get(name, server.url),
            password=servers.PASSWORD,
            certificate=tls.certificate.read_text(),
            time_to_live_s=600,
            traffic=traffic,
        )
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


@pytest.fixture(scope="session")
def make_bus(request: pytest.FixtureRequest, tls: TlsFiles) -> Iterator[MakeBus]:
    """Return a function that makes a message bus by its name in BUSES."""
    made: list[MessageBus] = []

    def make(name: str, traffic: Traffic) -> MessageBus:
        """Return the message bus implementation with that name, counting into `traffic`."""
        if name == "memory":
            from crossover.stores.memory import MemoryMessageBus

            return MemoryMessageBus(traffic)
        if name == "rabbitmq-virtual":
            made.append(_clients(request).bus(traffic))
            return made[-1]
        server: TlsRabbitServer = request.getfixturevalue("rabbit")
        bus = connecting.open_message_bus(
            server.tls_url if name == "rabbitmq-tls" else server.url,
            username=servers.USERNAME,
            password=servers.PASSWORD,
            certificate=tls.certificate.read_text(),
            traffic=traffic,
        )
        made.append(bus)
        return bus

    yield make
    for bus in made:
        bus.close()


@pytest.fixture
def traffic() -> Traffic:
    """Return an empty count of traffic."""
    return Traffic()


@pytest.fixture
def run() -> str:
    """Return a prefix of keys that no other test uses."""
    return f"runs/{uuid.uuid4().hex}"
