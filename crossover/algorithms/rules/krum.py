"""Krum: those vectors that lie nearest to the others (Blanchard et al. 2017)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.rules.rule import Rule
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


def _combine(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    from crossover.algorithms import robust

    return robust.krum(vectors, faulty=settings.faulty, select=settings.select)


KRUM = Rule(
    name="krum",
    combine=_combine,
    bears=lambda settings, workers: settings.faulty,
    command="KRUM",
    by_coordinate=False,
    options=lambda settings: ["FAULTY", settings.faulty, "SELECT", settings.select],
)
