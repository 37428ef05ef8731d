"""Intervals that hold what they say, held against scipy's own tests; Holm's correction; the front."""

import numpy as np
import pytest
from scipy import stats

from crossover.study.statistics import front, holm, interval


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_an_interval_and_its_p_are_students(n: int) -> None:
    values = np.random.default_rng(n).normal(0.4, 1.0, n)
    found, test = interval(list(values)), stats.ttest_1samp(values, 0.0)
    assert (found.low, found.high) == pytest.approx(test.confidence_interval(0.95))
    assert found.p == pytest.approx(test.pvalue)


def test_of_one_and_of_equals_there_is_no_interval() -> None:
    """Nothing varies that a difference could be weighed against, so certainty is not claimed; that 0 is 0 needs no test."""
    assert interval([3.0]) == (3.0, -np.inf, np.inf, 1, 1.0)
    assert interval([2.0, 2.0]) == (2.0, -np.inf, np.inf, 2, None)
    assert interval([0.0, 0.0]).p == 1.0
    noise = [a - b for a, b in [(0.94, 0.93), (0.95, 0.94), (0.97, 0.96)]]
    assert len(set(noise)) > 1 and interval(noise, scale=0.97).p is None
    assert interval([1e-16, 0.0], scale=0.97).p == 1.0
    assert (found := interval([0.01, 0.0100001], scale=0.97)).p is not None and found.low < found.mean < found.high


def test_holm_by_hand() -> None:
    """Four of them: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04, which must not be below the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([0.02, None]) == [0.04, 1.0]


def test_the_front_is_what_nothing_beats() -> None:
    points = [(1.0, 0.8), (2.0, 0.9), (2.0, 0.7), (3.0, 0.9)]
    assert front(points, rises=True) == [0, 1]
    assert front(points, rises=False) == [0, 2]
