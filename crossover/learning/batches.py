"""Minibatches and tensors as bytes, for stores; and images as affine numbers."""

import hashlib
import json
import mmap
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import Corrupt

# --- batch ------------------------------------------------------------------------------------------------------------

# magic, version, dtypes of inputs and labels, a blank, samples, three dimensions of an input, crc32 of what follows the
# header, three more dimensions of an input, six of a label. A dimension of 0 is not there.
_LAYOUT = struct.Struct("<4sBBBxI3II3I6I")
_MAGIC = b"XBAT"
_MOST_DIMENSIONS = 6  # of one input, or of one label
_WHOLE = 8  # bytes; each part begins at a multiple of them, the width of the widest number
_OTHERS = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.bool)
INPUTS = (torch.uint8, torch.float32, torch.int64, *_OTHERS)
LABELS = (torch.int64, torch.float32, torch.uint8, *_OTHERS)


@dataclass(frozen=True, slots=True)
class Batch:
    """Minibatch of N samples: inputs (N, ...) of a dtype in INPUTS, labels (N, ...) of a dtype in LABELS, and sample_ids (N,)
    int64, unique in the data set.

    `answers`: number of its labels that the loss counts, by which the run weights it; None if unknown.
    """

    inputs: Tensor
    labels: Tensor
    sample_ids: Tensor
    answers: int | None = None

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.labels.shape[0]


def find_batch_problem(inputs: Tensor, labels: Tensor) -> str:
    """Return in words why these inputs and labels cannot be staged as samples (dtype, dimensions or numbers of rows); "" if they can."""
    for name, part, dtypes in (("inputs", inputs, INPUTS), ("labels", labels, LABELS)):
        if part.dtype not in dtypes:
            return f"{name} are {part.dtype}; one of {', '.join(str(each) for each in dtypes)} is expected"
        if not 1 <= part.ndim <= 1 + _MOST_DIMENSIONS or 0 in part.shape[1:]:
            return (
                f"{name} have the shape {tuple(part.shape)}; one row for each sample is expected, of 1 to 7 dimensions"
            )
    if inputs.shape[0] != labels.shape[0]:
        return f"there are {inputs.shape[0]} inputs and {labels.shape[0]} labels; one label for each input is expected"
    return ""


def encode_batch(batch: Batch) -> bytes:
    """Return the minibatch as bytes: header with checksum, then ids, labels and inputs. `answers` is left out. Raises ValueError if
    its tensors do not fit together.
    """
    inputs, labels, ids = (part.contiguous() for part in (batch.inputs, batch.labels, batch.sample_ids))
    wrong = find_batch_problem(inputs, labels)
    if wrong or ids.shape != labels.shape[:1]:
        raise ValueError(f"batch: {wrong or f'{tuple(ids.shape)} sample ids for {labels.shape[0]} samples'}")
    body = b"".join(
        (
            buffers.view(ids.to(torch.int64)),
            buffers.view(labels),
            bytes(-labels.numel() * labels.element_size() % _WHOLE),
            buffers.view(inputs),
        )
    )
    head = _Head(INPUTS.index(inputs.dtype), LABELS.index(labels.dtype), tuple(inputs.shape), tuple(labels.shape))
    return head.pack_header(head.checksum(body)) + body


