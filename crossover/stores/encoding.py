"""Vectors, records and plain values as bytes, and back: each is checked when it is read."""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from crossover.errors import Corrupt

# --- vector -----------------------------------------------------------------------------------------------------------

DType = Literal["float32", "uint8"]
ITEM_BYTES: dict[DType, int] = {"float32": 4, "uint8": 1}


class VectorKind(StrEnum):
    """Kinds of stored vectors: what a vector is used for. It is stored with the vector and checked when the vector is read, so
    that, for example, a model is never taken for a gradient. VELOCITY and MOMENT are an optimizer's; SPARSE, RECORD (JSON) and
    QUANTIZED are bytes.
    """

    MODEL = "model"  # [P parameters | B buffers]
    GRADIENT = "gradient"  # [P gradient | B minibatch statistics]
    VELOCITY = "velocity"  # [P] momentum buffer of SGD
    MOMENT = "moment"  # [P] first or second moment of Adam
    STATE = "state"  # what else an architecture's worker keeps in its checkpoints
    UPDATE = "update"  # [P parameters | B buffers] to be added to a model (MLLess)
    SPARSE = "sparse"  # bytes: encoded (index, value) update
    RECORD = "record"  # bytes: JSON, what the members of a protocol tell one another
    QUANTIZED = "quantized"  # bytes: a contribution, compressed by any codec of algorithms/codecs.py


def exchanged_kind(what: str) -> VectorKind:
    """Return the kind of vector that workers exchange: MODEL if `what`, the value of `exchange.what`, is "model", otherwise
    GRADIENT. A model's delta counts as a gradient, since it is subtracted too.
    """
    return VectorKind.MODEL if what == "model" else VectorKind.GRADIENT


@dataclass(frozen=True, slots=True)
class Vector:
    """Vector to be stored or as it was read: its `kind`, its bytes (`data`, a view without a copy), the number of training `samples`
    it was computed from (0 if unknown; it then has the weight of one sample in a mean), and the `dtype` of its elements.
    """

    kind: VectorKind
    data: memoryview
    samples: int = 0
    dtype: DType = "float32"

    @property
    def elements(self) -> int:
        """Number of elements of the vector."""
        return self.data.nbytes // ITEM_BYTES[self.dtype]


_MAGIC = b"XVEC"
_LAYOUT = struct.Struct("<4sBB12sQQI")  # magic, version, dtype, kind, samples, elements, crc32 of the payload
HEADER_BYTES = 48  # padded: the payload behind it stays 16-byte aligned
_DTYPES: tuple[DType, ...] = ("float32", "uint8")


def build_header(vector: Vector) -> bytes:
    """Return the 48-byte header that precedes `vector.data` in object stores and messages: kind, dtype, samples, elements and checksum."""
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
    """Return the vector in `body` (header, then payload), as a view of `body`. `kind`: required kind, None for any. Raises Corrupt,
    naming `key`, if header, length, checksum or kind is wrong.
    """
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
    return check_kind(Vector(VectorKind(name), data, samples, dtype), key=key, kind=kind)


def check_kind(vector: Vector, *, key: str, kind: VectorKind | None) -> Vector:
    """Return `vector` unchanged if it is of `kind` (None: any); otherwise raise Corrupt, naming `key`."""
    if kind is not None and vector.kind != kind:
        raise Corrupt(f"{key}: holds a {vector.kind} vector where a {kind} was expected")
    return vector


# --- plain ------------------------------------------------------------------------------------------------------------
# JSON that came from elsewhere, held against the shape that its reader relies on before anybody uses it.
#
# A shape is a type (float: whole numbers too; None: null), or a text: this one; a tuple: one of these; [shape]: a list of such, [shape,
# shape]: exactly two; a mapping: an object with these names, one that ends in "?" may be absent, others are let through; {str: shape}: an
# object of any names, {int: shape}: of decimal ones.


def read_plain(body: bytes | str, shape: Any, *, key: str) -> Any:
    """Return the JSON value in `body`, checked by `check_shape`. Raises Corrupt, naming `key`, if it is not JSON or does not have
    the `shape`.
    """
    try:
        return check_shape(json.loads(body), shape, key=key)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{key}: {body[:80]!r} is not JSON: {error}") from None


def check_shape(value: Any, shape: Any, *, key: str) -> Any:
    """Return the JSON `value` unchanged if it has the `shape`; otherwise raise Corrupt, naming `key` and the first difference.

    A shape is a type, None (null) or a text that must match; a tuple of alternatives; [shape] for a list, [shape, shape] for a
    pair; {name: shape} for an object, in which names with "?" are optional and further names are allowed; {str: shape} or {int: shape}
    for an object of any (decimal) names. The type float also allows whole numbers.
    """
    for wrong in find_misfits(value, shape):
        raise Corrupt(f"{key}: {wrong.removeprefix('.')}")
    return value


def find_misfits(value: Any, shape: Any, at: str = "") -> Iterator[str]:
    """Yield one message for each part of the JSON `value` that does not have the `shape` (see `check_shape`). `at`: path of `value`
    for the messages.
    """
    match shape:
        case tuple() if not all(any(find_misfits(value, each)) for each in shape):
            return
        case dict() if isinstance(value, dict):
            names = value if (any_name := {str, int} & shape.keys()) else shape
            for name in names:
                known = name if any_name else name.removesuffix("?")
                if int in any_name and not name.isdecimal():
                    yield f"{at}.{name}: its name is no whole number"
                elif known in value:
                    yield from find_misfits(
                        value[known], shape.get(name, shape.get(str, shape.get(int))), f"{at}.{known}"
                    )
                elif known == name:
                    yield f"{at}.{name} is not there"
        case list() if isinstance(value, list) and len(shape) in (1, len(value)):
            for n, each in enumerate(value):
                yield from find_misfits(each, shape[n % len(shape)], f"{at}[{n}]")
        case _ if value != shape and (shape is None or type(value) not in (shape, int if shape is float else shape)):
            yield f"{at or 'the whole'}: {json.dumps(value)[:60]} is not {_describe_shape(shape)}"


def _describe_shape(shape: Any) -> str:
    """Return in words what `shape` (see `check_shape`) expects, such as "a list" or "a number"."""
    match shape:
        case tuple():
            return " or ".join(map(_describe_shape, shape))
        case dict():
            return "an object"
        case list():
            return "a list" if len(shape) == 1 else f"a list of {len(shape)}"
        case str():
            return repr(shape)
    return {None: "null", str: "a text", int: "a whole number", float: "a number"}.get(shape, "true or false")
