"""The weighted mean of flat vectors, bit for bit the one that the tensor database computes."""

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 65_536  # elements: the running sum stays in the processor's cache while every vector is read once


def mean(vectors: Sequence[Tensor], weights: Sequence[float], *, out: Tensor | None = None) -> Tensor:
    """The mean of k vectors of (D,) float32, weighted by sample counts.

    Equal weights: the vectors are summed in the given order, then divided once by float32(k). Otherwise the sum of float32(w_i) * g_i,
    product and sum rounded separately, is divided once by float32(sum of w). One vector: copied. One without weight is left out. Every
    architecture uses this order, so all end with the same bits. `out`, (D,) float32, receives the result where given; it must be none of
    `vectors`.

    Raises ValueError on no vectors, unequal lengths, or weights that are not one non-negative number each with a positive sum.
    """
    _check(vectors, weights)
    result = torch.empty_like(vectors[0]) if out is None else out
    vectors = [vector for vector, weight in zip(vectors, weights, strict=True) if weight]
    weights = [weight for weight in weights if weight]
    if len(vectors) == 1:
        return result.copy_(vectors[0])
    equal = all(weight == weights[0] for weight in weights)
    for start in range(0, result.numel(), _BLOCK):
        parts = [vector[start : start + _BLOCK] for vector in vectors]
        block = result[start : start + _BLOCK]
        if equal:
            torch.add(parts[0], parts[1], out=block)
            for part in parts[2:]:
                block.add_(part)
            block.div_(float(len(vectors)))
        else:
            torch.mul(parts[0], float(weights[0]), out=block)
            product = torch.empty_like(block)
            for part, weight in zip(parts[1:], weights[1:], strict=True):
                block.add_(torch.mul(part, float(weight), out=product))
            block.div_(float(sum(weights)))
    return result


def _check(vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
    if not vectors:
        raise ValueError("vectors: none given; the mean needs at least one")
    if len(weights) != len(vectors):
        raise ValueError(f"weights: {len(weights)} for {len(vectors)} vectors; one each is needed")
    if min(weights) < 0 or sum(weights) <= 0:
        raise ValueError(f"weights: {list(weights)}; non-negative numbers with a positive sum are needed")
    lengths = {tuple(vector.shape) for vector in vectors}
    if len(lengths) > 1 or vectors[0].ndim != 1:
        raise ValueError(f"vectors: shapes {sorted(lengths)}; flat vectors of one length are needed")
