"""The weighted mean of vectors that arrive one after another: bit for bit `averaging.mean`, with two vectors in memory instead of all."""

from collections.abc import Sequence

import torch
from torch import Tensor

_PIECE = 2**18  # elements multiplied at a time


class RunningMean:
    """The mean of len(weights) flat vectors, given in the order of their weights; the weights must be known beforehand.

    `total`, (D,): receives the sum, then the mean; it is what a checkpoint keeps of a mean that is not complete.
    `added`: how many are in it.
    """

    def __init__(self, weights: Sequence[float], *, total: Tensor, added: int = 0) -> None:
        if not weights or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"weights: {list(weights)}; non-negative numbers with a positive sum are needed")
        self._weights = list(weights)
        self._counted = [weight for weight in weights if weight]  # one without weight is left out
        self._equal = len(set(self._counted)) == 1
        self.total = total
        self.added = added
        self._product: Tensor | None = None

    @classmethod
    def of(cls, weights: Sequence[float], *, elements: int) -> "RunningMean":
        """With memory of its own, for vectors of so many elements."""
        return cls(weights, total=torch.empty(elements))

    @property
    def complete(self) -> bool:
        return self.added == len(self._weights)

    def add(self, vector: Tensor) -> None:
        """The next vector, (D,). What is added is not kept."""
        if self.complete:
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
        """The mean, in `total`; once, when complete."""
        if not self.complete:
            raise ValueError(f"mean: {self.added} of {len(self._weights)} vectors are in it")
        if len(self._counted) > 1:  # one vector is copied
            self.total.div_(float(len(self._counted) if self._equal else sum(self._counted)))
        return self.total
