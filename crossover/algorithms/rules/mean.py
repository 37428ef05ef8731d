"""The mean, weighted by samples."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.rules.rule import Rule
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


def _combine(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    from crossover.algorithms import averaging

    return averaging.mean(vectors, samples)


MEAN = Rule(
    name="mean",
    combine=_combine,
    bears=lambda settings, workers: 0,
    command="MEAN",
)
