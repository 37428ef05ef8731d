"""Fitting a calibration's figures to printed seconds, through the simulator itself: whatever it says is what is fitted.

A figure must depend on each unknown in a straight line (seconds of something, or seconds per byte); probing the simulator gives its slope.
Several unknowns: least squares of relative errors, none below zero. One unknown: the median of what each figure implies, so that one odd
figure among three does not decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from crossover.simulation.calibration import Calibration

Set = Callable[[Calibration, float], Calibration]


@dataclass(frozen=True)
class PrintedFigure:
    """A printed figure, and how the simulator comes to it."""

    printed: float
    project: Callable[[Calibration], float]


@dataclass(frozen=True)
class Fitted:
    """One figure of the calibration, with its source."""

    figure: str
    value: float
    unit: str
    source: str

    def as_json(self) -> dict[str, Any]:
        return {"figure": self.figure, "value": float(f"{self.value:.4g}"), "unit": self.unit, "source": self.source}


@dataclass(frozen=True)
class FitResidual:
    """What was measured of a part of one session or row, in so many functions, beside what the fitted figures come to."""

    part: str
    session: str
    level: str
    functions: int
    measured_s: float
    fitted_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "measured_s": float(f"{self.measured_s:.4g}"),
            "fitted_s": float(f"{self.fitted_s:.4g}"),
            "error": round(self.fitted_s / self.measured_s - 1, 3),
        }


def fitted(
    base: Calibration, unknowns: Sequence[Set], observed: Sequence[PrintedFigure], *, probe: float = 1.0
) -> Calibration:
    """`base` with its unknowns set to what fits the observed figures best. `probe`: a step to measure slopes with."""
    found = base
    for unknown in unknowns:
        found = unknown(found, 0.0)
    at_zero = [each.project(found) for each in observed]
    slopes = [
        [(each.project(unknown(found, probe)) - zero) / probe for unknown in unknowns]
        for each, zero in zip(observed, at_zero, strict=True)
    ]
    left = [each.printed - zero for each, zero in zip(observed, at_zero, strict=True)]
    values = _one(slopes, left) if len(unknowns) == 1 else _several(slopes, left, [each.printed for each in observed])
    for unknown, value in zip(unknowns, values, strict=True):
        found = unknown(found, value)
    return found


def _one(slopes: Sequence[Sequence[float]], left: Sequence[float]) -> list[float]:
    return [max(0.0, median(rest / slope[0] for slope, rest in zip(slopes, left, strict=True)))]


def _several(slopes: Sequence[Sequence[float]], left: Sequence[float], printed: Sequence[float]) -> list[float]:
    """Unknowns that come out negative are set to zero and the rest fitted again."""
    weights = 1 / np.asarray(printed)
    matrix, right = np.asarray(slopes) * weights[:, None], np.asarray(left) * weights
    kept = list(range(matrix.shape[1]))
    while kept:
        solution = np.linalg.lstsq(matrix[:, kept], right, rcond=None)[0]
        if (solution >= 0).all():
            break
        kept = [each for each, value in zip(kept, solution, strict=True) if value >= 0]
    values = [0.0] * matrix.shape[1]
    for each, value in zip(kept, solution if kept else (), strict=True):
        values[each] = float(value)
    return values
