"""MobileNetV3-Small (Howard et al. 2019, table 2): 2,542,856 parameters at 1,000 classes and 3 channels."""

from torch import Tensor, nn

from crossover.learning.models.layers import Activation, ConvNorm, Dropout, at_least, initialised, relu

_EPSILON = 1e-3  # of every BatchNorm, as the paper's reference implementation has it


def _hard_swish() -> nn.Module:
    return nn.Hardswish(inplace=True)


# kernel, expanded width, output width, squeeze-and-excite, activation, stride
_BLOCKS: tuple[tuple[int, int, int, bool, Activation, int], ...] = (
    (3, 16, 16, True, relu, 2),
    (3, 72, 24, False, relu, 2),
    (3, 88, 24, False, relu, 1),
    (5, 96, 40, True, _hard_swish, 2),
    (5, 240, 40, True, _hard_swish, 1),
    (5, 240, 40, True, _hard_swish, 1),
    (5, 120, 48, True, _hard_swish, 1),
    (5, 144, 48, True, _hard_swish, 1),
    (5, 288, 96, True, _hard_swish, 2),
    (5, 576, 96, True, _hard_swish, 1),
    (5, 576, 96, True, _hard_swish, 1),
)


class SqueezeExcite(nn.Module):
    """Channels weighted by what they hold on average (Hu et al. 2018), with a quarter of the width in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        between = _to_eights(width / 4)
        self.weights = nn.Sequential(
            nn.Conv2d(width, between, 1), relu(), nn.Conv2d(between, width, 1), nn.Hardsigmoid()
        )

    def forward(self, images: Tensor) -> Tensor:
        weighted: Tensor = images * self.weights(images.mean((2, 3), keepdim=True))
        return weighted


class InvertedResidual(nn.Module):
    """Expand, filter each channel, weight the channels, project; added to its input where the shapes allow it."""

    def __init__(
        self, inputs: int, *, kernel: int, expanded: int, out: int, excite: bool, activation: Activation, stride: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(ConvNorm(inputs, expanded, 1, activation=activation, epsilon=_EPSILON))
        layers.append(
            ConvNorm(
                expanded, expanded, kernel, stride=stride, groups=expanded, activation=activation, epsilon=_EPSILON
            )
        )
        if excite:
            layers.append(SqueezeExcite(expanded))
        layers.append(ConvNorm(expanded, out, 1, activation=None, epsilon=_EPSILON))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == out

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.block(images)
        return images + out if self.residual else out


class MobileNetV3(nn.Module):
    """images (N, C, H, W) -> logits (N, classes); images below 32x32 are padded."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(channels, 16, 3, stride=2, activation=_hard_swish, epsilon=_EPSILON)]
        width = 16
        for kernel, expanded, out, excite, activation, stride in _BLOCKS:
            layers.append(
                InvertedResidual(
                    width,
                    kernel=kernel,
                    expanded=expanded,
                    out=out,
                    excite=excite,
                    activation=activation,
                    stride=stride,
                )
            )
            width = out
        layers.append(ConvNorm(width, 6 * width, 1, activation=_hard_swish, epsilon=_EPSILON))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(6 * width, 1024), _hard_swish(), Dropout(0.2), nn.Linear(1024, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(at_least(images, 32)).mean((2, 3)))
        return logits


def mobilenet_v3_small(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(MobileNetV3(classes, input_shape[0]))


def _to_eights(width: float) -> int:
    """The nearest multiple of 8, at least 8, and not below nine tenths of `width`."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded
