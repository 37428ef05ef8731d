"""Minibatches as objects: a round trip, no copy, and no damage that goes unnoticed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import Corrupt
from crossover.learning.batch import Batch, decode, encode


def batch(samples: int = 3, *, dtype: torch.dtype = torch.uint8, shape: tuple[int, int, int] = (3, 5, 4)) -> Batch:
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (samples, *shape), generator=random).to(dtype)
    return Batch(images, torch.randint(0, 10, (samples,), generator=random), torch.arange(samples) + 2**40)


@given(st.integers(0, 5), st.sampled_from([torch.uint8, torch.float32]), st.sampled_from([(1, 8, 8), (3, 5, 7)]))
def test_a_round_trip_keeps_everything(samples: int, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    given_ = batch(samples, dtype=dtype, shape=shape)
    read = decode(encode(given_))
    assert read.samples == samples
    for name in ("inputs", "labels", "sample_ids"):
        before, after = getattr(given_, name), getattr(read, name)
        assert torch.equal(before, after) and before.dtype == after.dtype


def test_reading_does_not_copy() -> None:
    buffer = bytearray(encode(batch()))
    read = decode(buffer)
    buffer[-1] ^= 255
    assert int(read.inputs[-1, -1, -1, -1]) == buffer[-1]


@given(st.data())
def test_any_changed_byte_behind_the_header_is_noticed(data: st.DataObject) -> None:
    body = bytearray(encode(batch()))
    body[data.draw(st.integers(64, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt, match="checksum"):
        decode(body)


@given(st.data())
def test_any_changed_byte_of_the_header_is_noticed_or_without_effect(data: st.DataObject) -> None:
    body = bytearray(encode(batch()))
    body[data.draw(st.integers(0, 63))] ^= data.draw(st.integers(1, 255))
    try:
        read = decode(body)
    except Corrupt:
        return
    assert read.samples * read.inputs[0].numel() == batch().inputs.numel()


@pytest.mark.parametrize("cut", [0, 3, 63, 64, 100, -1])
def test_a_cut_object_is_noticed(cut: int) -> None:
    with pytest.raises(Corrupt):
        decode(encode(batch())[:cut])


def test_what_does_not_belong_together_is_refused() -> None:
    good = batch()
    for wrong in (
        Batch(good.inputs[:2], good.labels, good.sample_ids),
        Batch(good.inputs, good.labels[:2], good.sample_ids),
        Batch(good.inputs.double(), good.labels, good.sample_ids),
        Batch(good.inputs[0], good.labels, good.sample_ids),
    ):
        with pytest.raises(ValueError, match=r"\(N, C, H, W\) uint8 or float32"):
            encode(wrong)
