"""ResNet (He et al. 2016): at 1,000 classes and 3 channels ResNet-18 has 11,689,512 parameters, ResNet-50 25,557,032.

The CIFAR variants have a 3x3 stem of stride 1 and no pooling after it: 11,173,962 parameters for ResNet-18 at 10 classes.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from crossover.learning.models.chain import Chain
from crossover.learning.models.layers import ConvNorm, initialised


class Residual(nn.Module):
    """`block` added to its input, which is projected where the shape changes."""

    def __init__(self, block: nn.Module, *, inputs: int, out: int, stride: int) -> None:
        super().__init__()
        self.block = block
        changes = stride != 1 or inputs != out
        self.shortcut = ConvNorm(inputs, out, 1, stride=stride, activation=None) if changes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.block(images) + self.shortcut(images), inplace=True)


def _basic(inputs: int, width: int, stride: int) -> Residual:
    block = Chain(ConvNorm(inputs, width, 3, stride=stride), ConvNorm(width, width, 3, activation=None))
    return Residual(block, inputs=inputs, out=width, stride=stride)


def _bottleneck(inputs: int, width: int, stride: int) -> Residual:
    block = Chain(
        ConvNorm(inputs, width, 1),
        ConvNorm(width, width, 3, stride=stride),
        ConvNorm(width, 4 * width, 1, activation=None),
    )
    return Residual(block, inputs=inputs, out=4 * width, stride=stride)


class ResNet(nn.Module):
    """images (N, C, H, W) -> logits (N, classes). `depths`: blocks in each of the four stages; `cifar`: the stem for small images."""

    def __init__(self, classes: int, channels: int, depths: tuple[int, ...], *, bottleneck: bool, cifar: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(channels, 64, 3 if cifar else 7, stride=1 if cifar else 2)]
        if not cifar:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        make, growth, inputs = (_bottleneck, 4, 64) if bottleneck else (_basic, 1, 64)
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for number in range(depth):
                layers.append(make(inputs, width, 2 if stage and number == 0 else 1))
                inputs = width * growth
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return logits


def resnet18(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(ResNet(classes, input_shape[0], (2, 2, 2, 2), bottleneck=False, cifar=False))


def resnet50(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(ResNet(classes, input_shape[0], (3, 4, 6, 3), bottleneck=True, cifar=False))


def resnet18_cifar(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(ResNet(classes, input_shape[0], (2, 2, 2, 2), bottleneck=False, cifar=True))


def resnet50_cifar(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(ResNet(classes, input_shape[0], (3, 4, 6, 3), bottleneck=True, cifar=True))
