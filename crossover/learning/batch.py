"""A minibatch as one object of the object store: a header, sample ids, labels, images. Read without numpy and without a copy."""

import struct
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import Corrupt

_LAYOUT = struct.Struct(
    "<4sBB2xIIIII"
)  # magic, version, dtype, samples, channels, height, width, crc32 of what follows the header
_HEADER_BYTES = 64
_MAGIC = b"XBAT"
_DTYPES = (torch.uint8, torch.float32)


@dataclass(frozen=True, slots=True)
class Batch:
    """images (N, C, H, W) uint8 or float32 as the data set has them; labels (N,) int64; sample_ids (N,) int64, unique in the data set."""

    images: Tensor
    labels: Tensor
    sample_ids: Tensor

    @property
    def samples(self) -> int:
        return self.labels.numel()


def encode(batch: Batch) -> bytes:
    """The object's bytes. Raises ValueError where the tensors do not belong together."""
    images, labels, ids = batch.images.contiguous(), batch.labels.contiguous(), batch.sample_ids.contiguous()
    if images.ndim != 4 or images.dtype not in _DTYPES or {labels.shape, ids.shape} != {images.shape[:1]}:
        shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in (images, labels, ids))
        raise ValueError(
            f"batch: images, labels, ids of {shapes}; (N, C, H, W) uint8 or float32, (N,), (N,) is expected"
        )
    body = b"".join(buffers.view(t) for t in (ids.to(torch.int64), labels.to(torch.int64), images))
    head = _LAYOUT.pack(_MAGIC, 1, _DTYPES.index(images.dtype), *images.shape, zlib.crc32(body))
    return head.ljust(_HEADER_BYTES, b"\0") + body


def decode(buffer: bytes | bytearray | memoryview) -> Batch:
    """The minibatch in `buffer`, as tensors over its memory; they must not be written to. Raises Corrupt."""
    view = memoryview(buffer).cast("B")
    if view.nbytes < _HEADER_BYTES or view[:4] != _MAGIC:
        raise Corrupt(f"minibatch: {view.nbytes} bytes that do not start with a minibatch header")
    _, version, code, samples, channels, height, width, crc = _LAYOUT.unpack(view[: _LAYOUT.size])
    if version != 1 or code >= len(_DTYPES):
        raise Corrupt(f"minibatch: header version {version}, dtype {code}; this program reads version 1")
    dtype, body = _DTYPES[code], view[_HEADER_BYTES:]
    expected = samples * (16 + channels * height * width * dtype.itemsize)
    if body.nbytes != expected:
        raise Corrupt(f"minibatch: {body.nbytes} bytes behind the header, which promises {expected}")
    if zlib.crc32(body) != crc:
        raise Corrupt("minibatch: checksum differs: the bytes were changed on their way")
    numbers = buffers.tensor(body[: samples * 16], torch.int64)
    images = buffers.tensor(body[samples * 16 :], dtype).view(samples, channels, height, width)
    return Batch(images, numbers[samples:], numbers[:samples])
