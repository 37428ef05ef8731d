"""One optimizer step on flat vectors, out of place, with the rule for BatchNorm's buffers.

A model vector is [P parameters | B buffers], a gradient vector [P gradient | B minibatch statistics], all (P + B,) float32; an optimizer's
vectors are (P,). Nothing passed in is changed, so a retried update computes the same state again.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from crossover.algorithms.optimizers import OPTIMIZERS, Update

_BLOCK = 16_384  # elements: fewer than torch shares among threads


def step(model: Tensor, gradient: Tensor, state: Sequence[Tensor], update: Update) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return (new model, the optimizer's new vectors) after one optimizer step along `gradient`, [P gradient | B statistics], with
    the settings `update`. The arguments are not changed.

    `state`: the optimizer's vectors before the step, empty at the first. Raises ValueError if the shapes do not fit, or for Nesterov
    without momentum.
    """
    parameters, grad = _split(model, gradient, update.buffers)
    if update.clip is not None:
        grad = clip_gradient(grad, update.clip)
    out = torch.empty_like(model)
    moved = OPTIMIZERS[update.optimizer].move(parameters, grad, state, update, out[: parameters.numel()])
    _update_buffers(model, gradient, out, buffers=update.buffers, momentum=update.statistics_momentum)
    return out, tuple(moved)


def clip_gradient(gradient: Tensor, norm: float) -> Tensor:
    """Return `gradient` scaled down to the L2 norm `norm` if it is longer, as torch.nn.utils.clip_grad_norm_ does, but as a new tensor,
    also if it is not. The norm is computed in float64; on a processor block by block, so it does not depend on the number of threads.
    """
    if gradient.device.type == "cpu":
        total = math.sqrt(sum(float(block.double().square().sum()) for block in torch.split(gradient, _BLOCK)))
    else:  # at once: each block would be waited for
        total = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return gradient * min(1.0, norm / (total + 1e-6))


def _split(model: Tensor, gradient: Tensor, buffers: int) -> tuple[Tensor, Tensor]:
    """Return (the P parameters, their gradient) as views of the two vectors, without the last `buffers` elements. Raises ValueError
    if shapes or `buffers` do not fit.
    """
    if model.shape != gradient.shape or model.ndim != 1:
        raise ValueError(
            f"gradient: shape {tuple(gradient.shape)} for a model of shape {tuple(model.shape)}; flat and equal is needed"
        )
    if not 0 <= buffers <= model.numel():
        raise ValueError(f"buffers: {buffers} of a model vector of {model.numel()} elements")
    count = model.numel() - buffers
    return model[:count], gradient[:count]


def _update_buffers(model: Tensor, gradient: Tensor, out: Tensor, *, buffers: int, momentum: float) -> None:
    """Write the new BatchNorm statistics to the last `buffers` elements of `out`: momentum * the gradient's + (1 - momentum) * the
    model's, in float64, rounded once to float32.

    Momentum 1 copies the gradient's, so that a value that is not finite does not survive as 0 * inf.
    """
    if not buffers:
        return
    old, statistic, new = model[-buffers:], gradient[-buffers:], out[-buffers:]
    if momentum == 1.0:
        new.copy_(statistic)
    else:
        new.copy_(statistic.double().mul_(momentum).add_(old.double().mul_(1 - momentum)))
