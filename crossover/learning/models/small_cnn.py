"""A small convolutional network for quick runs on 8x8 to 32x32 images; it has BatchNorm, so that statistics travel as well."""

from torch import Tensor, nn
from torch.nn import functional as F

from crossover.learning.models.layers import ConvNorm, initialised


class SmallCNN(nn.Module):
    """images (N, C, H, W) -> logits (N, classes); about 26,000 parameters."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(channels, 16, 3), ConvNorm(16, 32, 3, stride=2), ConvNorm(32, 64, 3, stride=2)
        )
        self.classifier = nn.Linear(64 * 4, classes)

    def forward(self, images: Tensor) -> Tensor:
        # 2x2 positions are kept: where a stroke is tells digits apart.
        pooled = F.adaptive_avg_pool2d(self.features(images), 2)
        logits: Tensor = self.classifier(pooled.flatten(1))
        return logits


def small_cnn(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    return initialised(SmallCNN(classes, input_shape[0]))
