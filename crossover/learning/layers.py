"""Layers that the models share, and chains of layers that free memory as they go."""

import threading
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --- layers -----------------------------------------------------------------------------------------------------------

Activation = Callable[[], nn.Module]


def relu() -> nn.Module:
    """Return an in-place ReLU."""
    return nn.ReLU(inplace=True)


class ConvNorm(nn.Sequential):
    """Layer of a convolution without bias, a BatchNorm and an activation (None: no activation). At stride 1 the image size stays."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        activation: Activation | None = relu,
        epsilon: float = 1e-5,
    ) -> None:
        """Build the layer. `inputs`, `outputs`: numbers of channels; `kernel`: side of the square kernel, odd; `epsilon`: of the
        BatchNorm.
        """
        kind = DepthwiseConv2d if groups == inputs and groups > 1 else nn.Conv2d
        convolution = kind(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        layers: list[nn.Module] = [convolution, nn.BatchNorm2d(outputs, eps=epsilon)]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)

    @property
    def convolution(self) -> nn.Conv2d:
        """The convolution layer."""
        return cast(nn.Conv2d, self[0])

    @property
    def norm(self) -> nn.BatchNorm2d:
        """The BatchNorm layer."""
        return cast(nn.BatchNorm2d, self[1])

    @property
    def activation(self) -> nn.Module | None:
        """The activation layer, or None."""
        return self[2] if len(self) == 3 else None


class DepthwiseConv2d(nn.Conv2d):
    """Depthwise convolution whose bf16 gradients are computed in float32 if that is faster.

    Measured on a processor with AVX512-BF16, oneDNN 3.12, one thread, batch 512: at stride 2 the bf16 gradient of the
    input takes 280 ms where float32 takes 2 to 13 ms, at 2x2 positions that of the weight 85 ms against 20 ms.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of `input`. Under bf16 autocast on a CPU, its gradients are computed in float32 if that is faster."""
        if input.device.type == "cpu" and torch.is_autocast_enabled("cpu") and needs_float32_gradient(self, input):
            out: Tensor = _Float32Gradient.apply(input, self.weight, self)  # type: ignore[no-untyped-call]
            return out
        return super().forward(input)


def needs_float32_gradient(convolution: nn.Conv2d, images: Tensor) -> bool:
    """Return whether the gradients of `convolution` at `images` are faster in float32 even if the rest is bf16: only for depthwise
    ones with a stride above 1 or images at most 2 pixels wide.
    """
    slow = convolution.stride != (1, 1) or images.shape[-1] <= 2
    return slow and isinstance(convolution, DepthwiseConv2d)


def compute_gradients(
    out: Tensor, images: Tensor, kernel: Tensor, convolution: nn.Conv2d, *, wide: bool
) -> tuple[Tensor, Tensor]:
    """Return (gradient with respect to `images`, gradient with respect to `kernel`) of a convolution, each in that tensor's dtype.

    `out`: gradient with respect to the convolution's output; `convolution`: layer that gives stride, padding and groups; `wide`:
    compute in float32 instead of the images' dtype.
    """
    dtype = torch.float32 if wide else images.dtype
    channels_last = images.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    inputs, weights, _ = torch.ops.aten.convolution_backward(
        out.to(dtype, memory_format=layout), images.to(dtype, memory_format=layout), kernel.to(dtype), None,
        list(convolution.stride), list(cast(tuple[int, int], convolution.padding)), [1, 1], False, [0, 0],
        convolution.groups, [True, True, False],
    )  # fmt: skip
    return inputs.to(images.dtype), weights.to(kernel.dtype)


class _Float32Gradient(torch.autograd.Function):
    """Autograd function for conv2d with a forward pass in bf16 and gradients in float32."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, convolution: nn.Conv2d) -> Tensor:
        """Return the `convolution` of `images` with `weight` in bf16, and save in `ctx` the tensors for their gradients."""
        low = images.to(torch.bfloat16)
        ctx.save_for_backward(low, weight)
        ctx.convolution, ctx.dtype = convolution, images.dtype
        kernel = weight.to(torch.bfloat16)
        return F.conv2d(low, kernel, None, convolution.stride, convolution.padding, 1, convolution.groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients with respect to images and weight, computed in float32, and None for the layer."""
        images, weight = ctx.saved_tensors
        inputs, weights = compute_gradients(gradients[0], images, weight, ctx.convolution, wide=True)
        return inputs.to(ctx.dtype), weights, None


class Dropout(nn.Module):
    """Dropout layer that draws from its own `generator`, which the learner sets before each minibatch, instead of torch's global
    one. `share`: probability that a value is set to 0.
    """

    def __init__(self, share: float) -> None:
        """Build the layer. `share`: probability that a value is set to 0."""
        super().__init__()
        self.share = share
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Return the values, each set to 0 with probability `share`, and the others divided by 1 - `share`. In evaluation mode the
        values are unchanged.
        """
        if not self.training:
            return values
        kept = torch.empty_like(values, dtype=torch.float32).bernoulli_(1 - self.share, generator=self.generator)
        return values * kept.div_(1 - self.share).to(values.dtype)


def pad_to_size(images: Tensor, size: int) -> Tensor:
    """Return the images (N, C, H, W) padded with zeros on all sides so that height and width are at least `size`; the same tensor, not a
    copy, if they are.
    """
    height, width = max(size - images.shape[2], 0), max(size - images.shape[3], 0)
    if not height and not width:
        return images
    return F.pad(images, (width // 2, width - width // 2, height // 2, height - height // 2))


def initialise(model: nn.Module) -> nn.Module:
    """Set the initial weights of `model` and return it: He's normal for convolutions (by fan-out), N(0, 0.01) for linear layers,
    biases zero.

    A model on the meta device is returned unchanged: it has no memory to fill.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return model
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


# --- chain ------------------------------------------------------------------------------------------------------------
# Convolutions in a row that keep half of what autograd would keep for their gradients.
#
# Between two convolutions come BatchNorm and ReLU. Autograd keeps the first convolution's output (for BatchNorm's gradient) and the
# ReLU's (for the second's); one of them is enough, because the other follows from it by a multiplication and an addition per value. Making
# it again costs a twentieth of a step; MobileNet at batch 512 keeps 0.9 GB of activations instead of 1.7, and Lambda is paid by memory.
# The idea: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016); Rota Bulo et al., "In-Place Activated BatchNorm" (2018).

_aten = torch.ops.aten
_own = threading.local()


class Chain(nn.Sequential):
    """Sequence of ConvNorms that keeps half as much memory for gradients as nn.Sequential would. All units but the last must end
    with a ReLU.

    In evaluation, on GPUs and with a BatchNorm without momentum it computes as nn.Sequential does.
    """

    def __init__(self, *units: ConvNorm) -> None:
        """Build the sequence. Raises ValueError if a unit before the last does not end with a ReLU."""
        super().__init__(*units)
        if any(unit.activation is None or not isinstance(unit.activation, nn.ReLU) for unit in units[:-1]):
            raise ValueError("units: every ConvNorm but the last must end with a ReLU")

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of all layers in sequence. Raises ValueError if a BatchNorm in training receives one value per channel."""
        units = cast(Sequence[ConvNorm], list(self))
        norms = [unit.norm for unit in units]
        ordinary = not torch.is_grad_enabled() or images.device.type != "cpu"
        if ordinary or not all(norm.training and norm.momentum is not None for norm in norms):
            return cast(Tensor, super().forward(images))  # type: ignore[no-untyped-call]
        scratch = _get_scratch()
        values: Tensor = units[0].convolution(images)
        for unit, following in pairwise(units):
            values = _apply_norm_relu_convolution(values, unit.norm, following.convolution, scratch)
        values = units[-1].norm(values)
        return values if units[-1].activation is None else units[-1].activation(values)


class _Scratch:
    """Memory for one activation at a time, which all chains of a thread share, so that large blocks do not fragment the heap."""

    def __init__(self) -> None:
        """Start without memory; it is allocated when it is first borrowed."""
        self._memory = torch.empty(0)

    def borrow_like(self, values: Tensor) -> Tensor:
        """Return uninitialised memory with the shape, strides and dtype of `values`, which must be dense. The next call returns the
        same memory again.
        """
        if self._memory.numel() < values.numel() or self._memory.dtype != values.dtype:
            self._memory = torch.empty(values.numel(), dtype=values.dtype)
        return self._memory.as_strided(values.shape, values.stride())


def _get_scratch() -> _Scratch:
    """Return the calling thread's scratch memory. It lives as long as an autograd graph or a caller holds it; after that the next call
    makes a new one.
    """
    known: weakref.ref[_Scratch] | None = getattr(_own, "scratch", None)
    found = known() if known else None
    if found is None:
        found = _Scratch()
        _own.scratch = weakref.ref(found)
    return found


def _apply_norm_relu_convolution(
    values: Tensor, norm: nn.BatchNorm2d, convolution: nn.Conv2d, scratch: _Scratch
) -> Tensor:
    """Return `convolution` applied to the ReLU of `norm`, in training mode, of `values`; updates the running statistics of `norm` and its
    count of batches. `scratch`: memory for the ReLU's output. Raises ValueError if a channel has a single value.
    """
    if values.numel() == values.shape[1]:
        raise ValueError(f"expected more than 1 value per channel when training, got input size {list(values.shape)}")
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    out: Tensor = _NormReluConvolution.apply(  # type: ignore[no-untyped-call]
        values, norm.weight, norm.bias, convolution.weight, norm, convolution, scratch
    )
    return out


class _NormReluConvolution(torch.autograd.Function):
    """Autograd function of BatchNorm in training mode, ReLU and convolution, on the CPU. The ReLU's output is not kept, but computed again
    in the backward pass.
    """

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
        """Return the `convolution` (with `kernel`) of the ReLU of the batch norm (`norm`, with `scale` and `shift`) of `values`, and update
        the running statistics of `norm`; the caller counts its batches.

        `values`: dense, (N, C, H, W), on the CPU; `norm`: must have a momentum; `convolution`: its bias and dilation are not applied. The
        tensors for the gradients are saved in `ctx`; the ReLU's output is not, it is in `scratch` only until the next call.
        """
        rectified, mean, deviation = _aten.native_batch_norm.out(
            values, scale, shift, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps,
            out=scratch.borrow_like(values), save_mean=torch.empty(0), save_invstd=torch.empty(0),
        )  # fmt: skip
        out = F.conv2d(rectified.relu_(), kernel, None, convolution.stride, convolution.padding, 1, convolution.groups)
        ctx.save_for_backward(values, scale, shift, kernel, mean, deviation)
        ctx.convolution, ctx.scratch, ctx.epsilon = convolution, scratch, norm.eps
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients with respect to values, scale, shift and kernel, and None for the other three arguments."""
        values, scale, shift, kernel, mean, deviation = ctx.saved_tensors
        # By the statistics that were saved: one pass over the values instead of two.
        rectified, _, _ = _aten.native_batch_norm.out(
            values, scale, shift, mean, deviation.pow(-2).sub_(ctx.epsilon), False, 0.0, ctx.epsilon,
            out=ctx.scratch.borrow_like(values), save_mean=torch.empty(0), save_invstd=torch.empty(0),
        )  # fmt: skip
        gradient, of_kernel = compute_gradients(
            gradients[0],
            rectified.relu_(),
            kernel,
            ctx.convolution,
            wide=needs_float32_gradient(ctx.convolution, values),
        )
        _aten.threshold_backward.grad_input(gradient, rectified, 0, grad_input=gradient)
        of_values, of_scale, of_shift = _aten.native_batch_norm_backward(
            gradient, values, scale, None, None, mean, deviation, True, ctx.epsilon, [True, True, True]
        )
        return of_values, of_scale, of_shift, of_kernel, None, None, None
