"""A minibatch as one object of the object store: a header, sample ids, labels, inputs. Read without numpy and without a copy."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import Corrupt

# magic, version, dtypes of inputs and labels, a blank, samples, three dimensions of an input, crc32 of what follows the
# header, three more dimensions of an input, six of a label. A dimension of 0 is not there.
_LAYOUT = struct.Struct("<4sBBBxI3II3I6I")
_MAGIC = b"XBAT"
_MOST_DIMENSIONS = 6  # of one input, or of one label
_WHOLE = 8  # each part begins at a multiple of so many bytes: the widest number's
_OTHERS = (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.bool)
INPUTS = (torch.uint8, torch.float32, torch.int64, *_OTHERS)
LABELS = (torch.int64, torch.float32, torch.uint8, *_OTHERS)


@dataclass(frozen=True, slots=True)
class Batch:
    """inputs (N, ...) of a dtype in INPUTS as the data set has them, labels (N, ...) of one in LABELS; sample_ids (N,) int64, unique in the
    data set. `answers`: what the run weighs it by, how many answers its loss counts; None where nobody has said so.
    """

    inputs: Tensor
    labels: Tensor
    sample_ids: Tensor
    answers: int | None = None

    @property
    def samples(self) -> int:
        return self.labels.shape[0]


def problem(inputs: Tensor, labels: Tensor) -> str:
    """Why these cannot be staged as samples and what is known of each, in words; empty where they can."""
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


def encode(batch: Batch) -> bytes:
    """The object's bytes. Raises ValueError where the tensors do not belong together."""
    inputs, labels, ids = (part.contiguous() for part in (batch.inputs, batch.labels, batch.sample_ids))
    wrong = problem(inputs, labels)
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
    return head.packed(head.checksum(body)) + body


def decode(buffer: bytes | bytearray | memoryview, *, key: str = "minibatch") -> Batch:
    """The minibatch in `buffer`, as tensors over its memory; they must not be written to. Raises Corrupt, naming `key`."""
    view = memoryview(buffer).cast("B")
    if view.nbytes < _LAYOUT.size or view[:4] != _MAGIC:
        raise Corrupt(f"{key}: {view.nbytes} bytes that do not start with a minibatch header")
    _, version, kind, label_kind, samples, *rest = _LAYOUT.unpack(view[: _LAYOUT.size])
    if version != 1 or kind >= len(INPUTS) or label_kind >= len(LABELS):
        raise Corrupt(f"{key}: header version {version}, dtypes {kind}, {label_kind}; this program reads version 1")
    head = _Head(kind, label_kind, _shape(samples, [*rest[:3], *rest[4:7]], key), _shape(samples, rest[7:], key))
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
    """What the header says: the places of the dtypes in INPUTS and LABELS, and both shapes."""

    kind: int
    label_kind: int
    inputs: tuple[int, ...]
    labels: tuple[int, ...]

    def packed(self, checksum: int) -> bytes:
        inputs, labels = (
            [*shape[1:], *[0] * (_MOST_DIMENSIONS + 1 - len(shape))] for shape in (self.inputs, self.labels)
        )
        codes = self.kind, self.label_kind
        return _LAYOUT.pack(_MAGIC, 1, *codes, self.inputs[0], *inputs[:3], checksum, *inputs[3:], *labels)

    def checksum(self, body: bytes | memoryview) -> int:
        """Of the body; where the body's length could not tell a changed header, of the header as well. Of images and their classes it can:
        no other header of one byte's difference promises the same length.
        """
        if self.kind < 2 and self.label_kind == 0 and len(self.inputs) == 4 and len(self.labels) == 1:
            return zlib.crc32(body)
        return zlib.crc32(body, zlib.crc32(self.packed(0)))


def _shape(samples: int, dimensions: Sequence[int], key: str) -> tuple[int, ...]:
    """Raises Corrupt where one is missing in the middle."""
    there = [each for each in dimensions if each]
    if list(dimensions[: len(there)]) != there:
        raise Corrupt(f"{key}: a header with the dimensions {list(dimensions)}")
    return (samples, *there)
