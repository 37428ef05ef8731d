"""Candidates with their repetitions: which of them is chosen, and the three that are named: cheapest, balanced, soonest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from crossover.advice.candidates import Candidate
from crossover.advice.evaluation import Estimate
from crossover.advice.wishes import Wishes
from crossover.reports import bands, display
from crossover.reports.bands import Band, band
from crossover.simulation import repetitions
from crossover.simulation.repetitions import Outcome, possible


@dataclass(frozen=True)
class Finalist:
    """A candidate with its repetitions. Seconds are from `deploy` on, so `before_s` is among them."""

    candidate: Candidate
    figures: Estimate
    outcomes: tuple[Outcome, ...]
    before_s: float  # until the run begins to work

    @cached_property
    def seconds(self) -> Band:
        """Until the model is there."""
        return band([each.seconds + self.before_s for each in self._ran])

    @cached_property
    def running(self) -> Band:
        """Of the run alone, as `project` and `breakeven` count its seconds."""
        return band([each.seconds for each in self._ran])

    @cached_property
    def usd(self) -> Band:
        """In full."""
        return band([each.usd for each in self._ran])

    def by_draw(self, figure: str) -> list[float]:
        """`seconds` of the run or `usd` of each repetition, infinite where AWS would not run it; finalists of one question have the same
        draws.
        """
        return repetitions.figures(self.outcomes, figure)

    @property
    def _ran(self) -> Sequence[Outcome]:
        return possible(self.outcomes) or self.outcomes

    @property
    def would_run(self) -> bool:
        """In 19 of 20 repetitions."""
        return len(possible(self.outcomes)) >= bands.SURE * len(self.outcomes)

    @property
    def words(self) -> str:
        """`31 min 05 s after 2 min 00 s of start-up, $0.29 ($0.24 to $0.36)`."""
        time = f"{display.seconds(self.running.p50)} after {display.seconds(self.before_s)} of start-up"
        return f"{time}, {display.band(display.usd, *self.usd)}"

    @property
    def kind(self) -> str:
        """What of ON_HAND its workers are."""
        if not self.candidate.instance:
            return "lambda"
        return "gpu" if self.candidate.gpu else "ec2"


@dataclass(frozen=True)
class Card:
    """One of the three, or several that are the same. `on_demand`: of spot instances the same at the price that AWS holds."""

    names: tuple[str, ...]
    finalist: Finalist
    on_demand: Finalist | None = None


@dataclass(frozen=True)
class ThisMachine:
    """`seconds` of the whole run in one process of `threads`, by minibatches measured here; `times`: from how many times the epochs on
    `sooner` is sooner, start-up among its seconds: 1 or less where it is already, None where it never is.
    """

    seconds: float
    threads: int
    sooner: Finalist
    times: float | None

    @property
    def words(self) -> str:
        """`Your machine does it in 40 s for nothing; from 30 times the epochs on one g4dn.xlarge is sooner.`"""
        does = f"Your machine does it in {display.seconds(self.seconds)} for nothing"
        if self.times is None:
            return f"{does}; {self.sooner.candidate.words} is never sooner, however many the epochs."
        if self.times <= 1:
            return f"{does}; {self.sooner.candidate.words} is sooner."
        return f"{does}; from {self.times:,.3g} times the epochs on {self.sooner.candidate.words} is sooner."


# How each card is picked, in words.
RULES = {
    "cheapest": "the fewest dollars; of those that are too close to call the soonest",
    "balanced": "the least product of dollars and seconds, start-up among them",
    "soonest": "the fewest seconds, start-up among them; of those that are too close to call the cheapest",
}


def chosen(finalists: Sequence[Finalist], wishes: Wishes) -> Finalist:
    """With a budget alone the soonest that keeps to it, else the cheapest that keeps to all wishes; where none does, the nearest."""
    holding = _holding(finalists, wishes)
    if not holding:
        return min(finalists, key=lambda each: (wishes.short_by(each.seconds, each.usd), each.usd.p50))
    order = _soonest(finalists) if wishes.budget_usd is not None and wishes.deadline_s is None else _cheapest(finalists)
    return min(holding, key=order)


def cards(finalists: Sequence[Finalist], wishes: Wishes, twins: Mapping[Candidate, Finalist]) -> tuple[Card, ...]:
    """Of those that keep to the wishes (of all, where none does), by RULES; `twins`: what spot instances are on demand."""
    holding = _holding(finalists, wishes) or finalists
    orders = (_cheapest(finalists), lambda each: each.usd.p50 * each.seconds.p50, _soonest(finalists))
    names = dict[Candidate, tuple[str, ...]]()
    picked = [min(holding, key=order) for order in orders]
    for name, each in zip(RULES, picked, strict=True):
        names[each.candidate] = (*names.get(each.candidate, ()), name)
    found = {each.candidate: each for each in picked}
    return tuple(Card(names[each], finalist, twins.get(each)) for each, finalist in found.items())


def _holding(finalists: Sequence[Finalist], wishes: Wishes) -> list[Finalist]:
    return [each for each in finalists if wishes.short_by(each.seconds, each.usd) <= 1]


Order = Callable[[Finalist], tuple[float, ...]]


def _cheapest(finalists: Iterable[Finalist]) -> Order:
    """Where dollars tie, time decides."""
    ranks = _ranks(finalists, "usd")
    return lambda each: (ranks[each.candidate], each.seconds.p50, each.usd.p50)


def _soonest(finalists: Iterable[Finalist]) -> Order:
    ranks = _ranks(finalists, "seconds")
    return lambda each: (ranks[each.candidate], each.usd.p50, each.seconds.p50)


def _ranks(finalists: Iterable[Finalist], figure: str) -> dict[Candidate, int]:
    """By the middle of the figure; those have one rank that are too close to call with the first of them. Wishes change no rank, so that
    larger ones never get less.
    """
    found, first, rank = dict[Candidate, int](), None, -1
    for each in sorted(finalists, key=lambda each: (getattr(each, figure).p50, each.figures.usd, str(each.candidate))):
        if first is None or not _tied(first, each, figure):
            first, rank = each, rank + 1
        found[each.candidate] = rank
    return found


def _tied(one: Finalist, other: Finalist, figure: str) -> bool:
    before = (one.before_s, other.before_s) if figure == "seconds" else (0.0, 0.0)
    mine, its = ([value + s for value in each.by_draw(figure)] for each, s in zip((one, other), before, strict=True))
    led = bands.lead({"one": mine, "other": its})
    return led is None or not led.is_sure
