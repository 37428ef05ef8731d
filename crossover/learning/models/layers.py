"""Layers that several of the networks share, and how their weights begin."""

from collections.abc import Callable
from typing import Any

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


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution whose bf16 gradient avoids two kernels that are far slower than their float32 form.

    Measured on a processor with AVX512-BF16, oneDNN 3.12, one thread, batch 512: at stride 2 the bf16 gradient of the input takes
    280 ms where float32 takes 2 to 13 ms, at 2x2 positions that of the weight 85 ms against 20 ms.
    """

    def forward(self, input: Tensor) -> Tensor:
        slow = self.stride != (1, 1) or input.shape[-1] <= 2
        if slow and input.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            out: Tensor = _Float32Gradient.apply(  # type: ignore[no-untyped-call]
                input, self.weight, self.stride, self.padding, self.groups
            )
            return out
        return super().forward(input)


class _Float32Gradient(torch.autograd.Function):
    """conv2d forward in bf16, its gradients in float32."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: Any, padding: Any, groups: int) -> Tensor:
        low = images.to(torch.bfloat16)
        ctx.save_for_backward(low, weight)
        ctx.settings = (list(stride), list(padding), groups, images.dtype)
        return F.conv2d(low, weight.to(torch.bfloat16), None, stride, padding, 1, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        images, weight = ctx.saved_tensors
        stride, padding, groups, dtype = ctx.settings
        out = gradients[0].to(torch.float32, memory_format=torch.channels_last)
        images = images.to(torch.float32, memory_format=torch.channels_last)
        inputs, weights, _ = torch.ops.aten.convolution_backward(
            out, images, weight, None, stride, padding, [1, 1], False, [0, 0], groups, [True, True, False]
        )
        return inputs.to(dtype), weights, None, None, None


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
