"""JSON documents in object stores, and buffers as bytes."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from crossover.errors import Corrupt
from crossover.stores import encoding
from crossover.stores.encoding import Vector, VectorKind, check_kind
from crossover.stores.protocols import Buffer, ObjectStore

# --- buffers ----------------------------------------------------------------------------------------------------------


def to_views(data: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """Return the buffer or buffers in `data` as a list of flat byte views in order, without a copy; empty ones are left out."""
    parts = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    return [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]


def join_buffers(data: Buffer | Sequence[Buffer]) -> bytes:
    """Return the buffer or buffers in `data` as one bytes object; a bytes object is returned as it is."""
    return data if isinstance(data, bytes) else b"".join(to_views(data))


def check_length(out: memoryview, bytes_: int, *, key: str) -> memoryview:
    """Return `out` as a flat view of bytes if it has exactly `bytes_` bytes; otherwise raise Corrupt, naming `key`."""
    if out.nbytes != bytes_:
        raise Corrupt(
            f"{key}: holds {bytes_} payload bytes, but `out` has room for {out.nbytes}; the lengths must be equal"
        )
    return out.cast("B") if out.ndim != 1 or out.format != "B" else out


def finish_read(vector: Vector, *, key: str, kind: VectorKind | None, out: memoryview | None) -> Vector:
    """Return `vector` as the result of a read: read-only, or copied into `out` if given. Raises Corrupt, naming `key`, if it is not
    of the required `kind` (None: any) or `out` has another length.
    """
    check_kind(vector, key=key, kind=kind)
    if out is None:
        return Vector(vector.kind, vector.data.toreadonly(), vector.samples, vector.dtype)
    target = check_length(out, vector.data.nbytes, key=key)
    target[:] = vector.data
    return Vector(vector.kind, target, vector.samples, vector.dtype)


# --- documents --------------------------------------------------------------------------------------------------------
# JSON on its way: what the members of a run tell one another, and the runner, behind a checksum.
#
# Vectors, checkpoints and minibatches have one in their headers. Without it a changed digit of a decision or a record would be believed. A
# document stays readable JSON.

ANYTHING: dict[str, Any] = {}  # an object of any members
_SEAL = b', "crc32": "'  # the last member, a checksum of all before it; of fixed length, so that a document's length is known beforehand


def seal(document: Mapping[str, Any]) -> bytes:
    """Return `document` as JSON bytes, to which a CRC-32 of the rest is added as the last member, `crc32`. It must have at least one
    member.
    """
    text = json.dumps(document).encode()[:-1]
    return b'%b%b%08x"}' % (text, _SEAL, zlib.crc32(text))


def unseal(body: bytes, shape: Any = ANYTHING, *, key: str) -> dict[str, Any]:
    """Return the document in `body`, bytes from `seal`, without its checksum. Raises Corrupt, naming `key`, if the checksum is
    wrong or the document does not have the `shape` (see `encoding.check_shape`).
    """
    text, found, seal = body.rpartition(_SEAL)
    if not found or seal != b'%08x"}' % zlib.crc32(text):
        raise Corrupt(f"{key}: checksum differs: these {len(body)} bytes are not what was written")
    document: dict[str, Any] = encoding.read_plain(text + b"}", shape, key=key)
    return document


def read_document(objects: ObjectStore, key: str, shape: Any = ANYTHING) -> dict[str, Any]:
    """Return the document that is stored in `objects` under `key` as bytes from `seal`.

    Raises Missing, or Corrupt if its checksum is wrong or it does not have the `shape` (see `encoding.check_shape`).
    """
    return unseal(objects.get(key), shape, key=key)
