"""Adam, bit for bit torch.optim.Adam, and AdamW, whose weight decay is decoupled from the gradient (Loshchilov and Hutter 2019)."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers.optimizer import Optimizer, decayed
from crossover.algorithms.update import Update

if TYPE_CHECKING:
    from torch import Tensor

_MOMENTS = ("first_moment", "second_moment")


def _move(
    parameters: "Tensor",
    gradient: "Tensor",
    vectors: "Sequence[Tensor]",
    update: Update,
    out: "Tensor",
    *,
    decoupled: bool,
) -> "Sequence[Tensor]":
    """Both moments begin as zeros."""
    import torch

    step = update.number + 1
    if step < 1:
        raise ValueError(f"step: {step}; steps count from 1")
    out.copy_(parameters)
    if decoupled:
        for part in update.decaying(out.numel()):
            out[part].mul_(1 - update.learning_rate * update.weight_decay)
    else:
        gradient = decayed(gradient, parameters, update)
    first, second = [each.clone() for each in vectors] or [torch.zeros_like(parameters) for _ in _MOMENTS]
    first.lerp_(gradient, 1 - update.beta1)
    second.mul_(update.beta2).addcmul_(gradient, gradient, value=1 - update.beta2)
    correction = float((1 - update.beta2**step) ** 0.5)
    denominator = (second.sqrt() / correction).add_(update.epsilon)
    out.addcdiv_(first, denominator, value=-(update.learning_rate / (1 - update.beta1**step)))
    return first, second


def _options(update: Update) -> list[str | int | float]:
    return ["BETA1", update.beta1, "BETA2", update.beta2, "EPS", update.epsilon, "STEP", update.number + 1]


ADAM = Optimizer(
    name="adam",
    vectors=lambda momentum: _MOMENTS,
    move=partial(_move, decoupled=False),
    command="ADAM",
    places=2,
    options=_options,
)
ADAMW = Optimizer(
    name="adamw",
    vectors=lambda momentum: _MOMENTS,
    move=partial(_move, decoupled=True),
    command="ADAM",
    places=2,
    options=lambda update: [*_options(update), "DECOUPLED"],
)
