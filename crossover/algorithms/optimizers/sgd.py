"""Stochastic gradient descent with momentum, bit for bit torch.optim.SGD."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers.optimizer import Optimizer, decayed
from crossover.algorithms.update import Update

if TYPE_CHECKING:
    from torch import Tensor


def _move(
    parameters: "Tensor", gradient: "Tensor", vectors: "Sequence[Tensor]", update: Update, out: "Tensor"
) -> "Sequence[Tensor]":
    """The first velocity is the gradient (with its weight decay), as torch's is. Nesterov without momentum is refused by ValueError, as
    torch refuses it.
    """
    import torch

    if update.nesterov and update.momentum == 0.0:
        raise ValueError("nesterov: needs a momentum above 0")
    step = decayed(gradient, parameters, update)
    if not update.momentum:
        torch.add(parameters, step, alpha=-update.learning_rate, out=out)
        return ()
    if update.first or not vectors:
        velocity = step.clone()
    else:
        velocity = vectors[0].mul(update.momentum).add_(step, alpha=1.0)
    step = step.add(velocity, alpha=update.momentum) if update.nesterov else velocity
    torch.add(parameters, step, alpha=-update.learning_rate, out=out)
    return (velocity,)


SGD = Optimizer(
    name="sgd",
    vectors=lambda momentum: ("velocity",) if momentum else (),
    kind="velocity",
    move=_move,
    command="SGD",
    places=1,
    options=lambda update: ["MOMENTUM", update.momentum, *(["NESTEROV"] if update.nesterov else [])],
)
