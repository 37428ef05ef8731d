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
from crossover.data import encoding
from crossover.data.encoding import Vector, VectorKind
from crossover.errors import Refused
from crossover.experiment import Aggregation

# --- addresses --------------------------------------------------------------------------------------------------------

_HARMLESS = re.compile(r"(?:(\w+)://)?(?:[\w.-]+(?::\d+)?)?(?:/[\w./-]*)?")
_SCHEME = re.compile(r"(\w+://)?")


def shown(url: str) -> str:
    """`url` if it is no more than scheme, host, port and path; else its scheme alone."""
    if _HARMLESS.fullmatch(url):
        return url
    scheme = _SCHEME.match(url)
    return f"{scheme[0] if scheme else ''}***"


# --- traffic ----------------------------------------------------------------------------------------------------------
# What a step moved: bytes in and out, requests, and how often each operation was asked for.


class Traffic:
    """A thread-safe counter that every client of the data plane writes into.

    `bytes_in` were received by the step, `bytes_out` sent by it: payloads, without protocol framing. `operations` counts by name (`get`,
    `put`, `list`, ...), so that a test can assert that training never lists.
    """

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._bytes_in = 0
        self._bytes_out = 0
        self._operations: Counter[str] = Counter()

    def count(self, operation: str, *, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """One request of `operation` and the payload bytes it moved."""
        with self._lock:
            self._operations[operation] += 1
            self._bytes_in += bytes_in
            self._bytes_out += bytes_out

    def reset(self) -> None:
        """Set bytes and operations to zero: a program's next record counts only its own."""
        with self._lock:
            self._bytes_in = self._bytes_out = 0
            self._operations.clear()

    @property
    def operations(self) -> dict[str, int]:
        """Requests by operation: a snapshot."""
        with self._lock:
            return dict(self._operations)

    def as_record(self) -> dict[str, int]:
        """Return bytes received, bytes sent and the number of requests, as a step's record holds them."""
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
    """Objects by key, of which nothing is asked but their bytes."""

    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises Missing."""


class ObjectStore(ReadableObjects, Protocol):
    """S3, a folder, or memory. Keys are relative paths; a listing is for set-up, collecting and cleaning, never for a training step."""

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Store `data` (buffers are joined in order, without a copy where the store allows it), replacing what was there."""

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """First write wins: True if this call stored `data`, False (and nothing changed, nothing fetched) if the key existed.

        A put whose answer was lost is sent again and then finds itself: False is no proof that another attempt was first.
        """

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        """First write wins: store `data` unless the key exists; return the winner's data either way."""

    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises Missing."""

    def exists(self, key: str) -> bool: ...

    def delete(self, *keys: str) -> None:
        """Delete; keys that are not there are fine."""

    def list(self, prefix: str) -> list[str]:
        """All keys under `prefix`, sorted, paged through to the end."""

    def delete_prefix(self, prefix: str) -> int:
        """List and delete every key under `prefix`; how many there were."""
        keys = self.list(prefix)
        self.delete(*keys)
        return len(keys)


class ConnectedObjectStore(ObjectStore, Protocol):
    """One that was opened: each invocation has its own counters over the same connections."""

    def beside(self, traffic: Traffic) -> ObjectStore:
        """Return the same store with requests counted into `traffic`."""


class TensorStore(Protocol):
    """Vectors by key: one worker's Redis, an object store, or memory."""

    def put(self, key: str, vector: Vector) -> None: ...

    def create(self, key: str, vector: Vector) -> bool:
        """First write wins: True if this call stored it, False (and nothing changed) if the key existed."""

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        """First write wins, for all of `vectors` at once; the first key decides. Nobody who finds the first key misses another.

        Object stores have no such command: they create the first key last.
        """

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        """Return the vector. `out`: bytes of the exact length (else Corrupt) to receive it into. Raises
        Missing, Corrupt (another kind).
        """

    def exists(self, key: str) -> bool: ...

    def delete(self, *keys: str) -> None:
        """Delete; keys that are not there are fine."""


class ConnectedTensorStore(TensorStore, Protocol):
    """One that was opened: each invocation has its own counters over the same connections."""

    def beside(self, traffic: Traffic) -> TensorStore:
        """Return the same store with requests counted into `traffic`."""

    def close(self) -> None:
        """Drop the connections; the next call makes new ones."""


@dataclass(frozen=True, slots=True)
class StateKeys:
    """Where a round's whole state lies: the model [P parameters | B buffers] and the optimizer's vectors (SGD: velocity; Adam: two
    moments).
    """

    model: str
    optimizer: tuple[str, ...] = ()


@runtime_checkable
class TensorCompute(Protocol):
    """Arithmetic on stored float32 vectors. Where it runs is the papers' comparison: in the database, or fetch-compute-store.

    Every `out` is created: if it exists already, nothing changes (the retry of a finished step is free). Means are sample-weighted and
    bitwise as docs/correctness.md defines them; robust rules are unweighted; the samples of `out` are the sum over what was combined.
    """

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        """Whatever the vectors hold: that of a NaN is NaN."""

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        """Combine the workers' vectors, in rank order, into `out` by `rule`. Vectors that are not finite are refused, or dropped as all
        `agree`.
        """

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        """torch.optim's step on the first P elements, the rule for the buffers on the rest (algorithms/optimizers.py). The whole new state
        appears by one command or not at all.
        """

    def finite(self, key: str) -> bool: ...


class MessageBus(Protocol):
    """RabbitMQ or memory: mailboxes that keep the latest message, barriers of distinct members."""

    def declare(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Create what a run uses, once, in `initialise`; repeating it is harmless. A barrier is (name, members)."""

    def replace(self, mailbox: str, body: Buffer) -> None:
        """Put the newest message in the mailbox; the older one is dropped."""

    def peek(self, mailbox: str) -> bytes | None:
        """Return the mailbox's message without removing it; None if the mailbox is empty."""

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        """Tell every member of the barrier that `member` has reached `round`. Repeating it is harmless."""

    def arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        """Return the distinct members known to `reader` to have reached `round`. Rounds before `round` are acknowledged and forgotten."""

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Take back what `declare` made."""

    def close(self) -> None:
        """Drop the connection; the next call makes a new one. A Lambda invocation ends so: its frozen process would miss heartbeats."""


# --- states -----------------------------------------------------------------------------------------------------------
# What every TensorCompute checks about the keys of an optimizer step.


def optimizer_keys(state: StateKeys, out: StateKeys, update: Update) -> None:
    """Refused unless `out` names a key for each of the optimizer's vectors, and `state` too after the first step."""
    needed = len(OPTIMIZERS[update.optimizer].vectors(update.momentum))
    for name, keys in (("out", out), *(() if update.first else (("state", state),))):
        if len(keys.optimizer) != needed:
            raise Refused(
                f"{update.optimizer}: {name}.optimizer: {list(keys.optimizer)}; {needed} keys are needed here"
            )


# --- messages ---------------------------------------------------------------------------------------------------------
# What every message bus agrees on: how large a message may be, and what stands in a barrier's messages.

# Amazon MQ's RabbitMQ 4 may refuse more than 16 MiB; the same limit holds on one machine, so that a run that works there works on AWS.
MAX_BODY_BYTES = 15 * 2**20


def checked(name: str, body: Buffer) -> bytes:
    """`body` as bytes, or Refused where it is too long for `name`."""
    bytes_ = memoryview(body).nbytes
    if bytes_ > MAX_BODY_BYTES:
        raise Refused(
            f"{name}: a message of {bytes_:,} bytes; at most {MAX_BODY_BYTES:,} (15 MiB) fit: "
            "put the body into the object store and send its key"
        )
    return body if isinstance(body, bytes) else bytes(body)


def arrival(round_: int, member: int) -> bytes:
    """Build the message by which `member` reports to a barrier that it has reached `round_`."""
    return json.dumps({"round": round_, "member": member}).encode()


def read_arrival(body: bytes, *, queue: str) -> tuple[int, int]:
    """(round, member) of a barrier's message. Raises Corrupt."""
    message = encoding.read_plain(body, {"round": int, "member": int}, key=queue)
    return message["round"], message["member"]
