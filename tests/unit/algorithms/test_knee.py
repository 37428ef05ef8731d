"""The knee of a loss curve, and what the next seconds promise."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms.schedule import find_knee, predict_reduction, smooth


def test_the_knee_of_two_straight_lines_is_where_they_meet() -> None:
    """Check that find_knee gives the index at which a steep line turns into a flat one."""
    curve = [10 - i for i in range(9)] + [1 - 0.01 * i for i in range(1, 30)]
    assert find_knee(curve) == 9


def test_curves_without_a_knee_have_none() -> None:
    """`find_knee` returns None for straight, rising, level, too short and ever steeper curves, and for NaN."""
    assert find_knee([5 - 0.1 * i for i in range(40)]) is None  # a straight line
    assert find_knee([1.0, 2.0, 3.0]) is None  # rising
    assert find_knee([1.0] * 20) is None  # level
    assert find_knee([2.0, 1.0]) is None  # too short
    assert find_knee([10 - 0.01 * i * i for i in range(30)]) is None  # ever faster
    assert find_knee([2.0, float("nan"), float("nan")]) is None


@given(rate=st.floats(0.1, 1.0), count=st.integers(30, 200), scale=st.floats(0.01, 1e4), floor=st.floats(0, 100))
def test_scaling_and_shifting_the_loss_moves_no_knee(rate: float, count: int, scale: float, floor: float) -> None:
    """Check that the knee of an exponential curve moves by at most one index if the losses are scaled and shifted."""
    curve = [exp(-rate * i) for i in range(count)]
    found = find_knee(curve)
    assert found is not None and 0 < found < count // 2
    moved = find_knee([floor * scale + scale * loss for loss in curve])
    assert moved is not None and abs(moved - found) <= 1


def test_smoothing_keeps_a_level_curve_level_and_damps_noise() -> None:
    """Check smooth on a level curve, alternating noise, a span of 1, pandas' result for three numbers, and a span of 0, which raises
    ValueError.
    """
    assert smooth([3.0] * 5) == pytest.approx([3.0] * 5)
    noisy = [1.0 + 0.5 * (-1) ** i for i in range(100)]
    assert max(abs(value - 1) for value in smooth(noisy)[40:]) < 0.05
    assert smooth([4.0, 2.0], span=1) == [4.0, 2.0]
    # Pandas' ewm(span=3, adjust=True).mean() of 1, 2, 4.
    assert smooth([1.0, 2.0, 4.0], span=3) == pytest.approx([1.0, 5 / 3, 3.0])
    with pytest.raises(ValueError, match="at least 1"):
        smooth([1.0], span=0)


def test_an_exponential_is_predicted_exactly() -> None:
    """The predicted reduction of an exponentially falling loss is exact; that of a rising one is 0."""
    times = [0.5 * i for i in range(20)]
    assert predict_reduction(times, [3 * exp(-0.2 * t) for t in times], ahead_s=10) == pytest.approx(1 - exp(-2))
    assert predict_reduction(times, [3 * exp(+0.2 * t) for t in times], ahead_s=10) == 0.0


def test_no_evidence_is_no_reason_to_remove_anybody() -> None:
    """The predicted reduction is 1, its largest value, if there are too few losses to predict from."""
    assert predict_reduction([1.0], [2.0], ahead_s=10) == 1.0
    assert predict_reduction([1.0, 1.0], [2.0, 1.0], ahead_s=10) == 1.0
    assert predict_reduction([1.0, 2.0], [2.0, 0.0], ahead_s=10) == 1.0
    with pytest.raises(ValueError, match="one each"):
        predict_reduction([1.0], [2.0, 1.0], ahead_s=10)
