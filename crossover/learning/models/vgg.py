"""VGG-11 (Simonyan and Zisserman 2014, configuration A): 132,863,336 parameters at 1,000 classes and 3 channels."""

from torch import Tensor, nn
from torch.nn import functional as F

from crossover.learning.models.layers import Dropout, at_least, initialised, relu

_WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # each group ends in a max pooling


class VGG(nn.Module):
    """images (N, C, H, W) -> logits (N, classes); images below 32x32 are padded, five poolings need them."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = channels
        for group in _WIDTHS:
            for out in group:
                layers += [nn.Conv2d(width, out, 3, padding=1), relu()]
                width = out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(width * 49, 4096), relu(), Dropout(0.5),
            nn.Linear(4096, 4096), relu(), Dropout(0.5),
            nn.Linear(4096, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        features = F.adaptive_avg_pool2d(self.features(at_least(images, 32)), 7)
        logits: Tensor = self.classifier(features.flatten(1))
        return logits


def vgg11(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(VGG(classes, input_shape[0]))
