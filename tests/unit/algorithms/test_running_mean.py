"""The mean of vectors that come one after another is bit for bit the mean of all at once, also when it is put down and taken up again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms.averaging import RunningMean, mean


@given(
    weights=st.lists(st.integers(0, 600), min_size=1, max_size=9).filter(lambda weights: weights[0] > 0),
    equal=st.booleans(),
    pause=st.integers(0, 8),
    seed=st.integers(0, 1000),
)
def test_it_equals_the_mean_of_all(weights: list[int], equal: bool, pause: int, seed: int) -> None:
    """A running mean equals the mean of all vectors bit for bit, also if it is restored from its total in the middle."""
    if equal:
        weights = [weights[0]] * len(weights)
    random = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(50, generator=random) for _ in weights]
    running = RunningMean(weights, total=torch.full((50,), 7.0))
    for number, vector in enumerate(vectors):
        if number == pause:  # as after a checkpoint
            running = RunningMean(weights, total=running.total.clone(), added=running.added)
        running.add(vector.clone())
    assert torch.equal(running.result(), mean(vectors, weights))


@given(weights=st.lists(st.integers(0, 3), min_size=1, max_size=9).filter(any), seed=st.integers(0, 1000))
def test_what_weighs_nothing_might_as_well_not_be_there(weights: list[int], seed: int) -> None:
    """Vectors of weight 0 do not change the mean by a bit, even if they hold NaN."""
    random = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(50, generator=random) if weight else torch.full((50,), torch.nan) for weight in weights]
    kept = [(vector, weight) for vector, weight in zip(vectors, weights, strict=True) if weight]
    assert torch.equal(mean(vectors, weights), mean([each[0] for each in kept], [each[1] for each in kept]))


def test_it_knows_how_many_belong_into_it() -> None:
    """A running mean is complete after as many vectors as weights; its result before that, and one vector more, raise ValueError."""
    running = RunningMean([1, 1], total=torch.empty(2))
    running.add(torch.ones(2))
    assert not running.is_complete
    with pytest.raises(ValueError, match="1 of 2"):
        running.result()
    running.add(torch.ones(2))
    with pytest.raises(ValueError, match="all 2"):
        running.add(torch.ones(2))
    with pytest.raises(ValueError, match="weights"):
        RunningMean([], total=torch.empty(2))
    with pytest.raises(ValueError, match="weights"):
        RunningMean([1, -1], total=torch.empty(2))


def test_long_vectors_are_multiplied_piece_by_piece() -> None:
    """The running mean of vectors longer than one block equals the mean of all."""
    random = torch.Generator().manual_seed(1)
    vectors = [torch.randn(2 * 2**18 + 3, generator=random) for _ in range(3)]
    running = RunningMean([3, 5, 2], total=torch.empty_like(vectors[0]))
    for vector in vectors:
        running.add(vector)
    assert torch.equal(running.result(), mean(vectors, [3, 5, 2]))
