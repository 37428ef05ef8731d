"""MobileNetV1 (Howard et al. 2017, table 1) for 32x32 images: 3,217,226 parameters at 10 classes, the papers' MobileNet.

The CIFAR variant keeps stride 1 in the stem and the first block, so that a 32x32 image still has 2x2 positions at the end.
"""

import math

from torch import Tensor, nn

from crossover.learning.models.chain import Chain
from crossover.learning.models.layers import ConvNorm, initialised

# (output channels, stride) of the 13 depthwise-separable blocks
_BLOCKS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip

_NORM = 8.0
_LAST_SCALE = 0.25


class MobileNet(nn.Module):
    """images (N, C, 32, 32) -> logits (N, classes)."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        blocks = [ConvNorm(channels, 32, 3)]
        width = 32
        for out, stride in _BLOCKS:
            blocks += [ConvNorm(width, width, 3, stride=stride, groups=width), ConvNorm(width, out, 1)]
            width = out
        self.features = Chain(*blocks)
        self.classifier = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def mobilenet(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    model = MobileNet(classes, input_shape[0])
    initialised(model)
    if not model.classifier.weight.is_meta:
        _calm(model)
    return model


def _calm(model: MobileNet) -> None:
    """Let the weights begin so that large batches may take large steps; without this a peak rate of 1.0 at 2,048 images diverges.

    - The scale of a convolution before BatchNorm changes nothing but how fast it turns: by rate x gradient / norm. Gradients grow about
      1.2-fold for each BatchNorm and ReLU on their way back, so He's initialisation gives the first layer relative steps ten thousand
      times the last depthwise layer's. One norm for all leaves a factor of some tens.
    - The mean of 1,024 rectified features is far from zero, which makes the classifier stiff. A quarter of their scale (the last
      BatchNorm's weight, which is learned) bears a sixteenfold rate.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, _NORM / math.sqrt(module.weight.numel()))
    last = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)][-1]
    nn.init.constant_(last.weight, _LAST_SCALE)
