"""From a minibatch's raw images to what the network sees: augmentation, the affine map, the memory format."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from crossover.algorithms.randomness import hashes


class Preparation:
    """The affine map of `manifest["affine"]` (scale and shift, one number per channel) and the memory format."""

    def __init__(self, affine: Mapping[str, Sequence[float]], *, memory_format: str) -> None:
        self._scale = torch.tensor(list(affine["scale"]), dtype=torch.float32).view(1, -1, 1, 1)
        self._shift = torch.tensor(list(affine["shift"]), dtype=torch.float32).view(1, -1, 1, 1)
        self._format = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """(N, C, H, W) uint8 or float32 -> float32 of the network's memory format; `images` stay as they are."""
        wide = images.to(torch.float32, copy=True, memory_format=self._format)
        return wide.mul_(self._scale).add_(self._shift)


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
