"""Tensors as buffers and back: the same memory, kept alive, and no warning."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms import buffers
from crossover.errors import Corrupt


@given(st.binary(max_size=200).map(lambda data: data[: len(data) // 4 * 4]), st.sampled_from([bytes, bytearray]))
def test_a_round_trip_gives_the_same_bytes(data: bytes, kind: type[bytes] | type[bytearray]) -> None:
    """Check that a view of a tensor over a buffer has the buffer's bytes. `kind`: the buffer's type."""
    assert bytes(buffers.view(buffers.tensor(kind(data)))) == data


def test_a_view_is_the_tensors_own_memory() -> None:
    """Check that a view is writable bytes, and that writing to it changes the tensor."""
    tensor = torch.zeros(4)
    view = buffers.view(tensor)
    assert (view.format, view.nbytes, view.readonly) == ("B", 16, False)
    view[:4] = b"\0\0\x80\x3f"
    assert tensor.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_tensor_is_the_buffers_own_memory() -> None:
    """Check that writing to the tensor changes the buffer."""
    buffer = bytearray(8)
    buffers.tensor(buffer)[1] = 1.0
    assert buffer == b"\0\0\0\0\0\0\x80\x3f"


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_memory_outlives_its_owner(kind: type[bytes] | type[bytearray]) -> None:
    """Views and tensors stay valid after the objects whose memory they share are gone."""
    views = [buffers.view(torch.full((50_000,), float(i))) for i in range(20)]
    tensors = [buffers.tensor(kind(memoryview(view).tobytes())) for view in views]
    gc.collect()
    clutter = [torch.full((50_000,), -1.0) for _ in range(20)]
    assert [float(tensor.sum()) for tensor in tensors] == [50_000.0 * i for i in range(20)]
    assert [float(buffers.tensor(view).sum()) for view in views] == [50_000.0 * i for i in range(20)]
    del clutter


def test_parts_of_elements_are_refused() -> None:
    """A buffer whose length is no multiple of four bytes raises Corrupt."""
    with pytest.raises(Corrupt, match="7 bytes are not whole elements"):
        buffers.tensor(b"1234567")


def test_strided_memory_is_refused() -> None:
    """Check that a view of a tensor that is not contiguous raises ValueError."""
    with pytest.raises(ValueError, match="not contiguous"):
        buffers.view(torch.zeros(4, 4).t()[:2])
