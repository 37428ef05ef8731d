"""What runs of several seeds say: intervals of means, and paired differences that were named beforehand.

Student's interval of a mean takes runs of one setting for independent draws, near enough to normal that their mean is; of two it is wide,
and of one there is none. Differences are paired by seed. Holm's correction keeps the chance that any of the pairs is called different
though none is at 5 %: S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.05


class MeanInterval(NamedTuple):
    """Mean of `n` with its 95 % interval; infinitely wide of one. `p`: two-sided, that the mean is 0."""

    mean: float
    low: float
    high: float
    n: int
    p: float


def interval(values: Sequence[float]) -> MeanInterval:
    """Student's, of finite values, one at least."""
    from scipy.stats import t  # a second, for --help

    n, middle = len(values), fmean(values)
    if n < 2:
        return MeanInterval(middle, -inf, inf, n, 1.0)
    error = stdev(values) / sqrt(n)
    if error == 0:  # all alike: nothing varies that a test could weigh a difference against
        return MeanInterval(middle, middle, middle, n, 0.0 if middle else 1.0)
    half = float(t.isf(LEVEL / 2, n - 1)) * error
    return MeanInterval(middle, middle - half, middle + half, n, float(2 * t.sf(abs(middle) / error, n - 1)))


def holm(p: Sequence[float]) -> list[float]:
    """p-values adjusted for how many there are, in their order: at most LEVEL means different."""
    adjusted, least = [1.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda n: p[n])):
        least = max(least, min(1.0, (len(p) - rank) * p[at]))
        adjusted[at] = least
    return adjusted


def front(points: Sequence[tuple[float, float]], *, rises: bool) -> list[int]:
    """Which (cost, value) no other beats in both: less cost, and more of the value, or less where it does not rise."""
    signed = [(cost, -value if rises else value) for cost, value in points]
    return [
        n
        for n, (cost, value) in enumerate(signed)
        if not any(a <= cost and b <= value and (a, b) != (cost, value) for a, b in signed)
    ]
