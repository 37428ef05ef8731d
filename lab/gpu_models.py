"""The networks whose steps were measured on GPUs, as far as their counts need them: shapes, not weights.

The public measurements name them; a network of a paper or of Keras's applications is built in its published form.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 1_000


def _build_conv(
    inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, *, same: bool = True, norm: bool = True
) -> nn.Module:
    """Build a 2D convolution with ReLU, and with batch normalization between them unless `norm` is False. `inputs`, `outputs`: numbers of
    channels; `kernel`: its size in pixels, (height, width) if not square; `same`: pad so that the size stays the same with stride 1.
    """
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sides[0] // 2, sides[1] // 2) if same else (0, 0)
    conv = nn.Conv2d(inputs, outputs, sides, stride, padding, bias=not norm)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU()) if norm else nn.Sequential(conv, nn.ReLU())


class Branches(nn.Module):
    """A module that applies several modules to the same input and concatenates their outputs along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        """Create the module. `branches`: modules that are applied to the same input and give outputs of equal size except for the
        channels.
        """
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the branches' outputs, concatenated along the channels."""
        return torch.cat([each(inputs) for each in self.branches], dim=1)


class Sum(nn.Module):
    """A residual block: the output of `body`, times `scale`, is added to `shortcut` of the input, or to the input itself if there is no
    shortcut; then ReLU if `relu` is set.
    """

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, scale: float = 1.0, relu: bool = True
    ) -> None:
        """Create the block. `shortcut`: applied to the input before the addition, None for the input itself; `scale`: factor on the body's
        output; `relu`: whether ReLU follows.
        """
        super().__init__()
        self.body, self.shortcut, self.scale, self.relu = body, shortcut, scale, relu

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scaled output of the body plus the input or its shortcut, after ReLU if `relu` is set."""
        found = self.body(inputs)
        found = (found if self.scale == 1 else found * self.scale) + (
            inputs if self.shortcut is None else self.shortcut(inputs)
        )
        return F.relu(found) if self.relu else found


def _append_head(features: nn.Module, image: int, *head: int, channels: int = 3) -> nn.Module:
    """Return a network of `features`, flattened, followed by fully connected layers with ReLU between them. `image`: height and width of
    the input in pixels; `head`: number of outputs of each layer; `channels`: channels of the input.
    """
    with torch.device("meta"):
        width = features(torch.empty(1, channels, image, image)).numel()
    layers = list[nn.Module]()
    for units in head[:-1]:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(features, nn.Flatten(), *layers, nn.Linear(width, head[-1]))


def vgg(*groups: int, norm: bool = False) -> Callable[[int], nn.Module]:
    """Return a function that builds a VGG network for square images with a given side in pixels. `groups`: number of convolutions in each
    of the five groups; `norm`: whether batch normalization follows each convolution.
    """

    def make(image: int) -> nn.Module:
        """Build the network for images of `image` pixels a side."""
        layers, inputs = list[nn.Module](), 3
        for width, count in zip((64, 128, 256, 512, 512), groups, strict=True):
            for _ in range(count):
                layers.append(_build_conv(inputs, width, 3, norm=norm))
                inputs = width
            layers.append(nn.MaxPool2d(2))
        return _append_head(nn.Sequential(*layers), image, 4096, 4096, CLASSES)

    return make


def _build_preactivation(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    """Build batch normalization and ReLU followed by a padded square convolution, as in the second ResNet paper. `inputs`, `outputs`:
    numbers of channels; `kernel`: its side in pixels.
    """
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2))


def _build_basic_block(inputs: int, width: int, stride: int) -> nn.Module:
    """Build a residual block of two 3x3 convolutions, with a projection if size or channels change. `inputs`: input channels; `width`:
    output channels; `stride`: of the first convolution.
    """
    body = nn.Sequential(_build_preactivation(inputs, width, 3, stride), _build_preactivation(width, width, 3))
    return Sum(body, nn.Conv2d(inputs, width, 1, stride) if stride > 1 or inputs != width else None, relu=False)


def _build_bottleneck_block(inputs: int, width: int, stride: int) -> nn.Module:
    """Build a residual block of 1x1, 3x3 and 1x1 convolutions with four times `width` output channels, with a projection if size or
    channels change. `inputs`: input channels; `width`: inner channels; `stride`: of the 3x3 convolution.
    """
    body = nn.Sequential(
        _build_preactivation(inputs, width, 1, stride),
        _build_preactivation(width, width, 3),
        _build_preactivation(width, 4 * width, 1),
    )
    return Sum(body, nn.Conv2d(inputs, 4 * width, 1, stride) if stride > 1 or inputs != 4 * width else None, relu=False)


def resnet(
    block: Callable[[int, int, int], nn.Module], counts: Sequence[int], grows: int
) -> Callable[[int], nn.Module]:
    """Return a function that takes the side of square images in pixels, which it ignores, and builds a new network of the second ResNet
    paper for them: 3 input channels, CLASSES outputs.

    `block`: function that builds a block from (input channels, width, stride); `counts`: number of blocks in each stage, of which the first
    has the width 64 and each other twice the width of the one before; `grows`: a block's output channels divided by its width.
    """

    def make(image: int) -> nn.Module:
        """Build the network, which is the same for every size of images. `image`: height and width in pixels, not used."""
        layers, inputs = [_build_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for group, count in enumerate(counts):
            width = 64 << group
            for n in range(count):
                layers.append(block(inputs, width, 2 if n == 0 and group else 1))
                inputs = grows * width
        end = (nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))
        return nn.Sequential(*layers, *end)

    return make


def resnet_v1(counts: Sequence[int], *, bottleneck: bool = True, widen: int = 1) -> Callable[[int], nn.Module]:
    """Return a function that builds a network of the first ResNet paper, which normalizes after each convolution, for square images with a
    given side in pixels. `counts`: number of blocks in each stage; `bottleneck`: use blocks of three convolutions instead of two; `widen`:
    factor on the inner width of a bottleneck.
    """

    def make(image: int) -> nn.Module:
        """Build the network, which is the same for every size of images. `image`: height and width in pixels, not used."""
        layers, inputs = [_build_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
        for group, count in enumerate(counts):
            width, outputs = widen * (64 << group), (256 if bottleneck else 64) << group
            for n in range(count):
                stride = 2 if n == 0 and group else 1
                last = (
                    nn.Conv2d(width, outputs, 1 if bottleneck else 3, 1, 0 if bottleneck else 1),
                    nn.BatchNorm2d(outputs),
                )
                first = (
                    (_build_conv(inputs, width, 1), _build_conv(width, width, 3, stride))
                    if bottleneck
                    else (_build_conv(inputs, width, 3, stride),)
                )
                plain = stride == 1 and inputs == outputs
                shortcut = (
                    None if plain else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
                )
                layers.append(Sum(nn.Sequential(*first, *last), shortcut))
                inputs = outputs
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))

    return make


def mobilenet_v2(image: int) -> nn.Module:
    """Build a MobileNetV2 for RGB images with a score for each of CLASSES (1,000) classes. `image`: height and width in pixels, not used,
    because the network is the same for every size.
    """

    def depthwise(width: int, stride: int) -> nn.Module:
        """Build a 3x3 convolution of each of `width` channels by itself, with normalization and ReLU6."""
        return nn.Sequential(
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.ReLU6()
        )

    layers, inputs = [_build_conv(3, 32, 3, 2)], 32
    for expand, outputs, count, first in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for n in range(count):
            stride, width = first if n == 0 else 1, expand * inputs
            body = [
                *([_build_conv(inputs, width, 1)] if expand > 1 else []),
                depthwise(width, stride),
                nn.Conv2d(width, outputs, 1),
                nn.BatchNorm2d(outputs),
            ]
            layers.append(
                Sum(nn.Sequential(*body), relu=False) if stride == 1 and inputs == outputs else nn.Sequential(*body)
            )
            inputs = outputs
    return nn.Sequential(
        *layers, _build_conv(inputs, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, CLASSES)
    )


class _Attention(nn.Module):
    """Self-attention with several heads over a sequence of tokens. `width`: number of values per token."""

    def __init__(self, width: int, heads: int) -> None:
        """Create the module. `width`: number of values per token; `heads`: number of attention heads."""
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the tokens `inputs` after self-attention. Input and output have the shape (batch, tokens, width)."""
        batch, tokens, width = inputs.shape
        parts = self.into(inputs).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        weights = ((queries @ keys.transpose(-2, -1)) * (width // self.heads) ** -0.5).softmax(-1)
        found: Tensor = self.out((weights @ values).transpose(1, 2).reshape(batch, tokens, width))
        return found


class VisionTransformer(nn.Module):
    """A vision transformer for square images: patches of 16 x 16 pixels, a class token, and blocks that normalize first."""

    def __init__(self, image: int, width: int, depth: int, heads: int) -> None:
        """Create the network. `image`: height and width in pixels; `width`: values per token; `depth`: number of blocks; `heads`: attention
        heads of each.
        """
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token, self.places = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(torch.zeros(1, (image // 16) ** 2 + 1, width)),
        )
        blocks = list[nn.Module]()
        for _ in range(depth):
            blocks.append(Sum(nn.Sequential(nn.LayerNorm(width), _Attention(width, heads)), relu=False))
            mlp = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            blocks.append(Sum(nn.Sequential(*mlp), relu=False))
        self.blocks, self.head = nn.Sequential(*blocks, nn.LayerNorm(width)), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes, of shape (batch, CLASSES), for images of shape (batch, 3, side, side)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        found = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        classes: Tensor = self.head(self.blocks(found)[:, 0])
        return classes


def vit(width: int, heads: int) -> Callable[[int], nn.Module]:
    """Return a function that builds a vision transformer of 12 blocks for square images with a given side in pixels. `width`: number of
    values per token; `heads`: attention heads of each block.
    """
    return lambda image: VisionTransformer(image, width, 12, heads)


def resnet_small(image: int) -> nn.Module:
    """Build a small ResNet for RGB images with CLASSES scores, in which all filters after the first layer are 1 x 1. `image`: height and
    width in pixels, not used, because the network is the same for every size.
    """
    layers, inputs = [_build_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width in (64, 128):
        for stride in (2, 1):
            body = nn.Sequential(
                _build_conv(inputs, width, 1, stride), nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)
            )
            layers.append(
                Sum(
                    body,
                    nn.Sequential(nn.Conv2d(inputs, width, 1, stride), nn.BatchNorm2d(width)) if stride > 1 else None,
                )
            )
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def alexnet(image: int) -> nn.Module:
    """Build an AlexNet for RGB images of `image` pixels a side, wider than that of the paper and with stride 1, with a score for each of
    CLASSES classes.
    """
    layers = list[nn.Module]()
    for inputs, outputs, kernel, pooled in (
        (3, 96, 11, True),
        (96, 256, 5, True),
        (256, 512, 3, True),
        (512, 1024, 3, False),
        (1024, 1024, 3, True),
    ):
        pad = kernel // 2 + (inputs >= 256)
        layers += [
            nn.Conv2d(inputs, outputs, kernel, 1, pad),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            *([nn.MaxPool2d(2)] if pooled else []),
        ]
    features = nn.Sequential(*layers, nn.Flatten())
    with torch.device("meta"):
        width = features(torch.empty(2, 3, image, image)).shape[1]
    for units in (3072, 4096):
        layers += [nn.Flatten(), nn.Linear(width, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Dropout()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, CLASSES), nn.BatchNorm1d(CLASSES))


def lenet(image: int) -> nn.Module:
    """Build a LeNet for RGB images of `image` pixels a side, with a score for each of CLASSES classes."""
    pairs = ((3, 6), (6, 16))
    layers = [each for pair in pairs for each in (_build_conv(*pair, 5, same=False, norm=False), nn.MaxPool2d(2))]
    return _append_head(nn.Sequential(*layers), image, 120, 84, CLASSES)


def mnist_cnn(image: int) -> nn.Module:
    """Build a small network of two convolutions, MNIST's but for RGB images of `image` pixels a side, with a score for each of CLASSES
    classes.
    """
    pairs = ((3, 32), (32, 64))
    layers = [each for pair in pairs for each in (_build_conv(*pair, 3, same=False, norm=False), nn.MaxPool2d(2))]
    return _append_head(nn.Sequential(*layers, nn.Dropout()), image, CLASSES)


def cifar10_cnn(image: int) -> nn.Module:
    """Build a small network of four convolutions, CIFAR-10's, for RGB images of `image` pixels a side, with a score for each of CLASSES
    classes.
    """
    layers = list[nn.Module]()
    for inputs, outputs in ((3, 32), (32, 64)):
        layers += [
            _build_conv(inputs, outputs, 3, norm=False),
            _build_conv(outputs, outputs, 3, same=False, norm=False),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ]
    return _append_head(nn.Sequential(*layers), image, 512, CLASSES)


def _build_stem() -> list[nn.Module]:
    """Return the first layers of the Inception networks as a list: five convolutions and two poolings, with 192 output channels."""
    return [
        _build_conv(3, 32, 3, 2, same=False),
        _build_conv(32, 32, 3, same=False),
        _build_conv(32, 64, 3),
        nn.MaxPool2d(3, 2),
        _build_conv(64, 80, 1, same=False),
        _build_conv(80, 192, 3, same=False),
        nn.MaxPool2d(3, 2),
    ]


def _build_pooling(inputs: int, outputs: int) -> nn.Module:
    """Build a 3x3 average pooling followed by a 1x1 convolution to `outputs` channels."""
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _build_conv(inputs, outputs, 1))


def inception_v3(image: int) -> nn.Module:
    """Build an Inception v3 for RGB images with CLASSES scores. `image`: height and width in pixels, not used,
    because the network is the same for every size.
    """

    def a(inputs: int, pool: int) -> nn.Module:
        """Build an Inception block with 1x1, 5x5 and two 3x3 convolutions. `inputs`: input channels; `pool`: output channels of the pooling
        branch.
        """
        return Branches(
            _build_conv(inputs, 64, 1),
            nn.Sequential(_build_conv(inputs, 48, 1), _build_conv(48, 64, 5)),
            nn.Sequential(_build_conv(inputs, 64, 1), _build_conv(64, 96, 3), _build_conv(96, 96, 3)),
            _build_pooling(inputs, pool),
        )

    def b(width: int) -> nn.Module:
        """Build an Inception block with convolutions of 1x7 and 7x1. `width`: number of inner channels."""
        return Branches(
            _build_conv(768, 192, 1),
            nn.Sequential(
                _build_conv(768, width, 1), _build_conv(width, width, (1, 7)), _build_conv(width, 192, (7, 1))
            ),
            nn.Sequential(
                _build_conv(768, width, 1),
                _build_conv(width, width, (7, 1)),
                _build_conv(width, width, (1, 7)),
                _build_conv(width, width, (7, 1)),
                _build_conv(width, 192, (1, 7)),
            ),
            _build_pooling(768, 192),
        )

    def c(inputs: int) -> nn.Module:
        """Build the widest Inception block, whose branches split into 1x3 and 3x1 convolutions."""
        split = Branches(_build_conv(384, 384, (1, 3)), _build_conv(384, 384, (3, 1)))
        other = Branches(_build_conv(384, 384, (1, 3)), _build_conv(384, 384, (3, 1)))
        return Branches(
            _build_conv(inputs, 320, 1),
            nn.Sequential(_build_conv(inputs, 384, 1), split),
            nn.Sequential(_build_conv(inputs, 448, 1), _build_conv(448, 384, 3), other),
            _build_pooling(inputs, 192),
        )

    first = Branches(
        _build_conv(288, 384, 3, 2, same=False),
        nn.Sequential(_build_conv(288, 64, 1), _build_conv(64, 96, 3), _build_conv(96, 96, 3, 2, same=False)),
        nn.MaxPool2d(3, 2),
    )
    second = Branches(
        nn.Sequential(_build_conv(768, 192, 1), _build_conv(192, 320, 3, 2, same=False)),
        nn.Sequential(
            _build_conv(768, 192, 1),
            _build_conv(192, 192, (1, 7)),
            _build_conv(192, 192, (7, 1)),
            _build_conv(192, 192, 3, 2, same=False),
        ),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(
        *_build_stem(),
        a(192, 32),
        a(256, 64),
        a(288, 64),
        first,
        b(128),
        b(160),
        b(160),
        b(192),
        second,
        c(1280),
        c(2048),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2048, CLASSES),
    )


def inception_resnet_v2(image: int) -> nn.Module:
    """Build an Inception-ResNet v2 for RGB images with CLASSES scores. `image`: height and width in pixels, not used,
    because the network is the same for every size.
    """

    def block(inputs: int, scale: float, *branches: nn.Module, width: int) -> nn.Module:
        """Build a residual block with `inputs` input and output channels from parallel branches. `scale`: factor on their result; `width`:
        number of the branches' output channels in all.
        """
        return Sum(nn.Sequential(Branches(*branches), nn.Conv2d(width, inputs, 1)), None, scale)

    def a() -> nn.Module:
        """Build a residual block of the first stage, 320 channels."""
        return block(
            320,
            0.17,
            _build_conv(320, 32, 1),
            nn.Sequential(_build_conv(320, 32, 1), _build_conv(32, 32, 3)),
            nn.Sequential(_build_conv(320, 32, 1), _build_conv(32, 48, 3), _build_conv(48, 64, 3)),
            width=128,
        )

    def b() -> nn.Module:
        """Build a residual block of the second stage, 1,088 channels."""
        return block(
            1088,
            0.1,
            _build_conv(1088, 192, 1),
            nn.Sequential(_build_conv(1088, 128, 1), _build_conv(128, 160, (1, 7)), _build_conv(160, 192, (7, 1))),
            width=384,
        )

    def c() -> nn.Module:
        """Build a residual block of the third stage, 2,080 channels."""
        return block(
            2080,
            0.2,
            _build_conv(2080, 192, 1),
            nn.Sequential(_build_conv(2080, 192, 1), _build_conv(192, 224, (1, 3)), _build_conv(224, 256, (3, 1))),
            width=448,
        )

    mixed = Branches(
        _build_conv(192, 96, 1),
        nn.Sequential(_build_conv(192, 48, 1), _build_conv(48, 64, 5)),
        nn.Sequential(_build_conv(192, 64, 1), _build_conv(64, 96, 3), _build_conv(96, 96, 3)),
        _build_pooling(192, 64),
    )
    first = Branches(
        _build_conv(320, 384, 3, 2, same=False),
        nn.Sequential(_build_conv(320, 256, 1), _build_conv(256, 256, 3), _build_conv(256, 384, 3, 2, same=False)),
        nn.MaxPool2d(3, 2),
    )
    second = Branches(
        nn.Sequential(_build_conv(1088, 256, 1), _build_conv(256, 384, 3, 2, same=False)),
        nn.Sequential(_build_conv(1088, 256, 1), _build_conv(256, 288, 3, 2, same=False)),
        nn.Sequential(_build_conv(1088, 256, 1), _build_conv(256, 288, 3), _build_conv(288, 320, 3, 2, same=False)),
        nn.MaxPool2d(3, 2),
    )
    return nn.Sequential(
        *_build_stem(),
        mixed,
        *(a() for _ in range(10)),
        first,
        *(b() for _ in range(20)),
        second,
        *(c() for _ in range(10)),
        _build_conv(2080, 1536, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1536, CLASSES),
    )


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "AlexNet": alexnet,
    "CIFAR10_CNN": cifar10_cnn,
    "InceptionResNetV2": inception_resnet_v2,
    "InceptionV3": inception_v3,
    "LeNet5": lenet,
    "MNIST_CNN": mnist_cnn,
    "ResNet18": resnet(_build_basic_block, (2, 2, 2, 2), 1),
    "ResNet50": resnet(_build_bottleneck_block, (3, 4, 6, 3), 4),
    "ResNetSmall": resnet_small,
    "VGG11": vgg(1, 1, 2, 2, 2),
    "VGG13": vgg(2, 2, 2, 2, 2),
    "VGG16": vgg(2, 2, 3, 3, 3),
    "VGG19": vgg(2, 2, 4, 4, 4),
}


# Those of timm's rows that are built here; `python -m lab gpus` fits mixed precision to them.
TIMM: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": resnet_v1((2, 2, 2, 2), bottleneck=False),
    "resnet34": resnet_v1((3, 4, 6, 3), bottleneck=False),
    "resnet50": resnet_v1((3, 4, 6, 3)),
    "resnet101": resnet_v1((3, 4, 23, 3)),
    "wide_resnet50_2": resnet_v1((3, 4, 6, 3), widen=2),
    "vgg11": vgg(1, 1, 2, 2, 2),
    "vgg13": vgg(2, 2, 2, 2, 2),
    "vgg16": vgg(2, 2, 3, 3, 3),
    "vgg19": vgg(2, 2, 4, 4, 4),
    "vgg11_bn": vgg(1, 1, 2, 2, 2, norm=True),
    "vgg13_bn": vgg(2, 2, 2, 2, 2, norm=True),
    "vgg16_bn": vgg(2, 2, 3, 3, 3, norm=True),
    "vgg19_bn": vgg(2, 2, 4, 4, 4, norm=True),
    "mobilenetv2_100": mobilenet_v2,
    "inception_v3": inception_v3,
    "inception_resnet_v2": inception_resnet_v2,
    "vit_tiny_patch16_224": vit(192, 3),
    "vit_small_patch16_224": vit(384, 6),
    "vit_base_patch16_224": vit(768, 12),
}
