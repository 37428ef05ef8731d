"""Average vectors: weighted means of all at once, and running means of one after another."""

from collections.abc import Sequence

import torch
from torch import Tensor

# --- averaging --------------------------------------------------------------------------------------------------------

_BLOCK = 65_536  # elements: the running sum stays in the processor's cache while every vector is read once


def mean(vectors: Sequence[Tensor], weights: Sequence[float], *, out: Tensor | None = None) -> Tensor:
    """Return the weighted mean of k vectors, each (D,) float32, with rounding defined so that every architecture gets the same
    bits.

    Equal weights: the vectors are summed in the given order, then divided once by float32(k). Otherwise the sum of float32(w_i) *
    g_i, product and sum rounded separately, is divided once by float32(sum of w). A vector of weight 0 is left out, a single
    remaining one is copied. `out`: (D,) float32, receives the result if given; it must not be one of `vectors`.

    Raises ValueError if there are no vectors, if lengths differ, or if weights are not one non-negative number each with a positive
    sum.
    """
    _check_weights(vectors, weights)
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


def _check_weights(vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
    """Raise ValueError unless there are vectors, all flat and of one length, with one non-negative weight each and a positive sum
    of the weights.
    """
    if not vectors:
        raise ValueError("vectors: none given; the mean needs at least one")
    if len(weights) != len(vectors):
        raise ValueError(f"weights: {len(weights)} for {len(vectors)} vectors; one each is needed")
    if min(weights) < 0 or sum(weights) <= 0:
        raise ValueError(f"weights: {list(weights)}; non-negative numbers with a positive sum are needed")
    lengths = {tuple(vector.shape) for vector in vectors}
    if len(lengths) > 1 or vectors[0].ndim != 1:
        raise ValueError(f"vectors: shapes {sorted(lengths)}; flat vectors of one length are needed")


# --- running mean -----------------------------------------------------------------------------------------------------
# The weighted mean of vectors that arrive one after another: bit for bit `mean`, with two vectors in memory instead of all.

_PIECE = 2**18  # elements multiplied at a time


class RunningMean:
    """Weighted mean of vectors that are added one after another: the same bits as `mean`, with only two vectors in memory.

    `total`, (D,): holds the weighted sum, and after `result` the mean. `added`: number of vectors added so far.
    """

    def __init__(self, weights: Sequence[float], *, total: Tensor, added: int = 0) -> None:
        """Start a mean. `weights`: of all vectors, in the order in which they will be added. `total`: (D,) memory to use. `added`:
        number of vectors whose sum `total` already holds. Raises ValueError if a weight is negative or their sum is not
        positive.
        """
        if not weights or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"weights: {list(weights)}; non-negative numbers with a positive sum are needed")
        self._weights = list(weights)
        self._counted = [weight for weight in weights if weight]  # one without weight is left out
        self._equal = len(set(self._counted)) == 1
        self.total = total
        self.added = added
        self._product: Tensor | None = None

    @classmethod
    def allocate(cls, weights: Sequence[float], *, elements: int) -> "RunningMean":
        """Return a running mean that allocates its own `total`, for vectors of `elements` elements."""
        return cls(weights, total=torch.empty(elements))

    @property
    def is_complete(self) -> bool:
        """True if all vectors have been added."""
        return self.added == len(self._weights)

    def add(self, vector: Tensor) -> None:
        """Add the next vector, (D,), in the order of the weights; no reference to it is kept. The first one with a weight overwrites
        `total`. Raises ValueError if all have been added.
        """
        if self.is_complete:
            raise ValueError(f"mean: all {self.added} vectors are in it already")
        weight, first = self._weights[self.added], not any(self._weights[: self.added])
        self.added += 1
        if not weight:
            return
        if self._equal:
            self.total.copy_(vector) if first else self.total.add_(vector)
        elif first:
            torch.mul(vector, float(weight), out=self.total)
        else:  # product and sum are rounded separately, as everywhere
            if self._product is None:
                self._product = self.total.new_empty(min(_PIECE, self.total.numel()))
            for start in range(0, self.total.numel(), _PIECE):  # a product of whole length would be a third vector
                piece = vector[start : start + _PIECE]
                product = torch.mul(piece, float(weight), out=self._product[: piece.numel()])
                self.total[start : start + _PIECE].add_(product)

    def result(self) -> Tensor:
        """Divide `total` by the weights' sum, in place, and return it: the mean. Call it once only: a second call would divide again.
        Raises ValueError if vectors are missing.
        """
        if not self.is_complete:
            raise ValueError(f"mean: {self.added} of {len(self._weights)} vectors are in it")
        if len(self._counted) > 1:  # one vector is copied
            self.total.div_(float(len(self._counted) if self._equal else sum(self._counted)))
        return self.total
