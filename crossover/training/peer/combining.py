"""AverageGradients: the peers' gradients as one, by the rule of the YAML; the mean in the order of ranks, two vectors in memory."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from crossover.algorithms.aggregation import combined
from crossover.context import Context
from crossover.training import agreement
from crossover.training.calendar import round_samples

if TYPE_CHECKING:
    from torch import Tensor


def combine(ctx: Context, gradients: "Iterable[Tensor]", *, round: int, out: "Tensor") -> None:
    """`out` from all peers' gradients by rank. For the mean, one may be overwritten once the next is asked for."""
    samples, rule = round_samples(ctx.facts, round), ctx.experiment.aggregation
    names = [f"round {round}: the gradient of peer {peer}" for peer in range(len(samples))]
    combined(gradients, samples, rule, names=names, agree=agreement.dropping(ctx, round), out=out)
