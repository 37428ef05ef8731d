"""When the loss has stopped falling fast: the knee of its curve, and what the next seconds can still be expected to bring.

MLLess's scale-in auto-tuner removes a worker once the loss is past its knee and fewer workers would lose little. Plain numbers, no torch:
the supervisor that decides is a small function.
"""

from collections.abc import Sequence
from math import exp, log

SPAN = 20  # of the smoothing, in steps


def smoothed(losses: Sequence[float], *, span: int = SPAN) -> list[float]:
    """The exponentially weighted moving average with weights normalised, so that the first values are not held back: alpha = 2 / (span +
    1).
    """
    if span < 1:
        raise ValueError(f"span: {span}; at least 1 is expected")
    keep = 1 - 2 / (span + 1)
    total, weight, result = 0.0, 0.0, []
    for loss in losses:
        total, weight = keep * total + loss, keep * weight + 1
        result.append(total / weight)
    return result


def knee(losses: Sequence[float], *, sensitivity: float = 0.1) -> int | None:
    """The index of the curve's knee, or None while it has none: where a falling, flattening curve lies furthest below the chord of its
    ends.

    Both axes are scaled to 0..1 (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011). A straight line lies on its chord; the knee
    counts once the curve is `sensitivity` below it. None for a curve that does not fall, or with fewer than 3 values.
    """
    last = len(losses) - 1
    if last < 2:
        return None
    fall = losses[0] - losses[last]
    if not fall > 0:
        return None
    below = [(1 - i / last) - (loss - losses[last]) / fall for i, loss in enumerate(losses)]
    deepest = max(range(last + 1), key=below.__getitem__)
    return deepest if 0 < deepest < last and below[deepest] >= sensitivity else None


def predicted_reduction(times_s: Sequence[float], losses: Sequence[float], *, ahead_s: float) -> float:
    """The share of the present loss that the next `ahead_s` seconds are expected to take away: 0.1 is ten percent; at least 0.

    A straight line through log(loss) over time, by least squares: the loss shrinks by the same share in equal times. Needs 2 points at
    different times and positive losses; otherwise 1.0, so that nobody is removed on no evidence.
    """
    if len(times_s) != len(losses):
        raise ValueError(f"times: {len(times_s)} for {len(losses)} losses; one each is needed")
    if len(losses) < 2 or min(losses) <= 0:
        return 1.0
    middle_s = sum(times_s) / len(times_s)
    spread = sum((t - middle_s) ** 2 for t in times_s)
    if spread <= 0:
        return 1.0
    slope = sum((t - middle_s) * log(loss) for t, loss in zip(times_s, losses, strict=True)) / spread
    return max(0.0, 1 - exp(slope * ahead_s))
