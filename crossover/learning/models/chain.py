"""Convolutions in a row that keep half of what autograd would keep for their gradients.

Between two convolutions stand BatchNorm and ReLU. Autograd keeps the first convolution's output (for BatchNorm's gradient) and the ReLU's
(for the second's); one of them is enough, because the other follows from it by a multiplication and an addition per value. Making it again
costs a twentieth of a step; MobileNet at batch 512 keeps 0.9 GB of activations instead of 1.7, and Lambda is paid by memory. The idea: Chen
et al., "Training Deep Nets with Sublinear Memory Cost" (2016); Rota Bulo et al., "In-Place Activated BatchNorm" (2018).
"""

import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crossover.learning.models.layers import ConvNorm, convolution_gradients, wide_gradient

_aten = torch.ops.aten
_own = threading.local()


class Chain(nn.Sequential):
    """ConvNorms one after the other; all but the last end with a ReLU. Numbers and names are those of nn.Sequential.

    Evaluation, GPUs and a BatchNorm without momentum take nn.Sequential's way.
    """

    def __init__(self, *units: ConvNorm) -> None:
        super().__init__(*units)
        if any(unit.activation is None or not isinstance(unit.activation, nn.ReLU) for unit in units[:-1]):
            raise ValueError("units: every ConvNorm but the last must end with a ReLU")

    def forward(self, images: Tensor) -> Tensor:
        units = cast(Sequence[ConvNorm], list(self))
        norms = [unit.norm for unit in units]
        ordinary = not torch.is_grad_enabled() or images.device.type != "cpu"
        if ordinary or not all(norm.training and norm.momentum is not None for norm in norms):
            return cast(Tensor, super().forward(images))  # type: ignore[no-untyped-call]
        scratch = _scratch()
        values: Tensor = units[0].convolution(images)
        for unit, following in pairwise(units):
            values = _norm_relu_convolution(values, unit.norm, following.convolution, scratch)
        values = units[-1].norm(values)
        return values if units[-1].activation is None else units[-1].activation(values)


class _Scratch:
    """Memory for one activation at a time, shared by a thread's chains while a graph of theirs lives.

    Between the tensors that are kept, memory that comes and goes would leave holes in the heap that fit nothing else.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def like(self, values: Tensor) -> Tensor:
        """Shape, strides and type of `values`, which must be dense; what it holds is overwritten by the next call."""
        if self._memory.numel() < values.numel() or self._memory.dtype != values.dtype:
            self._memory = torch.empty(values.numel(), dtype=values.dtype)
        return self._memory.as_strided(values.shape, values.stride())


def _scratch() -> _Scratch:
    known: weakref.ref[_Scratch] | None = getattr(_own, "scratch", None)
    found = known() if known else None
    if found is None:
        found = _Scratch()
        _own.scratch = weakref.ref(found)
    return found


def _norm_relu_convolution(values: Tensor, norm: nn.BatchNorm2d, convolution: nn.Conv2d, scratch: _Scratch) -> Tensor:
    if values.numel() == values.shape[1]:
        raise ValueError(f"expected more than 1 value per channel when training, got input size {list(values.shape)}")
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    out: Tensor = _NormReluConvolution.apply(  # type: ignore[no-untyped-call]
        values, norm.weight, norm.bias, convolution.weight, norm, convolution, scratch
    )
    return out


class _NormReluConvolution(torch.autograd.Function):
    """BatchNorm of the minibatch, ReLU, convolution. The ReLU's output lies in the scratch memory, twice for a moment."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        scale: Tensor,
        shift: Tensor,
        kernel: Tensor,
        norm: nn.BatchNorm2d,
        convolution: nn.Conv2d,
        scratch: _Scratch,
    ) -> Tensor:
        rectified, mean, deviation = _aten.native_batch_norm.out(
            values, scale, shift, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps,
            out=scratch.like(values), save_mean=torch.empty(0), save_invstd=torch.empty(0),
        )  # fmt: skip
        out = F.conv2d(rectified.relu_(), kernel, None, convolution.stride, convolution.padding, 1, convolution.groups)
        ctx.save_for_backward(values, scale, shift, kernel, mean, deviation)
        ctx.convolution, ctx.scratch, ctx.epsilon = convolution, scratch, norm.eps
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        values, scale, shift, kernel, mean, deviation = ctx.saved_tensors
        # By the statistics that were saved: one pass over the values instead of two.
        rectified, _, _ = _aten.native_batch_norm.out(
            values, scale, shift, mean, deviation.pow(-2).sub_(ctx.epsilon), False, 0.0, ctx.epsilon,
            out=ctx.scratch.like(values), save_mean=torch.empty(0), save_invstd=torch.empty(0),
        )  # fmt: skip
        gradient, of_kernel = convolution_gradients(
            gradients[0], rectified.relu_(), kernel, ctx.convolution, wide=wide_gradient(ctx.convolution, values)
        )
        _aten.threshold_backward.grad_input(gradient, rectified, 0, grad_input=gradient)
        of_values, of_scale, of_shift = _aten.native_batch_norm_backward(
            gradient, values, scale, None, None, mean, deviation, True, ctx.epsilon, [True, True, True]
        )
        return of_values, of_scale, of_shift, of_kernel, None, None, None
