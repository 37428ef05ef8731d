"""From a minibatch's raw inputs to what the network sees: augmentation, the affine map, the memory format."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from crossover.algorithms.randomness import hashes
from crossover.algorithms.schedule import image_side
from crossover.experiment import Data, Training
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


def augmented(images: Tensor, sample_ids: Tensor, data: Data, *, seed: int, epoch: int) -> Tensor:
    """As `data.augment` says; what happens to a sample depends on (seed, epoch, sample id) alone, so a retry, or another worker, sees the
    same image.
    """
    if data.augment == "none":
        return images
    return crop_flip(images, sample_ids, seed=seed, epoch=epoch, alternate=data.augment == "crop_alternate")


def at_size(images: Tensor, training: Training, *, epoch: int) -> Tensor:
    """(N, C, H, W) of floats, as large as `training.image_size` has them in that epoch; what is no image stays as it is."""
    if training.image_size.begin is None or images.ndim != 4:
        return images
    return to_side(images, image_side(training, images.shape[2], epoch=epoch))


def first_of_each_size(images: Tensor, training: Training) -> list[int]:
    """The first epoch of each size that `at_size` gives them."""
    if training.image_size.begin is None or images.ndim != 4:
        return [1]
    epochs = range(training.epochs, 0, -1)
    return sorted({image_side(training, images.shape[2], epoch=epoch): epoch for epoch in epochs}.values())


def to_side(images: Tensor, side: int) -> Tensor:
    """(N, C, H, W) -> (N, C, side, W in proportion): bilinear, each new pixel the weighted mean of those that it covers."""
    height, width = images.shape[2:]
    if side == height:
        return images
    size = (side, max(1, round(width * side / height)))
    return F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=True)


def crop_flip(images: Tensor, sample_ids: Tensor, *, seed: int, epoch: int, alternate: bool = False) -> Tensor:
    """Each image shifted by up to an eighth of its height (the edge filled with zeros), and mirrored half of the time: by chance, or in
    every second epoch (`alternate`), so that two epochs in a row show both sides of each (Jordan 2024, arXiv 2404.00498).
    """
    count, channels, height, width = images.shape
    reach = height // 8
    draws = hashes(sample_ids, "augmentation", seed, epoch)
    down, across = draws % (2 * reach + 1), (draws >> 16) % (2 * reach + 1)
    mirrored = (draws >> 32) & 1
    if alternate:
        mirrored = (hashes(sample_ids, "flip", seed) + epoch) & 1
    mirrored = mirrored.bool()
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + across[:, None]
    rows = torch.arange(height)[None, :] + down[:, None]
    padded = F.pad(images, (reach, reach, reach, reach))
    samples = torch.arange(count)[:, None, None, None]
    planes = torch.arange(channels)[None, :, None, None]
    return padded[samples, planes, rows[:, None, :, None], columns[:, None, None, :]]
