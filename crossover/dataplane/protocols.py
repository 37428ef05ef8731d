"""What a step may ask of the data plane, as small Protocols. `tests/conformance/` holds one suite per Protocol.

Errors of every implementation: Missing (no such key), Corrupt (wrong kind, length, checksum), Refused (the store understood and refused),
Unavailable (no answer: worth a retry).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from crossover.algorithms.dropping import Agree
from crossover.algorithms.update import Update
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import Vector, VectorKind
from crossover.experiment import Aggregation

Buffer = bytes | bytearray | memoryview


class ObjectStore(Protocol):
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
        """The object's bytes. Raises Missing."""

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
        """The same store, counted into `traffic`."""


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
        """The vector; received straight into `out` (bytes, exact length, else Corrupt) where given. Raises
        Missing, Corrupt (another kind).
        """

    def exists(self, key: str) -> bool: ...

    def delete(self, *keys: str) -> None:
        """Delete; keys that are not there are fine."""


class ConnectedTensorStore(TensorStore, Protocol):
    """One that was opened: each invocation has its own counters over the same connections."""

    def beside(self, traffic: Traffic) -> TensorStore:
        """The same store, counted into `traffic`."""

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
        """The workers' vectors, by rank, as one. What is not finite is refused by its key, or dropped as all `agree`."""

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        """torch.optim's step on the first P elements, the rule for the buffers on the rest (algorithms/update.py). The whole new state
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
        """The mailbox's message, left there for every other reader; None while it is empty."""

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        """Tell every member of the barrier that `member` has reached `round`. Repeating it is harmless."""

    def arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        """The distinct members known to `reader` to have reached `round`. Rounds before `round` are acknowledged and forgotten."""

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Take back what `declare` made."""

    def close(self) -> None:
        """Drop the connection; the next call makes a new one. A Lambda invocation ends so: its frozen process would miss heartbeats."""
