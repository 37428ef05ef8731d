"""The geometric median by Weiszfeld's steps (Pillutla et al. 2022, "Robust Aggregation for Federated Learning"): all that a rule needs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.rules import Rule
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor

STEPS, SMALLEST = 8, 1e-12


def _combine(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    import torch

    rows = torch.stack([vector.double() for vector in vectors])
    middle = rows.mean(0)
    for _ in range(STEPS):
        weights = 1 / (rows - middle).norm(dim=1).clamp_min(SMALLEST)
        middle = (weights[:, None] * rows).sum(0) / weights.sum()
    return middle.float()


GEOMETRIC_MEDIAN = Rule(
    name="geometric_median",
    combine=_combine,
    bears=lambda settings, workers: (workers - 1) // 2,
    by_coordinate=False,
)
