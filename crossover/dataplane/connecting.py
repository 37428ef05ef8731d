"""The composition root of the data plane: which implementation stands behind a Protocol, by URL.

Imports stand inside the functions: boto3, redis and pika cost a cold start tenths of a second each, and most steps need only some of them.
Clients are made once per process; `beside(traffic)` gives each invocation its own counters over the same connections.
"""

from typing import TYPE_CHECKING, Literal

from crossover.dataplane.addresses import shown
from crossover.dataplane.traffic import Traffic
from crossover.errors import ConfigError

if TYPE_CHECKING:
    from crossover.dataplane.files import FileObjectStore
    from crossover.dataplane.object_tensors import ObjectTensorStore
    from crossover.dataplane.protocols import ObjectStore, TensorCompute, TensorStore
    from crossover.dataplane.rabbitmq import RabbitMessageBus
    from crossover.dataplane.redis_tensors import RedisTensorStore
    from crossover.dataplane.s3 import S3ObjectStore

Place = Literal["in_database", "fetch"]


def object_store(url: str, traffic: Traffic) -> "S3ObjectStore | FileObjectStore":
    """A bucket (its name or s3://name) or a folder (file:///path)."""
    scheme, separator, rest = url.partition("://")
    if scheme == "file" and separator:
        from pathlib import Path

        from crossover.dataplane.files import FileObjectStore

        return FileObjectStore(Path(rest), traffic)
    if (separator and scheme != "s3") or "/" in rest:
        raise ConfigError(f"object store {shown(url)!r}: expected a bucket's name, s3://<bucket> or file:///<folder>")
    from crossover.dataplane.s3 import S3ObjectStore

    return S3ObjectStore(rest or scheme, traffic)


def object_tensors(objects: "ObjectStore") -> "ObjectTensorStore":
    """Vectors as objects beside all else of their run, counted into the traffic of `objects`."""
    from crossover.dataplane.object_tensors import ObjectTensorStore

    return ObjectTensorStore(objects, prefix="runs/")  # tensor keys begin with the run; functions may write below runs/


def tensor_store(
    url: str,
    *,
    password: str | None = None,
    certificate: str | None = None,
    time_to_live_s: float,
    traffic: Traffic,
) -> "RedisTensorStore":
    """A Redis by URL: redis://, rediss:// (verified against `certificate`, PEM text) or unix://."""
    from crossover.dataplane.redis_address import redis_address
    from crossover.dataplane.redis_client import RedisClient
    from crossover.dataplane.redis_tensors import RedisTensorStore

    client = RedisClient(redis_address(url, password=password, certificate=certificate))
    return RedisTensorStore(client, traffic, time_to_live_s=time_to_live_s)


def tensor_compute(store: "TensorStore", *, compute: Place = "in_database") -> "TensorCompute":
    """Arithmetic on the vectors of `store`: in the database where `compute` says so and it is one, else fetch, compute, store."""
    if compute == "in_database":
        from crossover.dataplane.redis_compute import RedisCompute
        from crossover.dataplane.redis_tensors import RedisTensorStore

        if isinstance(store, RedisTensorStore):
            return RedisCompute(store)
    from crossover.dataplane.fetch_compute import FetchCompute

    return FetchCompute(store)


def message_bus(
    url: str, *, username: str, password: str, traffic: Traffic, certificate: str | None = None
) -> "RabbitMessageBus":
    """RabbitMQ by URL: amqp:// or amqps:// (verified by the system's authorities, or against `certificate`, PEM text)."""
    from crossover.dataplane.rabbitmq import RabbitMessageBus

    return RabbitMessageBus(url, username=username, password=password, certificate=certificate, traffic=traffic)
