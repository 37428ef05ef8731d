"""Preprocessing as one affine map per channel: x * scale + shift, with constants computed once from the training set.

- standardize: (x - mean) / standard deviation of the channel over all its values (population form)
- minmax: (x - min) / (max - min) of the channel, so that training values lie in [0, 1]
- normalize: x / the largest magnitude over all channels, so that values lie in [-1, 1] and zero stays zero
- none: values as they are
A channel without spread is only shifted to 0. Channels are dimension 1, as torch counts them: an image's colours, a
table's columns. Whole numbers other than uint8 are no measures but names, such as tokens: they stay as they are.
"""

import torch
from torch import Tensor

_BLOCK = 4096  # samples at once: bounds the float64 copies


def is_measured(inputs: Tensor) -> bool:
    """Whether the inputs are numbers to calculate with, which the map is for, rather than names."""
    return inputs.is_floating_point() or inputs.dtype == torch.uint8


def constants(inputs: Tensor, preprocess: str) -> tuple[list[float], list[float]]:
    """(scale, shift), one number per channel, of the training inputs (N, C, ...); both empty where nothing is to be done."""
    if preprocess == "none" or not is_measured(inputs):
        return [], []
    if inputs.ndim == 1:
        inputs = inputs.unsqueeze(1)
    others = (0, *range(2, inputs.ndim))
    match preprocess:
        case "standardize":
            means, deviations = _moments(inputs)
            scale = [1 / deviation if deviation else 1.0 for deviation in deviations]
            return scale, [-mean * factor for mean, factor in zip(means, scale, strict=True)]
        case "minmax":
            low = [float(value) for value in inputs.amin(others)]
            high = [float(value) for value in inputs.amax(others)]
            scale = [1 / (top - bottom) if top > bottom else 1.0 for bottom, top in zip(low, high, strict=True)]
            return scale, [-bottom * factor for bottom, factor in zip(low, scale, strict=True)]
        case "normalize":
            largest = max(abs(float(inputs.min())), abs(float(inputs.max())))
            channels = inputs.shape[1]
            return [1 / largest if largest else 1.0] * channels, [0.0] * channels
    raise ValueError(f"preprocess: {preprocess!r}; one of standardize, minmax, normalize, none")


def _moments(inputs: Tensor) -> tuple[list[float], list[float]]:
    """Mean and population standard deviation by channel, in float64, in two passes so that nothing cancels."""
    channels, others = inputs.shape[1], (0, *range(2, inputs.ndim))
    values, shape = inputs.numel() // channels, (1, channels, *[1] * (inputs.ndim - 2))
    total = torch.zeros(channels, dtype=torch.float64)
    for block in torch.split(inputs, _BLOCK):
        total += block.to(torch.float64).sum(others)
    mean = total / values
    squares = torch.zeros(channels, dtype=torch.float64)
    for block in torch.split(inputs, _BLOCK):
        squares += (block.to(torch.float64) - mean.view(shape)).square().sum(others)
    return [float(value) for value in mean], [float(value) for value in (squares / values).sqrt()]
