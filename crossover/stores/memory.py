"""Stores and a message bus in this process, for runs without any server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from crossover import runtime
from crossover.errors import Missing, Refused
from crossover.stores.documents import finish_read, join_buffers
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.protocols import Buffer, ObjectStore, Traffic, build_arrival, check_body

# --- memory -----------------------------------------------------------------------------------------------------------


class MemoryObjectStore(ObjectStore):
    """ObjectStore in a dict of this process. Clients made by `with_traffic` share its objects."""

    def __init__(self, traffic: Traffic) -> None:
        """Create an empty store; requests are counted in `traffic`."""
        self._traffic = traffic
        self._objects: dict[str, bytes] = {}
        self._lock = runtime.lock()

    def with_traffic(self, traffic: Traffic) -> "MemoryObjectStore":
        """Return a client of the same objects whose requests are counted in `traffic`."""
        other = MemoryObjectStore(traffic)
        other._objects, other._lock = self._objects, self._lock
        return other

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Store `data` under `key`, replacing an older object."""
        stored = join_buffers(data)
        self._traffic.count("put", bytes_out=len(stored))
        with self._lock:
            self._objects[key] = stored

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        """Store `data` under `key` unless the key exists. Returns whether this call stored it."""
        stored = join_buffers(data)
        self._traffic.count("put", bytes_out=len(stored))
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = stored
            return True

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        """Store `data` under `key` unless the key exists. Returns the object that is stored now."""
        stored = join_buffers(data)
        return stored if self.put_new(key, stored) else self.get(key)

    def get(self, key: str) -> bytes:
        """Return the bytes of the object under `key`. Raises Missing if there is none."""
        with self._lock:
            data = self._objects.get(key)
        self._traffic.count("get", bytes_in=len(data or b""))
        if data is None:
            raise Missing(key)
        return data

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        self._traffic.count("exists")
        return key in self._objects

    def delete(self, *keys: str) -> None:
        """Delete the objects under `keys`; missing keys are fine."""
        self._traffic.count("delete")
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def list(self, prefix: str) -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        self._traffic.count("list")
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))


class MemoryTensorStore:
    """TensorStore in a dict of this process. Vectors are copied when they are stored and read as read-only views, so stored vectors
    never change. Clients made by `with_traffic` share its vectors.
    """

    def __init__(self, traffic: Traffic) -> None:
        """Create an empty store; requests are counted in `traffic`."""
        self._traffic = traffic
        self._vectors: dict[str, Vector] = {}
        self._lock = runtime.lock()

    def with_traffic(self, traffic: Traffic) -> "MemoryTensorStore":
        """Return a client of the same vectors whose requests are counted in `traffic`."""
        other = MemoryTensorStore(traffic)
        other._vectors, other._lock = self._vectors, self._lock
        return other

    def put(self, key: str, vector: Vector) -> None:
        """Store a copy of `vector` under `key`, replacing an older one."""
        stored = _copy_vector(vector)
        self._traffic.count("put", bytes_out=stored.data.nbytes)
        with self._lock:
            self._vectors[key] = stored

    def create(self, key: str, vector: Vector) -> bool:
        """Store a copy of `vector` under `key` unless the key exists. Returns whether this call stored it."""
        stored = _copy_vector(vector)
        self._traffic.count("create", bytes_out=stored.data.nbytes)
        with self._lock:
            return self._vectors.setdefault(key, stored) is stored

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        """Return the vector under `key`, read-only, or copied into `out`. `kind`: required kind, None for any. Raises Missing, or
        Corrupt if kind or length differ.
        """
        with self._lock:
            vector = self._vectors.get(key)
        self._traffic.count("get", bytes_in=vector.data.nbytes if vector else 0)
        if vector is None:
            raise Missing(key)
        return finish_read(vector, key=key, kind=kind, out=out)

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""
        self._traffic.count("exists")
        return key in self._vectors

    def delete(self, *keys: str) -> None:
        """Delete the vectors under `keys`; missing keys are fine."""
        self._traffic.count("delete")
        with self._lock:
            for key in keys:
                self._vectors.pop(key, None)

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        """Store copies of all `vectors`, pairs (key, vector), at once, unless the first key exists; others that exist are replaced. Returns
        whether this call stored them.
        """
        stored = [(key, _copy_vector(vector)) for key, vector in vectors]
        self._traffic.count("create", bytes_out=sum(vector.data.nbytes for _, vector in stored))
        with self._lock:
            if stored[0][0] in self._vectors:
                return False
            self._vectors.update(stored)
            return True


def _copy_vector(vector: Vector) -> Vector:
    """Return the vector with its own copy of the bytes."""
    return Vector(vector.kind, memoryview(bytes(vector.data)), vector.samples, vector.dtype)


# --- memory bus -------------------------------------------------------------------------------------------------------
# A MessageBus in this process's memory: what RabbitMQ does for an `inline` run. Thread-safe.

T = TypeVar("T")


@dataclass
class _BusState:
    """State that all clients of one memory bus share. `mailboxes`: message by name, None if empty. `barriers`: by name one inbox
    per member, which holds by round the members that have reached it.
    """

    lock: runtime.Lock = field(default_factory=runtime.lock)
    mailboxes: dict[str, bytes | None] = field(default_factory=dict)
    barriers: dict[str, list[dict[int, set[int]]]] = field(default_factory=dict)


class MemoryMessageBus:
    """MessageBus in this process: mailboxes and barriers under one lock. Clients made by `with_traffic` share them."""

    def __init__(self, traffic: Traffic) -> None:
        """Create a bus without mailboxes and barriers; requests are counted in `traffic`."""
        self._traffic = traffic
        self._state = _BusState()

    def with_traffic(self, traffic: Traffic) -> "MemoryMessageBus":
        """Return a client of the same bus whose requests are counted in `traffic`."""
        other = MemoryMessageBus(traffic)
        other._state = self._state
        return other

    def declare(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Create the mailboxes and the barriers, pairs (name, number of members); existing ones are left as they are, except that a
        barrier with fewer members gets more.
        """
        self._traffic.count("declare")
        with self._state.lock:
            for mailbox in mailboxes:
                self._state.mailboxes.setdefault(mailbox, None)
            for barrier, members in barriers:
                inboxes = self._state.barriers.setdefault(barrier, [])
                inboxes.extend({} for _ in range(members - len(inboxes)))

    def replace(self, mailbox: str, body: Buffer) -> None:
        """Put `body` into `mailbox` as its only message. Raises Refused if the mailbox was not declared or `body` is longer than 15 MiB."""
        message = check_body(mailbox, body)
        self._traffic.count("replace", bytes_out=len(message))
        with self._state.lock:
            _find_declared(self._state.mailboxes, mailbox, "mailbox")
            self._state.mailboxes[mailbox] = message

    def peek(self, mailbox: str) -> bytes | None:
        """Return the message in `mailbox` without removing it; None if it is empty. Raises Refused if the mailbox was
        not declared.
        """
        with self._state.lock:
            message = _find_declared(self._state.mailboxes, mailbox, "mailbox")
        self._traffic.count("peek", bytes_in=len(message or b""))
        return message

    def arrive(self, barrier: str, *, round: int, member: int) -> None:
        """Record in every member's inbox of `barrier` that `member` has reached `round`. Raises Refused if the barrier was not declared."""
        self._traffic.count("arrive", bytes_out=len(build_arrival(round, member)))
        with self._state.lock:
            for inbox in _find_declared(self._state.barriers, barrier, "barrier"):
                inbox.setdefault(round, set()).add(member)

    def list_arrived(self, barrier: str, *, round: int, reader: int) -> frozenset[int]:
        """Return the members of `barrier` that have reported exactly `round`, according to the inbox of the member `reader`; empty if there
        are none. Messages of earlier rounds are deleted from that inbox, all others stay. Raises Refused if the barrier was not declared or
        has no such member.
        """
        with self._state.lock:
            inboxes = _find_declared(self._state.barriers, barrier, "barrier")
            if not 0 <= reader < len(inboxes):
                raise Refused(f"barrier {barrier}: reader {reader} is not one of its {len(inboxes)} members")
            inbox = inboxes[reader]
            for older in [known for known in inbox if known < round]:
                del inbox[older]
            present = frozenset(inbox.get(round, ()))
        self._traffic.count("arrived", bytes_in=sum(len(build_arrival(round, member)) for member in present))
        return present

    def remove(self, *, mailboxes: Sequence[str] = (), barriers: Sequence[tuple[str, int]] = ()) -> None:
        """Delete mailboxes and barriers, pairs (name, number of members); missing ones are fine."""
        self._traffic.count("remove")
        with self._state.lock:
            for mailbox in mailboxes:
                self._state.mailboxes.pop(mailbox, None)
            for barrier, _ in barriers:
                self._state.barriers.pop(barrier, None)

    def close(self) -> None:
        """Do nothing: a bus in memory has no connection."""


def _find_declared(declared: dict[str, T], name: str, what: str) -> T:
    """Return the value of the mailbox or barrier `name` in `declared`. Raises Refused if it was not declared. `what`: "mailbox" or
    "barrier", for the error.
    """
    try:
        return declared[name]
    except KeyError:
        raise Refused(f"{what} {name}: not declared; `initialise` declares what a run uses") from None
