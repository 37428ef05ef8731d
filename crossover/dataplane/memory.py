"""Object and tensor stores in this process's memory: for `inline` runs and property tests. Thread-safe."""

from collections.abc import Sequence

from crossover import runtime
from crossover.dataplane.buffers import deliver, joined
from crossover.dataplane.protocols import Buffer, ObjectStore
from crossover.dataplane.traffic import Traffic
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import Missing


class MemoryObjectStore(ObjectStore):
    """An ObjectStore on a dict. `beside(traffic)` is another client of the same objects that counts elsewhere."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._objects: dict[str, bytes] = {}
        self._lock = runtime.lock()

    def beside(self, traffic: Traffic) -> "MemoryObjectStore":
        """The same store, counted into `traffic`: each step of an inline run has a record of its own."""
        other = MemoryObjectStore(traffic)
        other._objects, other._lock = self._objects, self._lock
        return other

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        stored = joined(data)
        self._traffic.count("put", bytes_out=len(stored))
        with self._lock:
            self._objects[key] = stored

    def put_new(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        stored = joined(data)
        self._traffic.count("put", bytes_out=len(stored))
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = stored
            return True

    def create(self, key: str, data: Buffer | Sequence[Buffer]) -> bytes:
        stored = joined(data)
        return stored if self.put_new(key, stored) else self.get(key)

    def get(self, key: str) -> bytes:
        with self._lock:
            data = self._objects.get(key)
        self._traffic.count("get", bytes_in=len(data or b""))
        if data is None:
            raise Missing(key)
        return data

    def exists(self, key: str) -> bool:
        self._traffic.count("exists")
        return key in self._objects

    def delete(self, *keys: str) -> None:
        self._traffic.count("delete")
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def list(self, prefix: str) -> list[str]:
        self._traffic.count("list")
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))


class MemoryTensorStore:
    """A TensorStore on a dict: `put` copies what it is given, `get` hands out read-only views, so stored vectors never change."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._vectors: dict[str, Vector] = {}
        self._lock = runtime.lock()

    def beside(self, traffic: Traffic) -> "MemoryTensorStore":
        """The same store, counted into `traffic`."""
        other = MemoryTensorStore(traffic)
        other._vectors, other._lock = self._vectors, self._lock
        return other

    def put(self, key: str, vector: Vector) -> None:
        stored = _copy(vector)
        self._traffic.count("put", bytes_out=stored.data.nbytes)
        with self._lock:
            self._vectors[key] = stored

    def create(self, key: str, vector: Vector) -> bool:
        stored = _copy(vector)
        self._traffic.count("create", bytes_out=stored.data.nbytes)
        with self._lock:
            return self._vectors.setdefault(key, stored) is stored

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        with self._lock:
            vector = self._vectors.get(key)
        self._traffic.count("get", bytes_in=vector.data.nbytes if vector else 0)
        if vector is None:
            raise Missing(key)
        return deliver(vector, key=key, kind=kind, out=out)

    def exists(self, key: str) -> bool:
        self._traffic.count("exists")
        return key in self._vectors

    def delete(self, *keys: str) -> None:
        self._traffic.count("delete")
        with self._lock:
            for key in keys:
                self._vectors.pop(key, None)

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        stored = [(key, _copy(vector)) for key, vector in vectors]
        self._traffic.count("create", bytes_out=sum(vector.data.nbytes for _, vector in stored))
        with self._lock:
            if stored[0][0] in self._vectors:
                return False
            self._vectors.update(stored)
            return True


def _copy(vector: Vector) -> Vector:
    return Vector(vector.kind, memoryview(bytes(vector.data)), vector.samples, vector.dtype)
