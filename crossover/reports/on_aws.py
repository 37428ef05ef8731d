"""Projection of a run on AWS, as repeated simulations give it, for reports, which do not simulate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossover.reports import display
from crossover.reports.display import Band, band_of


@dataclass(frozen=True, kw_only=True)
class OnAws:
    """The projection of one run on AWS by repeated simulation. `seconds`, `usd`: time and total bill in each random draw, infinite if AWS
    would not run it; `words`: what was simulated; `problems`: reasons why AWS would not run it; `outside`: settings beyond the measured
    range. Compared runs have the same draws.
    """

    seconds: tuple[float, ...]
    usd: tuple[float, ...]
    words: str
    problems: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def time(self) -> Band:
        """The 5th, 50th and 95th percentile of the projected seconds, over the draws in which AWS would run it; NaN if it never would."""
        return band_of(self.seconds)

    @property
    def dollars(self) -> Band:
        """The 5th, 50th and 95th percentile of the projected total AWS bill in dollars, over the draws in which AWS would run it; NaN if it
        never would.
        """
        return band_of(self.usd)

    @property
    def would_run(self) -> bool:
        """True if AWS would run it in at least one of the random draws."""
        return self.time.p50 == self.time.p50

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences on why AWS would not run it, and on assumptions beyond the measured range."""
        return (*self.problems, *(f"beyond the measured range: {limit}" for limit in self.outside))

    @property
    def shown(self) -> tuple[str, str]:
        """Two texts for people, time and dollars: each the median with its percentiles, or "would not run"."""
        if not self.would_run:
            return ("would not run", "would not run")
        return display.band(display.seconds, *self.time), display.band(display.usd, *self.dollars)

    def as_json(self) -> dict[str, Any]:
        """Return this projection as it is written to projection.json: {"label", "words", "seconds", "usd", "draws", "problems", "outside"}.
        `seconds` and `usd` are None if AWS would not run it, otherwise percentiles as `Band.as_json` returns them; `draws` is their number.
        """
        return {
            "label": "projected",
            "words": self.words,
            "seconds": self.time.as_json() if self.would_run else None,
            "usd": self.dollars.as_json() if self.would_run else None,
            "draws": len(self.usd),
            "problems": list(self.problems),
            "outside": list(self.outside),
        }


def describe_winners(known: Mapping[str, OnAws]) -> str:
    """Return a sentence on which of the runs would be cheapest and which soonest on AWS, or that it is too close to call; "" if fewer than
    two would run. `known`: projections by run name.
    """
    running = {name: each for name, each in known.items() if each.would_run}
    parts = (
        display.describe_winner({name: each.usd for name, each in running.items()}, "cheapest", "cheaper", display.usd),
        display.describe_winner(
            {name: each.seconds for name, each in running.items()}, "soonest", "sooner", display.seconds
        ),
    )
    return f"Projected for whole runs on AWS: {'; '.join(filter(None, parts))}." if any(parts) else ""
