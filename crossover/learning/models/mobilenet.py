"""MobileNetV1 (Howard et al. 2017, table 1) for 32x32 images: 3,217,226 parameters at 10 classes, the papers' MobileNet.

The CIFAR variant keeps stride 1 in the stem and the first block, so that a 32x32 image still has 2x2 positions at the end.
"""

from torch import Tensor, nn

from crossover.learning.models.layers import ConvNorm, initialised

# (output channels, stride) of the 13 depthwise-separable blocks
_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip


class MobileNet(nn.Module):
    """images (N, C, 32, 32) -> logits (N, classes)."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = [ConvNorm(channels, 32, 3)]
        width = 32
        for out, stride in _BLOCKS:
            blocks += [ConvNorm(width, width, 3, stride=stride, groups=width), ConvNorm(width, out, 1)]
            width = out
        self.features = nn.Sequential(*blocks)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def mobilenet(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(MobileNet(classes, input_shape[0]))
