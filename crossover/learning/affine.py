"""Preprocessing as one affine map per channel: x * scale + shift, with constants computed once from the training set.

- standardize: (x - mean) / standard deviation of the channel over all pixels (population form)
- minmax: (x - min) / (max - min) of the channel, so that training pixels lie in [0, 1]
- normalize: x / the largest magnitude over all channels, so that pixels lie in [-1, 1] and zero stays zero
A channel without spread is only shifted to 0.
"""

import torch
from torch import Tensor

_BLOCK = 4096  # images at once: bounds the float64 copies


def constants(images: Tensor, preprocess: str) -> tuple[list[float], list[float]]:
    """(scale, shift), one number per channel, of the training images (N, C, H, W)."""
    match preprocess:
        case "standardize":
            means, deviations = _moments(images)
            scale = [1 / deviation if deviation else 1.0 for deviation in deviations]
            return scale, [-mean * factor for mean, factor in zip(means, scale, strict=True)]
        case "minmax":
            low = [float(value) for value in images.amin((0, 2, 3))]
            high = [float(value) for value in images.amax((0, 2, 3))]
            scale = [1 / (top - bottom) if top > bottom else 1.0 for bottom, top in zip(low, high, strict=True)]
            return scale, [-bottom * factor for bottom, factor in zip(low, scale, strict=True)]
        case "normalize":
            largest = max(abs(float(images.min())), abs(float(images.max())))
            channels = images.shape[1]
            return [1 / largest if largest else 1.0] * channels, [0.0] * channels
    raise ValueError(f"preprocess: {preprocess!r}; one of standardize, minmax, normalize")


def _moments(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and population standard deviation by channel, in float64, in two passes so that nothing cancels."""
    channels, pixels = images.shape[1], images.shape[0] * images.shape[2] * images.shape[3]
    total = torch.zeros(channels, dtype=torch.float64)
    for block in torch.split(images, _BLOCK):
        total += block.to(torch.float64).sum((0, 2, 3))
    mean = total / pixels
    squares = torch.zeros(channels, dtype=torch.float64)
    for block in torch.split(images, _BLOCK):
        squares += (block.to(torch.float64) - mean.view(1, -1, 1, 1)).square().sum((0, 2, 3))
    return [float(value) for value in mean], [float(value) for value in (squares / pixels).sqrt()]
