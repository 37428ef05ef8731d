"""The weighted mean."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from crossover.algorithms.averaging import mean
from tests import references

FLOATS = st.floats(-1e6, 1e6, width=32)


@st.composite
def weighted_vectors(draw: st.DrawFn) -> tuple[list[np.ndarray], list[int]]:
    """Draw one to nine vectors of one size, 0 included, and their weights, which are all equal in some draws."""
    count, size = draw(st.integers(1, 9)), draw(st.integers(0, 40))
    vectors = [draw(arrays.arrays(np.float32, size, elements=FLOATS)) for _ in range(count)]
    weights = draw(
        st.one_of(
            st.integers(1, 600).map(lambda n: [n] * count),
            st.lists(st.integers(1, 600), min_size=count, max_size=count),
        )
    )
    return vectors, weights


@given(weighted_vectors())
def test_the_mean_equals_its_definition_bit_for_bit(case: tuple[list[np.ndarray], list[int]]) -> None:
    """The weighted mean has the bits of the reference in NumPy."""
    vectors, weights = case
    result = mean([torch.from_numpy(vector.copy()) for vector in vectors], weights)
    assert result.numpy().tobytes() == references.mean(vectors, weights).tobytes()


@pytest.mark.parametrize("weights", [[3, 3, 3], [5, 1, 2]])
def test_the_mean_of_long_vectors_does_not_depend_on_blocks(weights: list[int]) -> None:
    """Check that the mean of vectors of 200,003 elements, computed block by block, has the bits of the reference in NumPy."""
    vectors = [torch.randn(200_003, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    assert mean(vectors, weights).numpy().tobytes() == references.mean([v.numpy() for v in vectors], weights).tobytes()


def test_one_vector_is_copied_and_stays() -> None:
    """The mean of one vector is a copy in `out`; changing it leaves the vector as it was."""
    vector = torch.tensor([1.0, -0.0])
    out = torch.empty(2)
    assert mean([vector], [7], out=out) is out
    out[0] = 9.0
    assert vector.tolist() == [1.0, -0.0]


@pytest.mark.parametrize(
    ("vectors", "weights", "message"),
    [
        ([], [], "none given"),
        ([torch.zeros(2)], [1, 2], "2 for 1 vectors"),
        ([torch.zeros(2)] * 2, [0, 0], "positive sum"),
        ([torch.zeros(2)] * 2, [2, -1], "positive sum"),
        ([torch.zeros(2), torch.zeros(3)], [1, 1], r"shapes \[\(2,\), \(3,\)\]"),
    ],
)
def test_misuse_is_named(vectors: list[torch.Tensor], weights: list[float], message: str) -> None:
    """`mean` raises ValueError with `message` for vectors or weights that do not fit."""
    with pytest.raises(ValueError, match=message):
        mean(vectors, weights)
