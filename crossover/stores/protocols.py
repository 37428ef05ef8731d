"""Interfaces of stores, databases and message buses, independent of the server behind them; and the counting of their traffic."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from crossover import runtime
from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.rules import Agree
from crossover.errors import Refused
from crossover.experiment import Aggregation
from crossover.stores import encoding
from crossover.stores.encoding import Vector, VectorKind

# --- addresses --------------------------------------------------------------------------------------------------------

_HARMLESS = re.compile(r"(?:(\w+)://)?(?:[\w.-]+(?::\d+)?)?(?:/[\w./-]*)?")
_SCHEME = re.compile(r"(\w+://)?")


def redact_url(url: str) -> str:
    """Return `url` for a message: unchanged if it has only scheme, host, port and path; otherwise its scheme and `***`, since it
    may contain a password.
    """
    if _HARMLESS.fullmatch(url):
        return url
    scheme = _SCHEME.match(url)
    return f"{scheme[0] if scheme else ''}***"


# --- traffic ----------------------------------------------------------------------------------------------------------
# What a step moved: bytes in and out, requests, and how often each operation was asked for.


class Traffic:
    """Thread-safe counter of the requests and bytes of a step or program at its stores and bus.

    `bytes_in`: payload bytes received; `bytes_out`: payload bytes sent. `operations` counts requests by name (`get`, `put`, `list`,
    ...).
    """

    def __init__(self) -> None:
        """Create a counter of zero bytes and requests."""
        self._lock = runtime.lock()
        self._bytes_in = 0
        self._bytes_out = 0
        self._operations: Counter[str] = Counter()

    def count(self, operation: str, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Count one request of `operation` and its payload: `bytes_in` received, `bytes_out` sent."""
        with self._lock:
            self._operations[operation] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def reset(self) -> None:
        """Set bytes and requests to zero, so that the next record of a program counts from there."""
        with self._lock:
            self._bytes_in = self._bytes_out = 0
            self._operations.clear()

    @property
    def operations(self) -> dict[str, int]:
        """Number of requests so far, by operation."""
        with self._lock:
            return dict(self._operations)

    def as_record(self) -> dict[str, int]:
        """Return {"bytes_in", "bytes_out", "requests"}: payload bytes received and sent, and the number of requests."""
        with self._lock:
            return {
                "bytes_in": self._bytes_in,
                "bytes_out": self._bytes_out,
                "requests": self._operations.total(),
            }


# --- protocols --------------------------------------------------------------------------------------------------------
# What a step may ask of the data plane, as small Protocols. `tests/conformance/` holds one suite per Protocol.
#
# Errors of every implementation: Missing (no such key), Corrupt (wrong kind, length, checksum), Refused (the store understood and
# refused), Unavailable (no answer: worth a retry).

Buffer = bytes | bytearray | memoryview


class ReadableObjects(Protocol):
    """Protocol of a store whose objects are only read."""

    def get(self, key: str) -> bytes:
        """Return the bytes of the object under `key`. Raises Missing if there is none."""


