"""SqueezeNet 1.1 (Iandola et al. 2016 and its authors' later revision): 1,235,496 parameters at 1,000 classes and 3 channels."""

import torch
from torch import Tensor, nn

from crossover.learning.models.layers import Dropout, at_least, initialised, relu

# (squeeze, expand to each of the two branches); None: max pooling
_FIRES = ((16, 64), (16, 64), None, (32, 128), (32, 128), None, (48, 192), (48, 192), (64, 256), (64, 256))


class Fire(nn.Module):
    """A 1x1 squeeze, then 1x1 and 3x3 side by side."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, squeeze, 1), relu())
        self.narrow = nn.Sequential(nn.Conv2d(squeeze, expand, 1), relu())
        self.wide = nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), relu())

    def forward(self, images: Tensor) -> Tensor:
        squeezed = self.squeeze(images)
        return torch.cat([self.narrow(squeezed), self.wide(squeezed)], 1)


class SqueezeNet(nn.Module):
    """images (N, C, H, W) -> logits (N, classes); images below 32x32 are padded."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, stride=2), relu(), nn.MaxPool2d(3, 2, ceil_mode=True)]
        width = 64
        for fire in _FIRES:
            if fire is None:
                layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
                continue
            squeeze, expand = fire
            layers.append(Fire(width, squeeze, expand))
            width = 2 * expand
        self.features = nn.Sequential(*layers)
        self.last = nn.Conv2d(width, classes, 1)
        self.classifier = nn.Sequential(Dropout(0.5), self.last, relu())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(at_least(images, 32))).mean((2, 3))
        return logits


def squeezenet(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    model = SqueezeNet(classes, input_shape[0])
    initialised(model)
    nn.init.normal_(model.last.weight, 0.0, 0.01)  # logits start small, as a linear layer's would
    return model
