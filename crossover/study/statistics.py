"""What runs of several seeds say: intervals of means, and paired differences that were named beforehand.

Student's interval of a mean takes runs of one setting for independent draws, near enough to normal that their mean is; of two it is wide,
and of one there is none, nor of several that are all alike. Differences are paired by seed. Holm's correction keeps the chance that any of
the pairs is called different though none is at 5 %: S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

LEVEL = 0.05
ALIKE = 1e-12  # of the figures' size: what subtracting them leaves of equal differences


class MeanInterval(NamedTuple):
    """Mean of `n` with its 95 % interval; infinitely wide of one, and of values all alike. `p`: two-sided, that the mean is 0; None where
    all are alike and it is not.
    """

    mean: float
    low: float
    high: float
    n: int
    p: float | None


def interval(values: Sequence[float], *, scale: float = 0.0) -> MeanInterval:
    """Student's, of finite values, one at least. `scale`: how large the figures are that these are differences of."""
    from scipy.stats import t  # a second, for --help

    n, middle = len(values), fmean(values)
    if n < 2:
        return MeanInterval(middle, -inf, inf, n, 1.0)
    spread, least = stdev(values), ALIKE * max(scale, *map(abs, values))
    if spread <= least:  # nothing varies that a test could weigh a difference against
        return MeanInterval(middle, -inf, inf, n, 1.0 if abs(middle) <= least else None)
    error = spread / sqrt(n)
    half = float(t.isf(LEVEL / 2, n - 1)) * error
    return MeanInterval(middle, middle - half, middle + half, n, float(2 * t.sf(abs(middle) / error, n - 1)))


def holm(p: Sequence[float | None]) -> list[float]:
    """p-values adjusted for how many there are, in their order: at most LEVEL means different. One that is not known counts as 1."""
    known = [1.0 if each is None else each for each in p]
    adjusted, least = [1.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda n: known[n])):
        least = max(least, min(1.0, (len(p) - rank) * known[at]))
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
