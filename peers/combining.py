"""AverageGradients: the peers' gradients as one, by the rule of the YAML; the mean in the order of ranks, two vectors in memory."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from crossover.algorithms import robust
from crossover.algorithms.running_mean import RunningMean
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


def combine(gradients: "Iterable[Tensor]", samples: Sequence[int], *, rule: Aggregation, out: "Tensor") -> None:
    """`out` from all peers' gradients by rank. For the mean, one may be overwritten once the next is asked for."""
    if rule.rule == "mean":
        mean = RunningMean(samples, total=out)
        for gradient in gradients:
            mean.add(gradient)
            del gradient  # before the next one comes
        mean.result()
        return
    held = [gradient.clone() for gradient in gradients]
    match rule.rule:
        case "median":
            out.copy_(robust.median(held))
        case "trimmed_mean":
            out.copy_(robust.trimmed_mean(held, trim=rule.trim))
        case "krum":
            out.copy_(robust.krum(held, faulty=rule.faulty, select=rule.select))
