"""The median of each coordinate (Yin et al. 2018)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.rules.rule import Rule
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


def _combine(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    from crossover.algorithms import robust

    return robust.median(vectors)


MEDIAN = Rule(
    name="median",
    combine=_combine,
    bears=lambda settings, workers: (workers - 1) // 2,
    command="MEDIAN",
)
