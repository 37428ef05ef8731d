"""Vectors as objects: LambdaML's S3 channel. The payload stands behind vector.py's header."""

from collections.abc import Sequence

from crossover.dataplane.buffers import deliver
from crossover.dataplane.protocols import ObjectStore
from crossover.dataplane.vector import Vector, VectorKind, decode, header
from crossover.errors import Missing


class ObjectTensorStore:
    """A TensorStore over any ObjectStore, counted into that store's traffic. Keys live until the bucket's lifecycle rule ends them.

    `prefix`: stands before every key in the object store.
    """

    def __init__(self, objects: ObjectStore, *, prefix: str = "") -> None:
        self._objects, self._prefix = objects, prefix

    def put(self, key: str, vector: Vector) -> None:
        self._objects.put(self._prefix + key, [header(vector), vector.data])

    def create(self, key: str, vector: Vector) -> bool:
        return self._objects.put_new(self._prefix + key, [header(vector), vector.data])

    def create_together(self, vectors: Sequence[tuple[str, Vector]]) -> bool:
        # Whoever finds the first key finds the others: it comes last. Another attempt writes the same bits.
        for key, vector in vectors[:0:-1]:
            self.create(key, vector)
        return self.create(*vectors[0])

    def get(self, key: str, *, kind: VectorKind | None = None, out: memoryview | None = None) -> Vector:
        try:
            body = self._objects.get(self._prefix + key)
        except Missing:
            raise Missing(key) from None  # by the name that the caller knows
        return deliver(decode(body, key=key, kind=kind), key=key, kind=kind, out=out)

    def exists(self, key: str) -> bool:
        return self._objects.exists(self._prefix + key)

    def delete(self, *keys: str) -> None:
        self._objects.delete(*(self._prefix + key for key in keys))
