"""A vector on its way: one flat array behind a small header.

Gradients, updates, parameters and velocities travel as one flat float32 vector; compressed forms as bytes. The header says what it is
(`kind`), how many samples it stands for, and how long it is, so that a gradient is never taken for a model.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from crossover.errors import Corrupt

DType = Literal["float32", "uint8"]
ITEM_BYTES: dict[DType, int] = {"float32": 4, "uint8": 1}


class VectorKind(StrEnum):
    """What a vector is. Gradients are subtracted, updates are added: the kind says which."""

    MODEL = "model"  # [P parameters | B buffers]
    GRADIENT = "gradient"  # [P gradient | B minibatch statistics]
    VELOCITY = "velocity"  # [P] momentum buffer of SGD
    MOMENT = "moment"  # [P] first or second moment of Adam
    STATE = "state"  # what else an architecture's worker keeps in its checkpoints
    UPDATE = "update"  # [P] to be added (MLLess)
    SPARSE = "sparse"  # bytes: encoded (index, value) update
    RECORD = "record"  # bytes: JSON, what the members of a protocol tell one another
    QUANTIZED = "quantized"  # bytes: QSGD or fp16 compressed gradient


def exchanged(what: str) -> VectorKind:
    """What workers show one another, by `exchange.what`; what a model has moved by is subtracted, as a gradient is."""
    return VectorKind.MODEL if what == "model" else VectorKind.GRADIENT


@dataclass(frozen=True, slots=True)
class Vector:
    """`data`: a C-contiguous memoryview of bytes over the array's memory (not a copy)."""

    kind: VectorKind
    data: memoryview
    samples: int = 0
    dtype: DType = "float32"

    @property
    def elements(self) -> int:
        return self.data.nbytes // ITEM_BYTES[self.dtype]


_MAGIC = b"XVEC"
_LAYOUT = struct.Struct("<4sBB12sQQI")  # magic, version, dtype, kind, samples, elements, crc32 of the payload
HEADER_BYTES = 48  # padded: the payload behind it stays 16-byte aligned
_DTYPES: tuple[DType, ...] = ("float32", "uint8")


def header(vector: Vector) -> bytes:
    """The 48 bytes that stand before `vector.data` in object stores and messages."""
    packed = _LAYOUT.pack(
        _MAGIC,
        1,
        _DTYPES.index(vector.dtype),
        vector.kind.encode(),
        vector.samples,
        vector.elements,
        zlib.crc32(vector.data),
    )
    return packed.ljust(HEADER_BYTES, b"\0")


def decode(body: bytes | bytearray | memoryview, *, key: str, kind: VectorKind | None = None) -> Vector:
    """The vector in `body` without copying it. Raises Corrupt, naming `key`, on anything unexpected."""
    view = memoryview(body).cast("B")
    if view.nbytes < HEADER_BYTES or bytes(view[:4]) != _MAGIC:
        raise Corrupt(f"{key}: {view.nbytes} bytes that do not start with a vector header")
    _, version, dtype_code, kind_name, samples, elements, crc = _LAYOUT.unpack(view[: _LAYOUT.size])
    if version != 1 or dtype_code >= len(_DTYPES):
        raise Corrupt(f"{key}: vector header version {version}, dtype {dtype_code}; this program reads version 1")
    dtype = _DTYPES[dtype_code]
    data = view[HEADER_BYTES:]
    if data.nbytes != elements * ITEM_BYTES[dtype]:
        raise Corrupt(f"{key}: {data.nbytes} payload bytes where the header promises {elements} {dtype} elements")
    if zlib.crc32(data) != crc:
        raise Corrupt(f"{key}: checksum differs: the bytes were changed on their way")
    name = kind_name.rstrip(b"\0").decode("ascii", "replace")
    if name not in VectorKind.__members__.values():
        raise Corrupt(f"{key}: unknown kind {name!r}; one of {', '.join(VectorKind)}")
    return expect(Vector(VectorKind(name), data, samples, dtype), key=key, kind=kind)


def expect(vector: Vector, *, key: str, kind: VectorKind | None) -> Vector:
    """`vector` if it is of `kind` (None: any), else Corrupt."""
    if kind is not None and vector.kind != kind:
        raise Corrupt(f"{key}: holds a {vector.kind} vector where a {kind} was expected")
    return vector
