"""How sure figures are that were drawn again and again: percentiles, and who is ahead in paired draws."""

from collections.abc import Callable, Mapping, Sequence
from math import floor, inf, nan
from typing import Any, NamedTuple

from crossover.reports import display

SURE = 0.95  # the share of paired draws from which on one is said to be cheaper, or sooner
LEVEL = 1.01  # by how much at least: a lead that would be printed as 1.00x is none
OPEN = "too close to call"


class Band(NamedTuple):
    """Percentiles over the draws."""

    p5: float
    p50: float
    p95: float

    def as_json(self) -> dict[str, Any]:
        return {"label": "projected", **self._asdict()}


def band(values: Sequence[float]) -> Band:
    """Percentiles 5, 50 and 95 of the draws that have an end; NaN where none has. Between two values by Hazen's rule, which takes each for
    the middle of its part.
    """
    ordered = sorted(value for value in values if value < inf)
    return Band(*(_percentile(ordered, share) for share in (0.05, 0.5, 0.95)))


def _percentile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return nan
    at = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    low = ordered[floor(at)]
    return low + (at - floor(at)) * (ordered[min(floor(at) + 1, len(ordered) - 1)] - low)


def of_errors(errors: Sequence[float]) -> str:
    """Median, p90 and the worst of shares that something is off by."""
    ordered = sorted(errors)
    middle, most = (_percentile(ordered, share) for share in (0.5, 0.9))
    return f"median **{middle:.1%}**, p90 {most:.1%}, worst {ordered[-1]:.1%}"


def ahead(ours: Sequence[float], theirs: Sequence[float]) -> int:
    """In how many of the paired draws ours is the smaller."""
    return sum(mine < other for mine, other in zip(ours, theirs, strict=True))


def is_sure(count: int, of: int) -> bool:
    """Whether so many paired draws suffice to say who is ahead."""
    return count >= SURE * of


class Lead(NamedTuple):
    """Who is first, and in how many of the `of` paired draws: before whoever comes closest, `second`, whose middle is `ratio` times its."""

    first: str
    second: str
    wins: int
    of: int
    ratio: float

    @property
    def is_sure(self) -> bool:
        return is_sure(self.wins, self.of) and self.ratio >= LEVEL


def lead(draws: Mapping[str, Sequence[float]]) -> Lead | None:
    """Of several, each with its draws of one figure, infinite where there was no end; None of fewer than two."""
    if len(draws) < 2:
        return None
    middle = {name: band(each).p50 for name, each in draws.items()}
    first, *others = sorted(middle, key=lambda name: middle[name])
    found = (
        Lead(first, other, ahead(draws[first], draws[other]), len(draws[first]), middle[other] / middle[first])
        for other in others
    )
    return min(found, key=lambda each: (each.is_sure, each.wins, each.ratio))


def won(draws: Mapping[str, Sequence[float]], what: str, better: str, shown: Callable[[float], str]) -> str:
    """Who won, by how much and how surely, or that it is too close to call; nothing of fewer than two.

    `what` and `better`: such as cheapest and cheaper.
    """
    led = lead(draws)
    if led is None:
        return ""
    own, other = band(draws[led.first]), band(draws[led.second])
    drawn = f"in {led.wins} of {led.of} paired draws"
    second = f"{led.second} at {display.band(shown, *other)}"
    if not led.is_sure:
        return f"{led.first} at {display.band(shown, *own)} and {second} are {OPEN} as {what}: {led.first} is {drawn}"
    return f"{led.first} is {what} with {display.band(shown, *own)}, {display.times(led.ratio)} {better} than {second}, {drawn}"


def leader(draws: Mapping[str, Sequence[float]], what: str, shown: Callable[[float], str]) -> str:
    """The answer of `won` in a few words; nothing of fewer than two."""
    led = lead(draws)
    if led is None:
        return ""
    if not led.is_sure:
        return f"{led.first} and {led.second} are {OPEN} as {what}"
    return f"{led.first} is {what}, {display.band(shown, *band(draws[led.first]))}"