class ObjectStore(ReadableObjects, Protocol):
    """Protocol of an object store: S3, a folder, or memory. Keys are relative paths such as runs/1/model. Training steps never list
    keys. All stores raise Refused for a request that is not allowed and Unavailable if they do not answer. Implementations derive
    from this class, which implements `delete_prefix`.
    """

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Store `data` under `key`, replacing an older object; several buffers are joined in order, without a copy if
        the store allows it.
        """

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """Store `data` under `key` unless the key exists. Returns True if this call stored it, False if the key existed
        (nothing is changed).

        A put whose answer was lost is sent again and then finds its own object: False does not prove that another
        attempt was first.
        """

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        """Store `data` under `key` unless the key exists. Returns the object that is stored now: `data`, or the earlier
        one.
        """

    def get(self, key: str) -> bytes:
        """Return the bytes of the object under `key`. Raises Missing if there is none."""

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""

    def delete(self, *keys: str) -> None:
        """Delete the objects under `keys`; missing keys are fine, and so are no keys at all."""

    def list(self, prefix: str) -> list[str]:
        """Return all keys that begin with `prefix`, sorted and complete; an empty list if there are none."""

    def delete_prefix(self, prefix: str) -> int:
        """List the keys that begin with `prefix` and delete those objects. Returns how many there were."""
        keys = self.list(prefix)
        self.delete(*keys)
        return len(keys)


class ConnectedObjectStore(ObjectStore, Protocol):
    """Protocol of an opened object store that can make further clients, each with its own count of requests."""

    def with_traffic(self, traffic: Traffic) -> ObjectStore:
        """Return a client of this store, on the same connections, whose requests are counted in `traffic`."""


class TensorStore(Protocol):
    """Protocol of a store of vectors by key: one worker's Redis, an object store, or memory. Like all stores it raises Refused for a
    request that is not allowed and Unavailable if it does not answer.
    """

    def put(self, key: str, vector: Vector) -> None:
        """Store `vector` under `key`, replacing an older one."""

    def create(self, key: str, vector: Vector) -> bool:
        """Store `vector` under `key` unless the key exists. Returns True if this call stored it, False if the key
        existed (nothing is changed).
        """

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        """Store all `vectors`, pairs (key, vector), at least one, unless the first key exists. Returns whether this call stored them.

        A reader who finds the first key finds all of them: either they appear at once, or, in object stores, the first key is
        created last.
        """

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        """Return the vector under `key`. `kind`: required kind, None for any. `out`: writable memory with exactly the vector's
        number of bytes, into which it is copied; the result is then a view of `out`. Raises Missing, or Corrupt if kind, length or
        checksum is wrong.
        """

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""

    def delete(self, *keys: str) -> None:
        """Delete the vectors under `keys`; missing keys are fine, and so are no keys at all."""


class ConnectedTensorStore(TensorStore, Protocol):
    """Protocol of an opened tensor store that can make further clients, each with its own count of requests."""

    def with_traffic(self, traffic: Traffic) -> TensorStore:
        """Return a client of this store, on the same connections, whose requests are counted in `traffic`."""

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""


@dataclass(frozen=True, slots=True)
class StateKeys:
    """Keys of one worker's training state in one round: of the `model` [P parameters | B buffers], and of the `optimizer`'s vectors
    (SGD: velocity; Adam: two moments).
    """

    model: str
    optimizer: tuple[str, ...] = ()


@runtime_checkable
class TensorCompute(Protocol):
    """Protocol of arithmetic on stored float32 vectors, in the database or by fetching, computing and storing.

    Results are created: if the key `out` exists, nothing changes, so a step can be repeated. Means are weighted by samples and
    bitwise as docs/correctness.md defines them; robust rules are unweighted. The samples of a result are the sum over the combined
    vectors. Raises Missing if a vector does not exist, Refused if vectors do not fit together.
    """

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        """Store the mean of the vectors under `keys`, weighted by their samples, under the key `out`. NaN and infinity are averaged
        like other values.
        """

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        """Store the aggregate of the workers' vectors under `keys` (in rank order), by `rule`, under the key `out`.

        `agree`: used if `rule.non_finite` is "drop": it takes the indices of vectors that are not finite, and returns those that all
        workers drop. Raises Refused if there are any and `rule.non_finite` is "refuse".
        """

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        """Take one optimizer step: read the vectors under the keys in `state` and the `gradient`'s key, and create the new ones
        under the keys in `out`, all or none.

        `update`: settings of the step. The model's BatchNorm statistics follow their own rule (algorithms/updates.py).
        """

    def is_finite(self, key: str) -> bool:
        """Return whether no element of the vector under `key` is NaN or infinite. Raises Missing if there is no such vector."""


class MessageBus(Protocol):
    """Protocol of a message bus, RabbitMQ or memory. A mailbox keeps only its latest message, at most 15 MiB. A barrier collects which
    of its members have reached a round. Both must be declared before they are used; otherwise Refused is raised.
    """

    def declare(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Create the mailboxes and the barriers, pairs (name, number of members), that a run uses. Existing ones keep their
        messages, but a barrier that has fewer members gets more. May raise Refused if one exists with other properties.
        """

    def replace(self, mailbox: str, body: Buffer) -> None:
        """Put `body` into `mailbox` as its only message; an older one is dropped. Raises Refused if `body` is longer than 15 MiB."""

    def peek(self, mailbox: str) -> bytes | None:
        """Return the message in `mailbox` without removing it; None if it is empty. May wait up to 30 s, because another reader may hold
        the message.
        """

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        """Report to every member of `barrier` that `member` has reached `round`; repeating it is harmless."""

    def list_arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        """Return the members of `barrier` that have reported `round`, according to the messages that the member `reader` has
        received; empty if there are none. A member that has only reported another round is not among them. The reader's messages of
        earlier rounds are deleted, those of this round stay. Raises Refused if the barrier has no such member.
        """

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Delete mailboxes and barriers, pairs (name, number of members); missing ones are fine."""

    def close(self) -> None:
        """Close the connections of all threads, if there are any; the next call opens a new one. Do not call it while other threads use the
        bus. Each Lambda invocation does so at its end, because a frozen function cannot answer heartbeats.
        """


# --- states -----------------------------------------------------------------------------------------------------------
# What every TensorCompute checks about the keys of an optimizer step.


def check_optimizer_keys(state: StateKeys, out: StateKeys, update: Update) -> None:
    """Raise Refused unless `out` has one key for each vector that the optimizer of `update` keeps (SGD with momentum: one; Adam: two),
    and `state` too, except at the first step.
    """
    needed = len(OPTIMIZERS[update.optimizer].vectors(update.momentum))
    for name, keys in (("out", out), *(() if update.is_first else (("state", state),))):
        if len(keys.optimizer) != needed:
            raise Refused(
                f"{update.optimizer}: {name}.optimizer: {list(keys.optimizer)}; {needed} keys are needed here"
            )


# --- messages ---------------------------------------------------------------------------------------------------------
# Common to all message buses: the largest message, and the content of a barrier's messages.

# Amazon MQ's RabbitMQ 4 may refuse more than 16 MiB; the same limit holds on one machine, so that a run that works there works on AWS.
MAX_BODY_BYTES = 15 * 2**20


def check_body(name: str, body: Buffer) -> bytes:
    """Return `body` as bytes. Raises Refused if it is longer than 15 MiB, the limit of a message. `name`: mailbox or barrier for
    the error.
    """
    bytes_ = memoryview(body).nbytes
    if bytes_ > MAX_BODY_BYTES:
        raise Refused(
            f"{name}: a message of {bytes_:,} bytes; at most {MAX_BODY_BYTES:,} (15 MiB) fit: "
            "put the body into the object store and send its key"
        )
    return body if isinstance(body, bytes) else bytes(body)


def build_arrival(round_: int, member: int) -> bytes:
    """Return the JSON message which says that `member` has reached the round `round_` of a barrier."""
    return json.dumps({"round": round_, "member": member}).encode()


def read_arrival(body: bytes, *, queue: str) -> tuple[int, int]:
    """Return (round, member) from `body`, a message from `build_arrival`. Raises Corrupt, naming `queue`, if it is not such a message."""
    message = encoding.read_plain(body, {"round": int, "member": int}, key=queue)
    return message["round"], message["member"]
