"""An update on its way: (index, value) pairs where that is the smaller form, else all values.

Sparse: uint8, a header of 16 bytes (elements uint64, pairs uint32, tail uint32, little-endian), then indices int32, values float32, and a
tail of float32 that stands for the vector's last elements in full (BatchNorm's buffers, which are never filtered). Dense: float32, all
elements.
"""

import struct

import torch
from torch import Tensor

_HEADER = struct.Struct("<QII")
HEADER_BYTES = _HEADER.size


def sparse_bytes(pairs: int, *, tail: int = 0) -> int:
    """How long the sparse form is."""
    return HEADER_BYTES + 8 * pairs + 4 * tail


def encode(indices: Tensor, values: Tensor, *, elements: int, tail: Tensor | None = None) -> Tensor:
    """The smaller of the sparse form, (bytes,) uint8, and the dense one, (elements,) float32; the sparse one where they are equal.

    `indices` (n,) ascending and below elements - len(tail), `values` (n,) float32.
    """
    rest = 0 if tail is None else tail.numel()
    if sparse_bytes(indices.numel(), tail=rest) > 4 * elements:
        dense = torch.zeros(elements, dtype=torch.float32)
        dense.index_copy_(0, indices.to(torch.int64), values)
        if tail is not None:
            dense[elements - rest :] = tail
        return dense
    head = torch.frombuffer(bytearray(_HEADER.pack(elements, indices.numel(), rest)), dtype=torch.uint8)
    parts = [head, indices.to(torch.int32).view(torch.uint8), values.contiguous().view(torch.uint8)]
    return torch.cat([*parts, tail.contiguous().view(torch.uint8)] if tail is not None else parts)


def add_to(target: Tensor, update: Tensor) -> None:
    """target += update, in place; target (D,) float32, update as `encode` made it.

    Raises ValueError, and changes nothing, where the update is of another length, was cut short, or has indices that are not ascending and
    within the vector: bytes from elsewhere are not trusted.
    """
    if update.dtype == torch.float32:
        if update.shape != target.shape:
            raise ValueError(f"update: {update.numel()} elements for a vector of {target.numel()}")
        _refuse_infinite(update)
        target.add_(update)
        return
    indices, values, tail = _parts(update, elements=target.numel())
    filtered = target.numel() - tail.numel()
    if indices.numel():
        ascending = bool((indices[1:] > indices[:-1]).all())
        if not ascending or int(indices[0]) < 0 or int(indices[-1]) >= filtered:
            raise ValueError(f"update: indices that are not ascending within 0 to {filtered - 1}")
    _refuse_infinite(values)
    _refuse_infinite(tail)
    target.index_add_(0, indices, values)
    target[filtered:].add_(tail)


def _parts(update: Tensor, *, elements: int) -> tuple[Tensor, Tensor, Tensor]:
    """indices (n,) int32, values (n,) and tail float32, as views."""
    if update.dtype != torch.uint8 or update.ndim != 1 or update.numel() < HEADER_BYTES:
        raise ValueError(
            f"update: {update.numel()} elements of {update.dtype}; bytes with a header, or float32, are expected"
        )
    promised, pairs, rest = _HEADER.unpack(bytes(update[:HEADER_BYTES].tolist()))
    if promised != elements:
        raise ValueError(f"update: made for {promised} elements, the vector has {elements}")
    if update.numel() != sparse_bytes(pairs, tail=rest) or rest > elements:
        raise ValueError(
            f"update: {update.numel()} bytes; {pairs} pairs and a tail of {rest} take {sparse_bytes(pairs, tail=rest)}"
        )
    values_at, tail_at = HEADER_BYTES + 4 * pairs, HEADER_BYTES + 8 * pairs
    return (
        update[HEADER_BYTES:values_at].view(torch.int32),
        update[values_at:tail_at].view(torch.float32),
        update[tail_at:].view(torch.float32),
    )


def _refuse_infinite(values: Tensor) -> None:
    if values.numel() and not bool(values.sum().isfinite()):
        raise ValueError("update: contains NaN or infinite values")
