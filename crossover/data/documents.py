"""JSON documents in object stores, and buffers as bytes."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from crossover.data import encoding
from crossover.data.encoding import Vector, VectorKind, expect
from crossover.data.protocols import Buffer, ObjectStore
from crossover.errors import Corrupt

# --- buffers ----------------------------------------------------------------------------------------------------------


def views(data: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """Return `data` as flat byte views in order, without a copy; empty views are left out."""
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


# --- documents --------------------------------------------------------------------------------------------------------
# JSON on its way: what the members of a run tell one another, and the runner, behind a checksum.
#
# Vectors, checkpoints and minibatches have one in their headers. Without it a changed digit of a decision or a record would be believed. A
# document stays JSON, for whoever looks at it.

ANYTHING: dict[str, Any] = {}  # an object of any members
_SEAL = b', "crc32": "'  # the last member, of what stands before it; of one length, so that a document's is known beforehand


def sealed(document: Mapping[str, Any]) -> bytes:
    """`document`, which has a member at least, as JSON with its checksum as the last member."""
    text = json.dumps(document).encode()[:-1]
    return b'%b%b%08x"}' % (text, _SEAL, zlib.crc32(text))


def opened(body: bytes, shape: Any = ANYTHING, *, key: str) -> dict[str, Any]:
    """Return the document in a sealed `body`. Raises Corrupt, naming `key`, if the checksum differs or it does not fit `shape`."""
    text, found, seal = body.rpartition(_SEAL)
    if not found or seal != b'%08x"}' % zlib.crc32(text):
        raise Corrupt(f"{key}: checksum differs: these {len(body)} bytes are not what was written")
    document: dict[str, Any] = encoding.read_plain(text + b"}", shape, key=key)
    return document


def read_document(objects: ObjectStore, key: str, shape: Any = ANYTHING) -> dict[str, Any]:
    """Read the sealed document stored under `key`. Raises Missing, Corrupt."""
    return opened(objects.get(key), shape, key=key)
