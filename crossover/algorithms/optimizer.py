"""One optimizer step on flat vectors, out of place: bit for bit torch.optim's single-tensor path, plus the rule for BatchNorm's buffers.

A model vector is [P parameters | B buffers], a gradient vector [P gradient | B minibatch statistics], all (P + B,) float32; velocity and
moments are (P,). Nothing passed in is changed, so a retried update computes the same state again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from crossover.algorithms.update import Update


def step(model: Tensor, gradient: Tensor, state: Sequence[Tensor], update: Update) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(model', the optimizer's vectors') after `update`; `state`: its vectors before, none at the first step."""
    if update.optimizer == "sgd":
        model, velocity = sgd_step(
            model,
            gradient,
            *state,
            learning_rate=update.learning_rate,
            momentum=update.momentum,
            nesterov=update.nesterov,
            weight_decay=update.weight_decay,
            first=update.first,
            buffers=update.buffers,
            statistics_momentum=update.statistics_momentum,
        )
        return model, () if velocity is None else (velocity,)
    model, *moments = adam_step(
        model,
        gradient,
        *state,
        step=update.number + 1,
        learning_rate=update.learning_rate,
        beta1=update.beta1,
        beta2=update.beta2,
        epsilon=update.epsilon,
        weight_decay=update.weight_decay,
        decoupled=update.optimizer == "adamw",
        buffers=update.buffers,
        statistics_momentum=update.statistics_momentum,
    )
    return model, tuple(moments)


def sgd_step(
    model: Tensor,
    gradient: Tensor,
    velocity: Tensor | None = None,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    first: bool = False,
    buffers: int = 0,
    statistics_momentum: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """(model', velocity') after one step of torch.optim.SGD and one update of the buffers.

    `first`, or no velocity: the velocity becomes the gradient (with its weight decay), as torch's does. Momentum 0 keeps no velocity:
    None goes in and comes out. Nesterov without momentum is refused by ValueError, as torch refuses it.
    """
    if nesterov and momentum == 0.0:
        raise ValueError("nesterov: needs a momentum above 0")
    parameters, step = _split(model, gradient, buffers)
    if weight_decay:
        step = step.add(parameters, alpha=weight_decay)
    new_velocity: Tensor | None = None
    if momentum:
        if first or velocity is None:
            new_velocity = step.clone()
        else:
            new_velocity = velocity.mul(momentum).add_(step, alpha=1.0)
        step = step.add(new_velocity, alpha=momentum) if nesterov else new_velocity
    out = torch.empty_like(model)
    torch.add(parameters, step, alpha=-learning_rate, out=out[: parameters.numel()])
    _update_buffers(model, gradient, out, buffers=buffers, momentum=statistics_momentum)
    return out, new_velocity


def adam_step(
    model: Tensor,
    gradient: Tensor,
    first_moment: Tensor | None = None,
    second_moment: Tensor | None = None,
    *,
    step: int,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    buffers: int = 0,
    statistics_momentum: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(model', first moment', second moment') after step number `step` (from 1) of torch.optim.Adam, or AdamW where `decoupled`.

    At step 1 the moments do not exist yet: None stands for zeros.
    """
    if step < 1:
        raise ValueError(f"step: {step}; steps count from 1")
    parameters, grad = _split(model, gradient, buffers)
    out = torch.empty_like(model)
    moved = out[: parameters.numel()].copy_(parameters)
    if decoupled and weight_decay:
        moved.mul_(1 - learning_rate * weight_decay)
    elif weight_decay:
        grad = grad.add(parameters, alpha=weight_decay)
    m = (torch.zeros_like(parameters) if first_moment is None else first_moment.clone()).lerp_(grad, 1 - beta1)
    v = (torch.zeros_like(parameters) if second_moment is None else second_moment.clone()).mul_(beta2)
    v.addcmul_(grad, grad, value=1 - beta2)
    correction = float((1 - beta2**step) ** 0.5)
    denominator = (v.sqrt() / correction).add_(epsilon)
    moved.addcdiv_(m, denominator, value=-(learning_rate / (1 - beta1**step)))
    _update_buffers(model, gradient, out, buffers=buffers, momentum=statistics_momentum)
    return out, m, v


def _split(model: Tensor, gradient: Tensor, buffers: int) -> tuple[Tensor, Tensor]:
    """The P parameters and their gradient."""
    if model.shape != gradient.shape or model.ndim != 1:
        raise ValueError(
            f"gradient: shape {tuple(gradient.shape)} for a model of shape {tuple(model.shape)}; flat and equal is needed"
        )
    if not 0 <= buffers <= model.numel():
        raise ValueError(f"buffers: {buffers} of a model vector of {model.numel()} elements")
    count = model.numel() - buffers
    return model[:count], gradient[:count]


def _update_buffers(model: Tensor, gradient: Tensor, out: Tensor, *, buffers: int, momentum: float) -> None:
    """BatchNorm's rule on the last `buffers` elements: momentum * statistic + (1 - momentum) * buffer in float64, rounded once to float32.

    Momentum 1 takes the statistic as it is, so that a buffer that is not finite does not survive as 0 * inf.
    """
    if not buffers:
        return
    old, statistic, new = model[-buffers:], gradient[-buffers:], out[-buffers:]
    if momentum == 1.0:
        new.copy_(statistic)
    else:
        new.copy_(statistic.double().mul_(momentum).add_(old.double().mul_(1 - momentum)))
