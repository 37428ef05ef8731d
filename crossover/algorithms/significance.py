"""MLLess's significance filter: which part of what a worker has accumulated is worth telling the others.

Gimeno Sarroca and Sanchez-Artigas, "MLLess: Achieving Cost Efficiency in Serverless Machine Learning Training" (2022), and the variant by
norm of the comparison paper (2025). A worker's model is x = y + r: y is what all have been told, equal on every worker; r, the residual, is
what it has not told yet. After a local step the filter takes from r what is significant beside x and leaves the rest for later.
"""

from math import sqrt

import torch
from torch import Tensor

NOT_FINITE = "residual: contains NaN or infinite values; nothing of it can be sent"
BLOCK = 131_072  # elements: the blocks being compared stay in the cache, and calls are few


def take_local_step(
    residual: Tensor,
    velocity: Tensor | None,
    gradient: Tensor,
    model: Tensor,
    *,
    share: float,
    learning_rate: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    buffers: int = 0,
    statistics_momentum: float = 1.0,
) -> None:
    """Take one step of SGD (with Nesterov momentum if `nesterov`) and add it to the `residual`, in place: v = momentum v + share (g
    + weight_decay x); r -= learning_rate v.

    `residual` r, `gradient` g, [P gradient | B statistics], and `model` x: (P + B,); `velocity` v: (P,), changed in place, zeros
    before the first step, None without momentum. `share`: the worker's samples over all workers' samples of this step, so that the
    sum of all residuals is a step along the mean gradient. The last `buffers` elements move by share * statistics_momentum towards
    the minibatch's statistics: summed over the workers, that is BatchNorm's own rule.
    """
    count = residual.numel() - buffers
    grad = gradient[:count].mul(share)
    if weight_decay:
        grad.add_(model[:count], alpha=weight_decay * share)
    if velocity is not None:
        velocity.mul_(momentum).add_(grad)
        grad = grad.add_(velocity, alpha=momentum) if nesterov else velocity
    residual[:count].add_(grad, alpha=-learning_rate)
    if buffers:
        residual[count:].add_(gradient[count:] - model[count:], alpha=share * statistics_momentum)


def take_significant(residual: Tensor, shared: Tensor, *, threshold: float, step: int) -> tuple[Tensor, Tensor]:
    """Remove the significant elements from `residual`, by setting them to 0, and return them as (indices int64 ascending, values).

    An element is significant if |r| > threshold / sqrt(step + 1) * |y + r|, where r is `residual` and y is `shared`, the model that all
    workers know, both (D,); an r of 0 never is. `step` counts from 0. Both results are empty if no element is. Raises ValueError, and
    leaves `residual` unchanged, if it is not finite.
    """
    _check(residual, shared, threshold=threshold, step=step)
    # The sum is finite unless a term is not (or it overflows, which no residual of a training does): one cheap pass instead of a mask.
    if not residual.sum().isfinite():
        raise ValueError(NOT_FINITE)
    factor = threshold / sqrt(step + 1)
    size = min(BLOCK, residual.numel())
    bound, magnitude = torch.empty(size, dtype=residual.dtype), torch.empty(size, dtype=residual.dtype)
    mask = torch.empty(size, dtype=torch.bool)
    indices, values = [], []
    for start in range(0, residual.numel(), BLOCK):
        block = residual[start : start + BLOCK]
        x, r, significant = bound[: block.numel()], magnitude[: block.numel()], mask[: block.numel()]
        torch.add(shared[start : start + BLOCK], block, out=x).abs_().mul_(factor)
        torch.abs(block, out=r)
        # r != 0 is implied: nothing is below zero. Comparing into floats and converting is three times as fast as comparing into bool.
        significant.copy_(torch.gt(r, x, out=x))
        found = significant.nonzero().squeeze(1)
        values.append(block.index_select(0, found))
        block.index_fill_(0, found, 0.0)
        indices.append(found.add_(start))
    if not indices:
        return torch.empty(0, dtype=torch.int64), residual.new_empty(0)
    return torch.cat(indices), torch.cat(values)


def is_significant(residual: Tensor, shared: Tensor, *, threshold: float, step: int) -> bool:
    """Return whether the `residual` r as a whole is significant compared with the `shared` model y: ||r|| > threshold / sqrt(step +
    1) * ||y + r||, computed in float64. `step` counts from 0.

    Raises ValueError if the residual is not finite.
    """
    _check(residual, shared, threshold=threshold, step=step)
    own, whole = 0.0, 0.0
    for start in range(0, residual.numel(), BLOCK):
        block = residual[start : start + BLOCK].double()
        own += float(block.dot(block))
        x = block.add_(shared[start : start + BLOCK])
        whole += float(x.dot(x))
    if not own < float("inf"):
        raise ValueError(NOT_FINITE)
    return sqrt(own) > threshold / sqrt(step + 1) * sqrt(whole)


def _check(residual: Tensor, shared: Tensor, *, threshold: float, step: int) -> None:
    """Raise ValueError unless both vectors are flat and equally long, and neither `threshold` nor `step` is negative."""
    if residual.shape != shared.shape or residual.ndim != 1:
        raise ValueError(
            f"residual: shape {tuple(residual.shape)} beside a model of {tuple(shared.shape)}; flat and equal is needed"
        )
    if threshold < 0 or step < 0:
        raise ValueError(f"threshold {threshold}, step {step}: neither can be negative")
