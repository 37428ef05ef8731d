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
_SAMPLE = 16_384  # magnitudes that tell how large the largest are, about


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


def pairs(indices: Tensor, values: Tensor, *, elements: int) -> Tensor:
    """The sparse form, (bytes,) uint8, also where the dense one were smaller: its length follows from the number of pairs."""
    head = torch.frombuffer(bytearray(_HEADER.pack(elements, indices.numel(), 0)), dtype=torch.uint8)
    return torch.cat([head, indices.to(torch.int32).view(torch.uint8), values.contiguous().view(torch.uint8)])


def largest(values: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest magnitudes of (D,) finite values, int64 ascending; of equal ones those that come first."""
    magnitudes, elements = values.abs(), values.numel()
    among = torch.arange(elements)
    if elements > _SAMPLE and 4 * count < elements:
        # Twice as many as needed lie beyond what a sample suggests: the search that sorts is spared the rest.
        sample = magnitudes[:: elements // _SAMPLE]
        rank = max(1, sample.numel() - sample.numel() * 2 * count // elements - 8)
        beyond = (magnitudes >= sample.kthvalue(rank).values).nonzero().squeeze(1)
        if beyond.numel() >= count:
            among, magnitudes = beyond, magnitudes[beyond]
    if count >= among.numel():
        return among
    least = magnitudes.kthvalue(magnitudes.numel() - count + 1).values
    chosen = magnitudes > least
    equal = (magnitudes == least).nonzero().squeeze(1)
    chosen[equal[: count - int(chosen.sum())]] = True
    return among[chosen]


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
    if bool(values.sum().isfinite()):
        return  # at once; a sum of finite values may be infinite all the same
    if not bool(values.isfinite().all()):
        raise ValueError("update: contains NaN or infinite values")
