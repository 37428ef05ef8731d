"""Encoding of updates: nothing lost, the smaller form chosen, bytes from elsewhere not trusted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crossover.algorithms.compression import add_to, encode
from crossover.algorithms.encoded_sizes import SPARSE_HEADER, sparse_bytes

finite = st.floats(-1e6, 1e6, width=32)


@given(data=st.data(), elements=st.integers(1, 200), tail=st.integers(0, 5))
def test_what_is_encoded_is_added(data: st.DataObject, elements: int, tail: int) -> None:
    """Adding an encoded update adds its values at its indexes and its tail, in the smaller of the dense and the sparse form."""
    chosen = sorted(data.draw(st.sets(st.integers(0, elements - 1))))
    values = torch.tensor(data.draw(st.lists(finite, min_size=len(chosen), max_size=len(chosen))))
    rest = torch.tensor(data.draw(st.lists(finite, min_size=tail, max_size=tail)))
    update = encode(
        torch.tensor(chosen, dtype=torch.int64),
        values.float(),
        elements=elements + tail,
        tail=rest.float() if tail else None,
    )
    expected = torch.zeros(elements + tail)
    expected[chosen] = values.float()
    expected[elements:] = rest.float()
    target = torch.full((elements + tail,), 0.5)
    add_to(target, update)
    assert torch.equal(target, expected + 0.5)
    size = update.numel() * update.element_size()
    assert size == min(4 * (elements + tail), sparse_bytes(len(chosen), tail=tail))


def sample() -> Tensor:
    """Return the encoding of a vector of 100 elements, of which three are set and the last is the tail."""
    return encode(torch.tensor([1, 5, 9]), torch.tensor([1.0, 2.0, 3.0]), elements=100, tail=torch.tensor([4.0]))


def test_the_bytes_of_the_sparse_form_are_as_documented() -> None:
    """Check size, header and indices of an encoded update."""
    update = sample()
    assert update.dtype == torch.uint8 and update.numel() == SPARSE_HEADER.size + 3 * 8 + 4 == sparse_bytes(3, tail=1)
    assert bytes(update[:16].tolist()) == (100).to_bytes(8, "little") + bytes([3, 0, 0, 0, 1, 0, 0, 0])
    assert update[16:28].view(torch.int32).tolist() == [1, 5, 9]


def changed(at: int, value: int) -> Tensor:
    """Return the encoded sample with the element at `at` replaced."""
    update = sample()
    update[at] = value
    return update


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (sample()[:-1].clone(), "take"),
        (sample()[:10].clone(), "header"),
        (changed(0, 99), "made for 99 elements"),
        (changed(8, 4), "4 pairs"),
        (changed(8, 255), "255 pairs"),
        (changed(12, 200), "tail of 200"),
        (changed(16, 5), "ascending"),
        (changed(19, 255), "ascending"),
        (changed(24, 99), "ascending within 0 to 98"),
        (torch.tensor([1.0, 2.0]), "2 elements for a vector of 100"),
        (torch.full((100,), float("nan")), "NaN"),
        (encode(torch.tensor([3]), torch.tensor([float("inf")]), elements=100), "NaN or infinite"),
        (encode(torch.tensor([3]), torch.ones(1), elements=100, tail=torch.tensor([float("nan")])), "NaN or infinite"),
        (torch.ones(4, 25), "100 elements"),
        (torch.ones(100, dtype=torch.float64), "float64"),
    ],
)
def test_what_is_no_update_is_refused_and_changes_nothing(update: Tensor, says: str) -> None:
    """Bytes that are no update raise ValueError with `says` and leave the target unchanged."""
    target = torch.zeros(100)
    with pytest.raises(ValueError, match=says):
        add_to(target, update)
    assert not target.any()


def test_what_is_finite_is_taken_also_where_its_sum_is_not() -> None:
    """Finite values are accepted even if their sum exceeds float32."""
    target = torch.zeros(100)
    add_to(target, encode(torch.arange(4), torch.full((4,), 3e38), elements=100))
    assert target[:4].eq(3e38).all() and not target[4:].any()


@given(noise=st.lists(st.tuples(st.integers(0, 43), st.integers(0, 255)), max_size=6), cut=st.integers(0, 44))
def test_mutated_bytes_are_refused_or_harmless(noise: list[tuple[int, int]], cut: int) -> None:
    """Altered bytes of an update raise ValueError and change nothing, or leave the target finite."""
    update, target = sample(), torch.zeros(100)
    for at, value in noise:
        update[at] = value
    try:
        add_to(target, update[:cut].clone())
    except ValueError:
        assert not target.any()
    else:
        assert bool(target.isfinite().all())
