"""Lion: the sign of a momentum (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): all that an optimizer needs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers import Optimizer, Update

if TYPE_CHECKING:
    from torch import Tensor

BETAS = (0.9, 0.99)


def _move(
    parameters: "Tensor", gradient: "Tensor", vectors: "Sequence[Tensor]", update: Update, out: "Tensor"
) -> "Sequence[Tensor]":
    import torch

    momentum = vectors[0] if vectors else torch.zeros_like(parameters)
    out.copy_(parameters).mul_(1 - update.learning_rate * update.weight_decay)
    out.add_(momentum.lerp(gradient, 1 - BETAS[0]).sign_(), alpha=-update.learning_rate)
    return (momentum.lerp(gradient, 1 - BETAS[1]),)


LION = Optimizer(name="lion", vectors=lambda momentum: ("first_moment",), move=_move)
