"""Robust rules against straightforward references, and what an attacker cannot do to them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from crossover.algorithms import robust
from crossover.errors import Refused
from tests import references

FINITE = st.floats(-(2.0**60), 2.0**60, width=32).map(
    lambda x: x + 0.0
)  # -0.0 becomes 0.0: numpy's sort does not order zeros


@st.composite
def stacks(draw: st.DrawFn, *, smallest: int = 1) -> np.ndarray:
    """Draw the vectors of `smallest` to twelve workers as the rows of a matrix, finite values only."""
    shape = draw(st.integers(smallest, 12)), draw(st.integers(1, 30))
    return draw(arrays.arrays(np.float32, shape, elements=FINITE))


def rows(stack: np.ndarray) -> list[torch.Tensor]:
    """Return the matrix's rows as tensors of their own."""
    return [torch.from_numpy(row.copy()) for row in stack]


@given(stacks())
def test_median(stack: np.ndarray) -> None:
    """The median of vectors has the bits of the reference in NumPy."""
    assert robust.median(rows(stack)).numpy().tobytes() == references.median(list(stack)).tobytes()


@given(stacks(), st.data())
def test_trimmed_mean(stack: np.ndarray, data: st.DataObject) -> None:
    """The trimmed mean of vectors has the bits of the reference in NumPy."""
    trim = data.draw(st.integers(0, (len(stack) - 1) // 2))
    expected = references.trimmed_mean(list(stack), trim)
    assert robust.trimmed_mean(rows(stack), trim=trim).numpy().tobytes() == expected.tobytes()


@pytest.mark.slow
@given(stacks(smallest=3), st.data())
def test_krum(stack: np.ndarray, data: st.DataObject) -> None:
    """Krum chooses the same vectors as the reference in NumPy."""
    count = len(stack)
    faulty = data.draw(st.integers(0, (count - 3) // 2))
    select = data.draw(st.integers(1, count - faulty - 2))
    # Exact in float64 where the coordinates are small integers, so that the order of the sums cannot matter.
    small = np.round(stack / max(1.0, float(np.abs(stack).max())) * 1000).astype(np.float32)
    expected = references.krum(list(small), faulty=faulty, select=select)
    assert robust.choose_by_krum(rows(small), faulty=faulty, select=select) == expected


def test_ties_go_to_the_lower_index() -> None:
    """Krum chooses the first of equal vectors."""
    assert robust.choose_by_krum([torch.ones(3)] * 5, faulty=1, select=2) == [0, 1]


@pytest.mark.parametrize("count", [1, 3, 5, 7, 9])
def test_equal_values_keep_their_places(count: int) -> None:
    """The median of zeros of either sign is the middle input with its sign, since equal values are never exchanged."""
    for first_sign in (1.0, -1.0):
        vectors = [torch.full((70_001,), 0.0 * first_sign * (-1) ** i) for i in range(count)]
        assert torch.equal(torch.signbit(robust.median(vectors)), torch.signbit(vectors[count // 2]))


def test_infinite_vectors_are_never_chosen() -> None:
    """Check that Krum does not choose an infinite vector."""
    vectors = [torch.full((4,), float("inf")), *(torch.full((4,), 0.1 * i) for i in range(4))]
    assert 0 not in robust.choose_by_krum(vectors, faulty=1, select=2)


def test_nan_is_refused_by_every_rule() -> None:
    """Check that median, trimmed mean and Krum raise Refused for a vector with NaN."""
    vectors = [torch.zeros(3), torch.tensor([0.0, float("nan"), 0.0]), torch.zeros(3)]
    for rule in (
        robust.median,
        lambda v: robust.trimmed_mean(v, trim=1),
        lambda v: robust.krum(v, faulty=0),
    ):
        with pytest.raises(Refused, match="number 1 of 3 holds NaN"):
            rule(vectors)


def test_parameters_outside_their_bounds_are_refused() -> None:
    """Check that too large values of trim, faulty or select, and vectors of different lengths, raise Refused."""
    vectors = [torch.zeros(2)] * 4
    with pytest.raises(Refused, match="trim: 2 of 4"):
        robust.trimmed_mean(vectors, trim=2)
    with pytest.raises(Refused, match=r"2 \* faulty \+ 3 = 5"):
        robust.krum(vectors, faulty=1)
    with pytest.raises(Refused, match="select: 3; 1 to 2 is expected"):
        robust.krum(vectors, faulty=0, select=3)
    with pytest.raises(Refused, match="shapes"):
        robust.median([torch.zeros(2), torch.zeros(3)])
