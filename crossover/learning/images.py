"""From a minibatch's raw inputs to what the network sees: augmentation, the affine map, the memory format."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from crossover.algorithms.randomness import hashes
from crossover.learning.affine import is_measured


class Preparation:
    """The affine map of `manifest["affine"]` (scale and shift, one number per channel, or none) and the memory format."""

    def __init__(self, affine: Mapping[str, Sequence[float]], *, memory_format: str) -> None:
        self._scale, self._shift = (
            torch.tensor(list(affine[name]), dtype=torch.float32) for name in ("scale", "shift")
        )
        self._format = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format

    def __call__(self, inputs: Tensor) -> Tensor:
        """(N, C, ...) of numbers -> float32, images in the network's memory format; names as they are. `inputs` stay as they are."""
        if not is_measured(inputs):
            return inputs.clone()  # over memory that nobody may write to
        layout = self._format if inputs.ndim == 4 else torch.preserve_format
        wide = inputs.to(torch.float32, copy=True, memory_format=layout)
        if not len(self._scale):
            return wide
        by_channel = (-1, *[1] * (inputs.ndim - 2))
        return wide.mul_(self._scale.view(by_channel)).add_(self._shift.view(by_channel))


def crop_flip(images: Tensor, sample_ids: Tensor, *, seed: int, epoch: int) -> Tensor:
    """Each image shifted by up to an eighth of its height (the edge filled with zeros), and mirrored half of the time.

    What happens to a sample depends on (seed, epoch, sample id) alone, so a retry, or another worker, sees the same image.
    """
    count, channels, height, width = images.shape
    reach = height // 8
    draws = hashes(sample_ids, "augmentation", seed, epoch)
    down, across = draws % (2 * reach + 1), (draws >> 16) % (2 * reach + 1)
    mirrored = ((draws >> 32) & 1).bool()
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + across[:, None]
    rows = torch.arange(height)[None, :] + down[:, None]
    padded = F.pad(images, (reach, reach, reach, reach))
    samples = torch.arange(count)[:, None, None, None]
    planes = torch.arange(channels)[None, :, None, None]
    return padded[samples, planes, rows[:, None, :, None], columns[:, None, None, :]]
