"""Intervals that hold what they say, held against scipy's own tests; Holm's correction; the front."""

import numpy as np
import pytest
from scipy import stats

from crossover.study.report import adjust_by_holm, compute_interval, find_pareto_front


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_an_interval_and_its_p_are_students(n: int) -> None:
    """The 95 % interval and p of values are those of SciPy's t test."""
    values = np.random.default_rng(n).normal(0.4, 1.0, n)
    found, test = compute_interval(list(values)), stats.ttest_1samp(values, 0.0)
    assert (found.low, found.high) == pytest.approx(test.confidence_interval(0.95))
    assert found.p == pytest.approx(test.pvalue)


def test_of_one_and_of_equals_there_is_no_interval() -> None:
    """The interval of one value, or of equal ones, is infinite; p is 1 for one value or zeros, and None for equal values other than 0."""
    assert compute_interval([3.0]) == (3.0, -np.inf, np.inf, 1, 1.0)
    assert compute_interval([2.0, 2.0]) == (2.0, -np.inf, np.inf, 2, None)
    assert compute_interval([0.0, 0.0]).p == 1.0
    noise = [a - b for a, b in [(0.94, 0.93), (0.95, 0.94), (0.97, 0.96)]]
    assert len(set(noise)) > 1 and compute_interval(noise, scale=0.97).p is None
    assert compute_interval([1e-16, 0.0], scale=0.97).p == 1.0
    assert (
        found := compute_interval([0.01, 0.0100001], scale=0.97)
    ).p is not None and found.low < found.mean < found.high


def test_holm_by_hand() -> None:
    """`adjust_by_holm` returns the adjusted values in the given order: each p times the number of those not smaller, at most 1, never
    falling.
    """
    assert adjust_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (
        adjust_by_holm([0.6, 0.9]) == [1.0, 1.0]
        and adjust_by_holm([]) == []
        and adjust_by_holm([0.02, None]) == [0.04, 1.0]
    )


def test_the_front_is_what_nothing_beats() -> None:
    """`find_pareto_front` returns the indices of points that no other beats in both figures. `rises`: whether higher is better in the
    second.
    """
    points = [(1.0, 0.8), (2.0, 0.9), (2.0, 0.7), (3.0, 0.9)]
    assert find_pareto_front(points, rises=True) == [0, 1]
    assert find_pareto_front(points, rises=False) == [0, 2]


@pytest.mark.parametrize("n", [3, 5])
def test_intervals_cover_as_often_as_they_say(n: int) -> None:
    """The interval contains the true mean for 94.3 to 95.7 % of 10,000 drawn samples of n values."""
    draws = np.random.default_rng(21).normal(0.93, 0.01, (10_000, n))
    covered = sum(found.low <= 0.93 <= found.high for found in map(compute_interval, draws.tolist()))
    assert 0.943 <= covered / 10_000 <= 0.957


def test_pairs_that_do_not_differ_are_called_different_once_in_twenty_studies_at_most() -> None:
    """A share of 3 to 6 % of 2,000 drawn studies of four equal pairs has a pair with an adjusted p of at most 0.05."""
    draws = np.random.default_rng(22).normal(0.0, 0.01, (2_000, 4, 5))
    wrong = sum(min(adjust_by_holm([compute_interval(pair).p for pair in study])) <= 0.05 for study in draws.tolist())
    assert 0.03 <= wrong / 2_000 <= 0.06
