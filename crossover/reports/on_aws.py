"""What a run would take on AWS, as repetitions of a simulation have it: for reports, which simulate nothing themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossover.reports import bands, display
from crossover.reports.bands import Band, band


@dataclass(frozen=True, kw_only=True)
class OnAws:
    """By draw, infinite where AWS would not have run it. Runs that are compared have the same draws. `words`: what they are of."""

    seconds: tuple[float, ...]
    usd: tuple[float, ...]
    words: str
    problems: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def time(self) -> Band:
        return band(self.seconds)

    @property
    def dollars(self) -> Band:
        """In full, as AWS bills."""
        return band(self.usd)

    @property
    def would_run(self) -> bool:
        """Whether there is a figure at all."""
        return self.time.p50 == self.time.p50

    @property
    def limits(self) -> tuple[str, ...]:
        """Why AWS would not run it so, and what of it lies beyond all that was measured."""
        return (*self.problems, *(f"outside what was measured: {limit}" for limit in self.outside))

    @property
    def shown(self) -> tuple[str, str]:
        """Time and dollars, each with its percentiles."""
        if not self.would_run:
            return ("would not run", "would not run")
        return display.band(display.seconds, *self.time), display.band(display.usd, *self.dollars)

    def as_json(self) -> dict[str, Any]:
        """As projection.json in a run's folder."""
        return {
            "label": "projected",
            "words": self.words,
            "seconds": self.time.as_json() if self.would_run else None,
            "usd": self.dollars.as_json() if self.would_run else None,
            "draws": len(self.usd),
            "problems": list(self.problems),
            "outside": list(self.outside),
        }


def verdict(known: Mapping[str, OnAws]) -> str:
    """Who would be cheapest and soonest on AWS, or that it is too close to call; nothing of fewer than two."""
    running = {name: each for name, each in known.items() if each.would_run}
    parts = (
        bands.won({name: each.usd for name, each in running.items()}, "cheapest", "cheaper", display.usd),
        bands.won({name: each.seconds for name, each in running.items()}, "soonest", "sooner", display.seconds),
    )
    return f"On AWS, whole runs, projected: {'; '.join(filter(None, parts))}." if any(parts) else ""
