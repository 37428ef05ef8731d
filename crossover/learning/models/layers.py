"""The one layer that most of these networks are made of."""

from collections.abc import Callable

from torch import nn


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
        activation: Callable[[], nn.Module] | None = lambda: nn.ReLU(inplace=True),
        epsilon: float = 1e-5,
    ) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        layers: list[nn.Module] = [convolution, nn.BatchNorm2d(outputs, eps=epsilon)]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)
