"""Layers that several of the networks share, and how their weights begin."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Activation = Callable[[], nn.Module]


def relu() -> nn.Module:
    return nn.ReLU(inplace=True)


class ConvNorm(nn.Sequential):
    """Convolution without bias, BatchNorm, activation (None: none). Padding keeps the size at stride 1."""

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
        kind = DepthwiseConv2d if groups == inputs and groups > 1 else nn.Conv2d
        convolution = kind(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        layers: list[nn.Module] = [convolution, nn.BatchNorm2d(outputs, eps=epsilon)]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)

    @property
    def convolution(self) -> nn.Conv2d:
        return cast(nn.Conv2d, self[0])

    @property
    def norm(self) -> nn.BatchNorm2d:
        return cast(nn.BatchNorm2d, self[1])

    @property
    def activation(self) -> nn.Module | None:
        return self[2] if len(self) == 3 else None


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution whose bf16 gradient avoids two kernels that are far slower than their float32 form.

    Measured on a processor with AVX512-BF16, oneDNN 3.12, one thread, batch 512: at stride 2 the bf16 gradient of the input takes 280 ms
    where float32 takes 2 to 13 ms, at 2x2 positions that of the weight 85 ms against 20 ms.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type == "cpu" and torch.is_autocast_enabled("cpu") and wide_gradient(self, input):
            out: Tensor = _Float32Gradient.apply(input, self.weight, self)  # type: ignore[no-untyped-call]
            return out
        return super().forward(input)


def wide_gradient(convolution: nn.Conv2d, images: Tensor) -> bool:
    """Whether its gradients at `images` are better computed in float32 also where the rest is bf16."""
    slow = convolution.stride != (1, 1) or images.shape[-1] <= 2
    return slow and isinstance(convolution, DepthwiseConv2d)


def convolution_gradients(
    out: Tensor, images: Tensor, kernel: Tensor, convolution: nn.Conv2d, *, wide: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of `images` (in their type) and of `kernel`, given the output's. `wide`: computed in float32."""
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
    """conv2d forward in bf16, its gradients in float32."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, convolution: nn.Conv2d) -> Tensor:
        low = images.to(torch.bfloat16)
        ctx.save_for_backward(low, weight)
        ctx.convolution, ctx.dtype = convolution, images.dtype
        kernel = weight.to(torch.bfloat16)
        return F.conv2d(low, kernel, None, convolution.stride, convolution.padding, 1, convolution.groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        images, weight = ctx.saved_tensors
        inputs, weights = convolution_gradients(gradients[0], images, weight, ctx.convolution, wide=True)
        return inputs.to(ctx.dtype), weights, None


class Dropout(nn.Module):
    """Dropout that draws from `generator`, which the learner seeds before each minibatch; no global random state is used."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        if not self.training:
            return values
        kept = torch.empty_like(values, dtype=torch.float32).bernoulli_(1 - self.share, generator=self.generator)
        return values * kept.div_(1 - self.share).to(values.dtype)


def at_least(images: Tensor, size: int) -> Tensor:
    """Images padded with zeros around to `size` x `size` where they are smaller: deep networks halve them many times."""
    height, width = max(size - images.shape[2], 0), max(size - images.shape[3], 0)
    if not height and not width:
        return images
    return F.pad(images, (width // 2, width - width // 2, height // 2, height - height // 2))


def initialised(model: nn.Module) -> nn.Module:
    """`model` with He's normal initialisation of convolutions (by fan-out), N(0, 0.01) for linear layers, biases zero.

    On the meta device there is nothing to initialise, and drawing there would import torch's compiler: 0.7 s and 100 MB.
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
