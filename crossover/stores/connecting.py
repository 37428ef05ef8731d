"""The composition root of the data plane: which implementation stands behind a Protocol, by URL.

Imports stand inside the functions: boto3, redis and pika cost a cold start tenths of a second each, and most steps need only some of them.
Clients are made once per process; `with_traffic(traffic)` gives each invocation its own counters over the same connections.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from crossover.errors import ConfigError
from crossover.stores.protocols import Traffic, redact_url

if TYPE_CHECKING:
    from crossover.stores.protocols import (
        ConnectedObjectStore,
        ConnectedTensorStore,
        ObjectStore,
        TensorCompute,
        TensorStore,
    )
    from crossover.stores.rabbitmq import RabbitMessageBus
    from crossover.stores.redis_tensors import ObjectTensorStore

WhereToCompute = Literal["in_database", "fetch"]


def _open_bucket(place: str, traffic: Traffic) -> "ConnectedObjectStore":
    """Return a client of the S3 bucket `place`, whose requests are counted in `traffic`."""
    from crossover.stores.s3 import S3ObjectStore

    return S3ObjectStore(place, traffic)


def _open_folder(place: str, traffic: Traffic) -> "ConnectedObjectStore":
    """Return an object store in the folder `place`, whose requests are counted in `traffic`."""
    from pathlib import Path

    from crossover.stores.files import FileObjectStore

    return FileObjectStore(Path(place), traffic)


# By the scheme of a URL: what opens the place behind it. A storage channel of one's own is an ObjectStore, and a line here; with
# storage.channel: s3 vectors go through it as well.
OBJECT_STORES: dict[str, Callable[[str, Traffic], "ConnectedObjectStore"]] = {"s3": _open_bucket, "file": _open_folder}


def open_object_store(url: str, traffic: Traffic) -> "ConnectedObjectStore":
    """Return a client of the object store at `url`: a bucket (its name or s3://name), a folder (file:///path, created if missing), or
    another scheme in OBJECT_STORES. Its requests are counted in `traffic`; opening a bucket sends none. Raises ConfigError for an
    unknown scheme, or a bucket with a path.
    """
    scheme, separator, place = url.partition("://")
    if not separator:
        scheme, place = "s3", url
    if scheme not in OBJECT_STORES or (scheme == "s3" and "/" in place):
        known = ["s3://<bucket>", *(f"{each}:///<path>" for each in OBJECT_STORES if each != "s3")]
        raise ConfigError(f"object store {redact_url(url)!r}: expected a bucket's name, or one of {', '.join(known)}")
    return OBJECT_STORES[scheme](place, traffic)


def open_object_tensors(objects: "ObjectStore") -> "ObjectTensorStore":
    """Return a tensor store that keeps its vectors as objects in `objects`, with keys that begin with `runs/`. Requests are counted
    as those of `objects` are.
    """
    from crossover.stores.redis_tensors import ObjectTensorStore

    return ObjectTensorStore(objects, prefix="runs/")  # tensor keys begin with the run; functions may write below runs/


def _open_redis(
    url: str, *, password: str | None, certificate: str | None, time_to_live_s: float, traffic: Traffic
) -> "ConnectedTensorStore":
    """Return a client of the Redis server at `url`, a tensor store that can also compute in the database. `password`: None for a
    server without one. `certificate`: PEM text for TLS. `time_to_live_s`: seconds after which keys expire. Requests are counted
    in `traffic`.
    """
    from crossover.stores.redis_client import RedisClient, parse_address
    from crossover.stores.redis_tensors import RedisCompute

    client = RedisClient(parse_address(url, password=password, certificate=certificate))
    return RedisCompute(client, traffic, time_to_live_s=time_to_live_s)


# By the scheme of a URL: what opens the database behind it. A vector store of one's own is a TensorStore, and a line here.
TENSOR_STORES: dict[str, Callable[..., "ConnectedTensorStore"]] = {
    "redis": _open_redis,
    "rediss": _open_redis,
    "unix": _open_redis,
}


def open_tensor_store(
    url: str,
    *,
    password: str | None = None,
    certificate: str | None = None,
    time_to_live_s: float,
    traffic: Traffic,
) -> "ConnectedTensorStore":
    """Return a client of the tensor store at `url`: Redis (redis://, rediss:// or unix://), or another scheme in TENSOR_STORES. It
    connects only at its first request. Raises ConfigError for any other URL, and for one that contains a password.

    `password`: None for a server without one. `certificate`: PEM text that a rediss:// server must present or be signed by.
    `time_to_live_s`: seconds after which keys expire. Requests are counted in `traffic`.
    """
    opens = TENSOR_STORES.get(url.partition("://")[0], _open_redis)  # whose own check says what is expected
    return opens(url, password=password, certificate=certificate, time_to_live_s=time_to_live_s, traffic=traffic)


def choose_tensor_compute(store: "TensorStore", *, compute: WhereToCompute = "in_database") -> "TensorCompute":
    """Return the client that averages and updates the vectors of `store`: the store itself if `compute` is "in_database" and the
    store has commands for it; otherwise one that fetches the vectors, computes in this process, and stores the result.
    """
    from crossover.stores.fetch_compute import FetchCompute
    from crossover.stores.protocols import TensorCompute

    return store if compute == "in_database" and isinstance(store, TensorCompute) else FetchCompute(store)


def open_message_bus(
    url: str, *, username: str, password: str, traffic: Traffic, certificate: str | None = None
) -> "RabbitMessageBus":
    """Return a client of the RabbitMQ broker at `url` (amqp:// or amqps://) for the user `username` with `password`. It connects only
    at its first request. Raises ConfigError for any other URL, and for one that contains a password.

    `certificate`: PEM text of the authority to verify the broker by; None: the system's authorities. Requests are counted in
    `traffic`.
    """
    from crossover.stores.rabbitmq import RabbitMessageBus

    return RabbitMessageBus(url, username=username, password=password, certificate=certificate, traffic=traffic)
