"""What is left out of the deep sweeps is drawn, and leaves no kind of thing out."""

import itertools

import pytest

from tests.sampling import drawn

KINDS = list(itertools.product("abcd", range(5)))


@pytest.mark.parametrize("seed", range(5))
def test_each_kind_occurs_and_few_do_twice(seed: int) -> None:
    """A sample of pairs has every value of both parts, in as few pairs as possible."""
    sample = [KINDS[index] for index in drawn(KINDS, seed=seed)]
    assert {kind for pair in sample for kind in pair} == {*"abcd", *range(5)}
    assert len(sample) == 5


def test_a_seed_draws_the_same_and_another_one_others() -> None:
    """A seed draws the same sample each time, and different seeds different ones."""
    assert drawn(KINDS, seed=1) == drawn(KINDS, seed=1)
    assert len({tuple(drawn(KINDS, seed=seed)) for seed in range(5)}) > 1