def decode_batch(buffer: bytes | bytearray | memoryview, *, key: str = "minibatch") -> Batch:
    """Return the minibatch in `buffer`, bytes from `encode_batch`. Its `answers` is None. Its tensors are views of `buffer` and must not be
    written to. `key`: name for errors. Raises Corrupt if the bytes are invalid.
    """
    view = memoryview(buffer).cast("B")
    if view.nbytes < _LAYOUT.size or view[:4] != _MAGIC:
        raise Corrupt(f"{key}: {view.nbytes} bytes that do not start with a minibatch header")
    _, version, kind, label_kind, samples, *rest = _LAYOUT.unpack(view[: _LAYOUT.size])
    if version != 1 or kind >= len(INPUTS) or label_kind >= len(LABELS):
        raise Corrupt(f"{key}: header version {version}, dtypes {kind}, {label_kind}; this program reads version 1")
    head = _Head(
        kind, label_kind, _read_shape(samples, [*rest[:3], *rest[4:7]], key), _read_shape(samples, rest[7:], key)
    )
    ids, labels = 8 * samples, prod(head.labels) * LABELS[label_kind].itemsize
    start, body = ids + labels + -labels % _WHOLE, view[_LAYOUT.size :]
    expected = start + prod(head.inputs) * INPUTS[kind].itemsize
    if body.nbytes != expected:
        raise Corrupt(f"{key}: {body.nbytes} bytes behind the header, which promises {expected}")
    if head.checksum(body) != rest[3]:
        raise Corrupt(f"{key}: checksum differs: the bytes were changed on their way")
    return Batch(
        buffers.tensor(body[start:], INPUTS[kind]).view(head.inputs),
        buffers.tensor(body[ids : ids + labels], LABELS[label_kind]).view(head.labels),
        buffers.tensor(body[:ids], torch.int64),
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """Content of a minibatch's header: `kind` and `label_kind`, the positions of the dtypes in INPUTS and LABELS, and the shapes of
    inputs and labels.
    """

    kind: int
    label_kind: int
    inputs: tuple[int, ...]
    labels: tuple[int, ...]

    def pack_header(self, checksum: int) -> bytes:
        """Return the header as bytes that contain `checksum`."""
        inputs, labels = (
            [*shape[1:], *[0] * (_MOST_DIMENSIONS + 1 - len(shape))] for shape in (self.inputs, self.labels)
        )
        codes = self.kind, self.label_kind
        return _LAYOUT.pack(_MAGIC, 1, *codes, self.inputs[0], *inputs[:3], checksum, *inputs[3:], *labels)

    def checksum(self, body: bytes | memoryview) -> int:
        """Return the CRC-32 of the body. It includes the header too, unless a changed header is noticed by the body's length alone.

        That is so for images with one class each: no header that differs in one byte describes a body of the same length.
        """
        if self.kind < 2 and self.label_kind == 0 and len(self.inputs) == 4 and len(self.labels) == 1:
            return zlib.crc32(body)
        return zlib.crc32(body, zlib.crc32(self.pack_header(0)))


def _read_shape(samples: int, dimensions: Sequence[int], key: str) -> tuple[int, ...]:
    """Return the shape `samples` x `dimensions`, without the zeros that mark unused dimensions. Raises Corrupt, naming `key`, if a
    zero is not at the end.
    """
    there = [each for each in dimensions if each]
    if list(dimensions[: len(there)]) != there:
        raise Corrupt(f"{key}: a header with the dimensions {list(dimensions)}")
    return (samples, *there)


# --- tensor file ------------------------------------------------------------------------------------------------------
# Tensors by name as one safetensors file, which any safetensors library reads: 8 bytes of length, JSON, then the tensors.

_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def find_tensors_problem(tensors: Mapping[str, Any]) -> str:
    """Return in words which value is no dense tensor of a dtype that a safetensors file can hold; "" if all are."""
    for name, value in tensors.items():
        kind = value.dtype if isinstance(value, Tensor) and value.layout == torch.strided else type(value).__name__
        if kind not in _KINDS:
            return f"{name} is {kind}, which has no place in model.safetensors"
    return ""


def encode_tensors(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """Return the tensors, by name, as the bytes of a safetensors file. `about`: the file's metadata. The tensors must be in CPU memory and
    pass `find_tensors_problem`.
    """
    names: dict[str, Any] = {"__metadata__": about}
    blocks, offset = [], 0
    for name, value in tensors.items():
        block = buffers.view(value.detach().contiguous())
        names[name] = {
            "dtype": _KINDS[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + block.nbytes],
        }
        blocks.append(block)
        offset += block.nbytes
    head = json.dumps(names).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *blocks])


def decode_tensors(body: bytes | mmap.mmap) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return (tensors by name, metadata, {} if there is none) of the safetensors file `body`. The tensors are views of its memory and must
    not be written to. Raises Corrupt if it is invalid.
    """
    view, kinds = memoryview(body), {kind: dtype for dtype, kind in _KINDS.items()}
    start = 8 + int.from_bytes(view[:8], "little")
    try:
        names = json.loads(bytes(view[8:start]))
        about = names.pop("__metadata__", {})  # which others leave out
        tensors = {}
        for name, each in names.items():
            first, end = each["data_offsets"]
            tensors[name] = buffers.tensor(view[start + first : start + end], kinds[each["dtype"]]).view(each["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise Corrupt(f"tensor file: {len(body)} bytes that are none: {error}") from error
    return tensors, about


def compute_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of all names and values, in the order of `tensors` and without shapes and dtypes, as hexadecimal text; "" if there
    are no tensors.
    """
    found = hashlib.sha256()
    for name, value in tensors.items():
        found.update(name.encode())
        found.update(buffers.view(value.detach().contiguous()))
    return found.hexdigest() if tensors else ""
