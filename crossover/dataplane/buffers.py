"""Byte views over what callers hand in, and handing received bytes over to the caller's memory."""

from collections.abc import Sequence

from crossover.dataplane.protocols import Buffer
from crossover.dataplane.vector import Vector, VectorKind, expect
from crossover.errors import Corrupt


def views(data: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """`data` as flat byte views in order, without a copy; empty ones are left out."""
    parts = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    return [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]


def joined(data: Buffer | Sequence[Buffer]) -> bytes:
    """One immutable copy of `data`: what a store in memory keeps. Bytes are immutable already and are kept as they are."""
    return data if isinstance(data, bytes) else b"".join(views(data))


def fitting(out: memoryview, bytes_: int, *, key: str) -> memoryview:
    """`out` as a flat byte view if it has exactly `bytes_` bytes, else Corrupt."""
    if out.nbytes != bytes_:
        raise Corrupt(
            f"{key}: holds {bytes_} payload bytes, but `out` has room for {out.nbytes}; the lengths must be equal"
        )
    return out.cast("B") if out.ndim != 1 or out.format != "B" else out


def deliver(vector: Vector, *, key: str, kind: VectorKind | None, out: memoryview | None) -> Vector:
    """`vector`, checked against `kind`, read-only, or copied into `out` where one is given. Raises Corrupt."""
    expect(vector, key=key, kind=kind)
    if out is None:
        return Vector(vector.kind, vector.data.toreadonly(), vector.samples, vector.dtype)
    target = fitting(out, vector.data.nbytes, key=key)
    target[:] = vector.data
    return Vector(vector.kind, target, vector.samples, vector.dtype)
