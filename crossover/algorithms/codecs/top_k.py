"""The coordinates that are largest by magnitude, as (index, value) pairs: crossover/algorithms/sparse.py.

Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017). Of equal magnitudes the one that comes first is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from crossover.algorithms.codecs.codec import Codec
from crossover.errors import Corrupt, Refused

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Largest(Codec):
    """The largest `share` of the elements."""

    share: float
    name = "top_k"
    feeds_back = True
    sparse = True
    only_mean = "most of each is zero"

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        import torch

        from crossover.algorithms import sparse
        from crossover.algorithms.aggregation import finite

        if not finite(values):
            raise Refused("top_k: the gradient has values that are not finite")
        indices = sparse.largest(values, self.count(values.numel()))
        bodies = []
        for part in parts:
            begin, end, _ = part.indices(values.numel())
            first, last = torch.searchsorted(indices, torch.tensor([begin, end])).tolist()
            bodies.append(sparse.pairs(indices[first:last] - begin, values[indices[first:last]], elements=end - begin))
        return bodies

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        from crossover.algorithms import buffers, sparse

        out.zero_()
        try:
            sparse.add_to(out, buffers.octets(data))
        except ValueError as error:
            raise Corrupt(f"{what}: {error}") from error

    def nbytes(self, parameters: int) -> int:
        from crossover.algorithms import sparse

        return sparse.sparse_bytes(self.count(parameters))

    def count(self, parameters: int) -> int:
        """How many of P are sent."""
        return min(parameters, ceil(self.share * parameters))
