"""Minibatches as objects: a round trip, no copy, and no damage that goes unnoticed."""

import hashlib
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import Corrupt
from crossover.learning.batches import INPUTS, LABELS, Batch, decode_batch, encode_batch


def batch(samples: int = 3, *, dtype: torch.dtype = torch.uint8, shape: tuple[int, int, int] = (3, 5, 4)) -> Batch:
    """Return a minibatch of random images with labels and large sample numbers, the same at each call."""
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (samples, *shape), generator=random).to(dtype)
    return Batch(images, torch.randint(0, 10, (samples,), generator=random), torch.arange(samples) + 2**40)


@given(st.integers(0, 5), st.sampled_from([torch.uint8, torch.float32]), st.sampled_from([(1, 8, 8), (3, 5, 7)]))
def test_a_round_trip_keeps_everything(samples: int, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """An encoded and decoded minibatch has equal inputs, labels and sample numbers, with their types."""
    given_ = batch(samples, dtype=dtype, shape=shape)
    read = decode_batch(encode_batch(given_))
    assert read.samples == samples
    for name in ("inputs", "labels", "sample_ids"):
        before, after = getattr(given_, name), getattr(read, name)
        assert torch.equal(before, after) and before.dtype == after.dtype


def test_reading_does_not_copy() -> None:
    """A decoded minibatch shares the memory of its bytes."""
    buffer = bytearray(encode_batch(batch()))
    read = decode_batch(buffer)
    buffer[-1] ^= 255
    assert int(read.inputs[-1, -1, -1, -1]) == buffer[-1]


@given(st.data())
def test_any_changed_byte_behind_the_header_is_noticed(data: st.DataObject) -> None:
    """Check that decoding raises Corrupt if any byte after the header is changed."""
    body = bytearray(encode_batch(batch()))
    body[data.draw(st.integers(64, len(body) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt, match="checksum"):
        decode_batch(body)


@given(st.data())
def test_any_changed_byte_of_the_header_is_noticed_or_without_effect(data: st.DataObject) -> None:
    """A minibatch with a changed byte in its header raises Corrupt, or decodes to as many values."""
    body = bytearray(encode_batch(batch()))
    body[data.draw(st.integers(0, 63))] ^= data.draw(st.integers(1, 255))
    try:
        read = decode_batch(body)
    except Corrupt:
        return
    assert read.samples * read.inputs[0].numel() == batch().inputs.numel()


@pytest.mark.parametrize("cut", [0, 3, 63, 64, 100, -1])
def test_a_cut_object_is_noticed(cut: int) -> None:
    """Check that decoding raises Corrupt for the first `cut` bytes of a minibatch."""
    with pytest.raises(Corrupt):
        decode_batch(encode_batch(batch())[:cut])


def test_what_does_not_belong_together_is_refused() -> None:
    """Encoding a minibatch whose parts differ in length, type or dimensions raises ValueError."""
    good = batch()
    for wrong, says in (
        (Batch(good.inputs[:2], good.labels, good.sample_ids), "2 inputs and 3 labels"),
        (Batch(good.inputs, good.labels[:2], good.sample_ids), "3 inputs and 2 labels"),
        (Batch(good.inputs.to(torch.complex64), good.labels, good.sample_ids), "inputs are torch.complex64"),
        (Batch(good.inputs[0], good.labels, good.sample_ids[:2]), r"\(2,\) sample ids for 3 samples"),
        (Batch(good.inputs[:, :0], good.labels, good.sample_ids), "one row for each sample is expected"),
    ):
        with pytest.raises(ValueError, match=says):
            encode_batch(wrong)


@pytest.mark.parametrize(
    ("dtype", "shape", "digest"),
    [
        (torch.uint8, (3, 5, 4), "f8da4536c835a3bf"),
        (torch.uint8, (1, 3, 3), "add8d6fc9df500a3"),
        (torch.float32, (3, 5, 7), "f18a7e7ce113845c"),
    ],
)
def test_the_bytes_of_images_are_those_of_version_1(dtype: torch.dtype, shape: tuple[int, ...], digest: str) -> None:
    """Encoded images have the bytes of format version 1, because staged data is found by a fingerprint without a version."""
    images = (torch.arange(3 * math.prod(shape)) % 251).view(3, *shape).to(dtype)
    written = encode_batch(Batch(images, torch.tensor([2, 0, 9]), torch.tensor([7, 1, 2**40])))
    assert hashlib.sha256(written).hexdigest()[:16] == digest


SHAPES = st.lists(st.integers(1, 4), max_size=6).map(tuple)


@given(st.integers(0, 3), SHAPES, SHAPES, st.sampled_from(INPUTS), st.sampled_from(LABELS))
def test_any_shape_and_dtype_goes_and_comes_back(
    samples: int, inputs: tuple[int, ...], labels: tuple[int, ...], kind: torch.dtype, label_kind: torch.dtype
) -> None:
    """Check that a decoded minibatch equals the encoded one for inputs and labels of any shape and dtype. `inputs`, `labels`: shapes of one
    sample; `kind`, `label_kind`: dtypes.
    """
    given_ = general(samples, inputs, labels, kind, label_kind)
    read = decode_batch(encode_batch(given_))
    for name in ("inputs", "labels", "sample_ids"):
        before, after = getattr(given_, name), getattr(read, name)
        assert before.shape == after.shape and before.dtype == after.dtype and torch.equal(before, after)


@pytest.mark.parametrize(
    ("inputs", "labels", "kind", "label_kind"),
    [
        ((1, 8, 8), (), torch.uint8, torch.int64),
        ((3, 4, 4), (), torch.float32, torch.int64),
        ((16,), (), torch.int64, torch.int64),
        ((16,), (16,), torch.int32, torch.int64),
        ((8,), (1,), torch.float32, torch.float32),
        ((), (2, 1, 3), torch.bool, torch.int8),
    ],
)
def test_no_changed_byte_of_a_header_makes_other_tensors(
    inputs: tuple[int, ...], labels: tuple[int, ...], kind: torch.dtype, label_kind: torch.dtype
) -> None:
    """A minibatch with a changed byte in its header raises Corrupt, or decodes to the same inputs and labels."""
    given_ = general(2, inputs, labels, kind, label_kind)
    written = encode_batch(given_)
    for place, change in itertools.product(range(64), range(1, 32)):
        body = bytearray(written)
        body[place] ^= change
        try:
            read = decode_batch(body)
        except Corrupt:
            continue
        for name in ("inputs", "labels"):  # what has no meaning was changed, then
            found, expected = getattr(read, name), getattr(given_, name)
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (place, change)
            assert torch.equal(found, expected)


def general(
    samples: int, inputs: tuple[int, ...], labels: tuple[int, ...], kind: torch.dtype, label_kind: torch.dtype
) -> Batch:
    """Return a minibatch of counted numbers. `inputs`, `labels`: shapes of one sample's input and label; `kind`, `label_kind`: their
    types.
    """

    def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return counted numbers modulo 100 of this shape for each sample."""
        return (torch.arange(samples * math.prod(shape)) % 100).view(samples, *shape).to(dtype)

    return Batch(numbers(inputs, kind), numbers(labels, label_kind), torch.arange(samples))
