"""The composition root of the data plane: which implementation stands behind a Protocol, by URL.

Imports stand inside the functions: boto3, redis and pika cost a cold start tenths of a second each, and most steps need only some of them.
Clients are made once per process; `beside(traffic)` gives each invocation its own counters over the same connections.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from crossover.data.protocols import Traffic, shown
from crossover.errors import ConfigError

if TYPE_CHECKING:
    from crossover.data.protocols import (
        ConnectedObjectStore,
        ConnectedTensorStore,
        ObjectStore,
        TensorCompute,
        TensorStore,
    )
    from crossover.data.rabbitmq import RabbitMessageBus
    from crossover.data.redis_tensors import ObjectTensorStore

WhereToCompute = Literal["in_database", "fetch"]


def _bucket(place: str, traffic: Traffic) -> "ConnectedObjectStore":
    from crossover.data.s3 import S3ObjectStore

    return S3ObjectStore(place, traffic)


def _folder(place: str, traffic: Traffic) -> "ConnectedObjectStore":
    from pathlib import Path

    from crossover.data.files import FileObjectStore

    return FileObjectStore(Path(place), traffic)


# By the scheme of a URL: what opens the place behind it. A storage channel of one's own is an ObjectStore, and a line here; with
# storage.channel: s3 vectors go through it as well.
OBJECT_STORES: dict[str, Callable[[str, Traffic], "ConnectedObjectStore"]] = {"s3": _bucket, "file": _folder}


def object_store(url: str, traffic: Traffic) -> "ConnectedObjectStore":
    """Open an object store: a bucket (its name or s3://name), a folder (file:///path), or any other scheme in OBJECT_STORES. Raises
    ConfigError for an unknown scheme.
    """
    scheme, separator, place = url.partition("://")
    if not separator:
        scheme, place = "s3", url
    if scheme not in OBJECT_STORES or (scheme == "s3" and "/" in place):
        known = ["s3://<bucket>", *(f"{each}:///<path>" for each in OBJECT_STORES if each != "s3")]
        raise ConfigError(f"object store {shown(url)!r}: expected a bucket's name, or one of {', '.join(known)}")
    return OBJECT_STORES[scheme](place, traffic)


def object_tensors(objects: "ObjectStore") -> "ObjectTensorStore":
    """Vectors as objects beside all else of their run, counted into the traffic of `objects`."""
    from crossover.data.redis_tensors import ObjectTensorStore

    return ObjectTensorStore(objects, prefix="runs/")  # tensor keys begin with the run; functions may write below runs/


def _redis(
    url: str, *, password: str | None, certificate: str | None, time_to_live_s: float, traffic: Traffic
) -> "ConnectedTensorStore":
    from crossover.data.redis_client import RedisClient, redis_address
    from crossover.data.redis_tensors import RedisCompute

    client = RedisClient(redis_address(url, password=password, certificate=certificate))
    return RedisCompute(client, traffic, time_to_live_s=time_to_live_s)


# By the scheme of a URL: what opens the database behind it. A vector store of one's own is a TensorStore, and a line here.
TENSOR_STORES: dict[str, Callable[..., "ConnectedTensorStore"]] = {"redis": _redis, "rediss": _redis, "unix": _redis}


def tensor_store(
    url: str,
    *,
    password: str | None = None,
    certificate: str | None = None,
    time_to_live_s: float,
    traffic: Traffic,
) -> "ConnectedTensorStore":
    """Open a tensor store: Redis (redis://, rediss:// verified against `certificate`, PEM text, or unix://), or another TENSOR_STORES
    scheme.
    """
    opens = TENSOR_STORES.get(url.partition("://")[0], _redis)  # whose own check says what is expected
    return opens(url, password=password, certificate=certificate, time_to_live_s=time_to_live_s, traffic=traffic)


def tensor_compute(store: "TensorStore", *, compute: WhereToCompute = "in_database") -> "TensorCompute":
    """Arithmetic on the vectors of `store`: by itself where `compute` says so and it is one that computes, else fetch, compute, store."""
    from crossover.data.fetch_compute import FetchCompute
    from crossover.data.protocols import TensorCompute

    return store if compute == "in_database" and isinstance(store, TensorCompute) else FetchCompute(store)


def message_bus(
    url: str, *, username: str, password: str, traffic: Traffic, certificate: str | None = None
) -> "RabbitMessageBus":
    """RabbitMQ by URL: amqp:// or amqps:// (verified by the system's authorities, or against `certificate`, PEM text)."""
    from crossover.data.rabbitmq import RabbitMessageBus

    return RabbitMessageBus(url, username=username, password=password, certificate=certificate, traffic=traffic)
