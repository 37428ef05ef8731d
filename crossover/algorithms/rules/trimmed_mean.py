"""The mean of each coordinate without its highest and lowest values (Yin et al. 2018)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.rules.rule import Rule
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


def _combine(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    from crossover.algorithms import robust

    return robust.trimmed_mean(vectors, trim=settings.trim)


TRIMMED_MEAN = Rule(
    name="trimmed_mean",
    combine=_combine,
    bears=lambda settings, workers: settings.trim,
    command="TRIMMEDMEAN",
    options=lambda settings: ["TRIM", settings.trim],
)
