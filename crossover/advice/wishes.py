"""What the user wishes: by when, for how much, with what is on hand; and whether something holds that, in nine repetitions of ten."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from crossover.advice.needs import ON_HAND
from crossover.errors import ConfigError
from crossover.reports import display
from crossover.reports.bands import Band

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
DURATION = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(s|m|min|h|d)\s*")
LONGEST_S = 720 * 3_600.0  # lifetime.ttl_hours: no stack lives longer


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """`deadline_s`: until the model is there; `budget_usd`: of one run in full; `target`: of the metric on the validation set."""

    deadline_s: float | None = None
    budget_usd: float | None = None
    target: float | None = None
    on_hand: tuple[str, ...] = ON_HAND

    def short_by(self, seconds: Band, usd: Band) -> float:
        """How many times more than wished it takes, at p95; 1 or less where every wish holds."""
        times = [0.0]
        if self.deadline_s is not None:
            times.append(seconds.p95 / self.deadline_s)
        if self.budget_usd is not None:
            times.append(usd.p95 / self.budget_usd)
        return max(times)

    @property
    def words(self) -> str:
        """The wishes as they were understood."""
        parts = [
            *([f"within {display.seconds(self.deadline_s)}"] if self.deadline_s is not None else []),
            *([f"for at most {display.usd(self.budget_usd)}"] if self.budget_usd is not None else []),
            *([f"to {self.target:g}"] if self.target is not None else []),
        ]
        hand = "" if set(self.on_hand) == set(ON_HAND) else f"with {', '.join(self.on_hand)} on hand"
        return ", ".join([*parts, *([hand] if hand else [])]) or "the fewest dollars, however long it takes"


def wishes(deadline: str | None, budget: str | None, target: float | None, on_hand: str | None) -> Wishes:
    """From the command line. Raises ConfigError with what was understood and what is expected."""
    return Wishes(
        deadline_s=None if deadline is None else _seconds(deadline),
        budget_usd=None if budget is None else _dollars(budget),
        target=target,
        on_hand=ON_HAND if on_hand is None else _hand(on_hand.split(",")),
    )


def _seconds(text: str) -> float:
    if not (found := DURATION.fullmatch(text)):
        raise ConfigError(f"--deadline: {text!r} is no time; expected a number and a unit, such as 45min, 2h or 1.5d")
    seconds = float(found[1]) * UNITS[found[2]]
    if not 0 < seconds <= LONGEST_S:
        raise ConfigError(
            f"--deadline: {text!r} is {display.seconds(seconds)}; expected more than nothing and at most 30 days: no stack lives longer"
        )
    return seconds


def _dollars(text: str) -> float:
    try:
        usd = float(text.removeprefix("$"))
    except ValueError:
        usd = 0.0
    if not 0 < usd < 1e9:
        raise ConfigError(f"--budget: {text!r} is no sum of dollars; expected a number above 0, such as 5 or 0.25")
    return usd


def _hand(names: Sequence[str]) -> tuple[str, ...]:
    given = [name.strip() for name in names if name.strip()]
    unknown = [name for name in given if name not in ON_HAND]
    if unknown or not given:
        raise ConfigError(
            f"--on-hand: {', '.join(unknown) or 'nothing'} is unknown; expected some of {', '.join(ON_HAND)}"
        )
    if given == ["spot"]:
        raise ConfigError("--on-hand: spot is a price of instances, not a place to compute; add ec2 or gpu")
    return tuple(name for name in ON_HAND if name in given)
