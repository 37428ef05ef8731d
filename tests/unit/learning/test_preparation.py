"""Preprocessing and augmentation against their definitions spelled out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms.compression import compute_hashes
from crossover.experiment import Data
from crossover.learning.samples import Preparation, augment_images, compute_constants, crop_and_flip, resize_images


def images(samples: int = 50, channels: int = 3, size: int = 16) -> torch.Tensor:
    """Return random images of bytes, the same for the same number of samples."""
    random = torch.Generator().manual_seed(samples)
    return torch.randint(0, 256, (samples, channels, size, size), dtype=torch.uint8, generator=random)


def prepared(raw: torch.Tensor, preprocess: str) -> torch.Tensor:
    """Return the images preprocessed with the constants computed from them."""
    scale, shift = compute_constants(raw, preprocess)
    return Preparation({"scale": scale, "shift": shift}, memory_format="contiguous")(raw)


def test_standardize_gives_mean_0_and_deviation_1_per_channel() -> None:
    """Check mean and deviation of each channel of standardized images."""
    values = prepared(images(5000, size=4), "standardize").double()  # more than one block
    assert values.mean((0, 2, 3)).abs().max() < 1e-6
    assert (values.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_minmax_fills_0_to_1_per_channel() -> None:
    """Check that minmax maps each channel to values from 0 to 1."""
    raw = images().float() - 100.0
    raw[:, 1] *= 0.1
    values = prepared(raw, "minmax")
    assert values.amin((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert values.amax((0, 2, 3)).tolist() == pytest.approx([1, 1, 1])


def test_normalize_divides_by_the_largest_magnitude() -> None:
    """Check that normalize divides all values by the largest magnitude."""
    raw = images().float() - 200.0
    assert torch.allclose(prepared(raw, "normalize"), raw / raw.abs().max())


@pytest.mark.parametrize("preprocess", ["standardize", "minmax", "normalize"])
def test_a_channel_without_spread_stays_finite(preprocess: str) -> None:
    """A constant channel stays finite under each preprocessing, and a channel of zeros stays zero."""
    raw = torch.zeros(4, 2, 3, 3, dtype=torch.uint8)
    raw[:, 1] = 7
    values = prepared(raw, preprocess)
    assert bool(values.isfinite().all())
    assert values[:, 0].abs().max() == 0


def test_an_unknown_preprocess_is_named() -> None:
    """Check that an unknown preprocessing raises ValueError."""
    with pytest.raises(ValueError, match="'whiten'; one of standardize"):
        compute_constants(images(), "whiten")


def test_preparation_keeps_the_raw_images_and_takes_the_memory_format() -> None:
    """Check that a Preparation returns mapped images in channels-last format and leaves the raw ones unchanged."""
    raw = images().float()
    before = raw.clone()
    out = Preparation({"scale": [2.0] * 3, "shift": [1.0] * 3}, memory_format="channels_last")(raw)
    assert torch.equal(raw, before)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(out, raw * 2 + 1)


@pytest.mark.slow
@given(st.integers(0, 5), st.sampled_from([8, 9, 28, 32]), st.sampled_from([1, 3]), st.integers(0, 3))
def test_crop_flip_spelled_out(samples: int, size: int, channels: int, epoch: int) -> None:
    """`crop_and_flip` equals a plain loop over images and pixels."""
    raw, ids = images(samples, channels, size), torch.arange(samples) * 7
    reach = size // 8
    expected = raw.clone()
    for i, draw in enumerate(compute_hashes(ids, "augmentation", 5, epoch).tolist()):
        down, across = draw % (2 * reach + 1) - reach, (draw >> 16) % (2 * reach + 1) - reach
        shifted = torch.zeros_like(raw[i])
        for y in range(size):
            for x in range(size):
                if 0 <= y + down < size and 0 <= x + across < size:
                    shifted[:, y, x] = raw[i, :, y + down, x + across]
        expected[i] = shifted.flip(2) if draw >> 32 & 1 else shifted
    assert torch.equal(crop_and_flip(raw, ids, seed=5, epoch=epoch), expected)


def test_augmentation_depends_on_the_sample_and_the_epoch_alone() -> None:
    """Check that crop_and_flip gives an image the same result in any minibatch, and another one for another epoch or seed."""
    raw, ids = images(40, size=32), torch.arange(40)
    whole = crop_and_flip(raw, ids, seed=1, epoch=3)
    assert torch.equal(crop_and_flip(raw[10:20], ids[10:20], seed=1, epoch=3), whole[10:20])
    assert not torch.equal(crop_and_flip(raw, ids, seed=1, epoch=4), whole)
    assert not torch.equal(crop_and_flip(raw, ids, seed=2, epoch=3), whole)


def test_two_epochs_in_a_row_show_both_sides_of_each_image() -> None:
    """crop_alternate mirrors each image in every second epoch, crop_flip by chance."""
    ids = torch.arange(64)
    raw = torch.zeros(64, 1, 8, 8, dtype=torch.uint8)
    raw[..., 5:7] = 1  # to the right of the middle, and after a shift by one pixel still
    right = [
        augment_images(raw, ids, Data(augment="crop_alternate"), seed=2, epoch=epoch)[..., 4:].amax((1, 2, 3)).bool()
        for epoch in range(1, 5)
    ]
    assert torch.equal(right[0], ~right[1]) and torch.equal(right[0], right[2]) and torch.equal(right[1], right[3])
    assert 16 < int(right[0].sum()) < 48
    by_chance = [crop_and_flip(raw, ids, seed=2, epoch=epoch)[..., 4:].amax((1, 2, 3)).bool() for epoch in (1, 2)]
    assert not torch.equal(by_chance[0], ~by_chance[1])


def test_a_smaller_image_is_the_weighted_mean_of_what_each_pixel_covers() -> None:
    """`resize_images` averages with triangular weights, as a plain computation does, and keeps the shape's proportions."""
    raw = images(2, size=32).float()
    for side in (16, 24, 20):
        weights = torch.zeros(side, 32, dtype=torch.float64)
        wide = 32 / side
        for new in range(side):
            middle = (new + 0.5) * wide
            for old in range(32):
                weights[new, old] = max(0.0, 1 - abs(old + 0.5 - middle) / wide)
        weights /= weights.sum(1, keepdim=True)
        expected = weights @ raw.double() @ weights.T
        assert resize_images(raw, side).double() == pytest.approx(expected, abs=1e-2)
    assert resize_images(raw, 32) is raw
    assert resize_images(torch.zeros(1, 3, 32, 48), 16).shape == (1, 3, 16, 24)
