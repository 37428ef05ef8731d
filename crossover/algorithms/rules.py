"""Aggregation rules by name: mean, median, trimmed mean, Krum; and which workers are dropped because their values are
not finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossover.errors import Refused
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


# --- rule -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Definition of an aggregation rule. `combine(vectors, samples, settings)` returns the aggregate, (D,) float32, of the workers' finite
    (D,) vectors. `samples`: weight of each vector; `settings`: the experiment's section `aggregation`.

    `name`: in `aggregation.rule`; `bears(settings, workers)`: returns how many faulty workers the rule tolerates among `workers`
    (validation/exchanges.py refuses settings with too few workers); `by_coordinate`: whether a part of the result follows from that part of
    the vectors alone; `command`: the tensor database's command TENSOR.<command>, None if functions combine the vectors;
    `options(settings)`: returns the command's own options, names and values in turn; by default none.
    """

    name: str
    combine: Callable[["Sequence[Tensor]", Sequence[int], Aggregation], "Tensor"]
    bears: Callable[[Aggregation, int], int]
    by_coordinate: bool = True
    command: str | None = None
    options: Callable[[Aggregation], Sequence[str | int | float]] = lambda settings: ()


# --- krum -------------------------------------------------------------------------------------------------------------
# Krum: those vectors that lie nearest to the others (Blanchard et al. 2017).


def _combine_by_krum(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    """Return Krum's result for the workers' vectors, by `settings.faulty` and `settings.select`; `samples` is not used."""
    from crossover.algorithms import robust

    return robust.krum(vectors, faulty=settings.faulty, select=settings.select)


KRUM = Rule(
    name="krum",
    combine=_combine_by_krum,
    bears=lambda settings, workers: settings.faulty,
    command="KRUM",
    by_coordinate=False,
    options=lambda settings: ["FAULTY", settings.faulty, "SELECT", settings.select],
)


# --- mean -------------------------------------------------------------------------------------------------------------
# The mean, weighted by samples.


def _combine_by_mean(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    """Return the mean of the workers' vectors, weighted by `samples`."""
    from crossover.algorithms import averaging

    return averaging.mean(vectors, samples)


MEAN = Rule(
    name="mean",
    combine=_combine_by_mean,
    bears=lambda settings, workers: 0,
    command="MEAN",
)


# --- median -----------------------------------------------------------------------------------------------------------
# The median of each coordinate (Yin et al. 2018).


def _combine_by_median(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    """Return the median of the workers' vectors at each coordinate; for an even number of workers the mean of the middle two. `samples` and
    `settings` are not used.
    """
    from crossover.algorithms import robust

    return robust.median(vectors)


MEDIAN = Rule(
    name="median",
    combine=_combine_by_median,
    bears=lambda settings, workers: (workers - 1) // 2,
    command="MEDIAN",
)


# --- trimmed mean -----------------------------------------------------------------------------------------------------
# The mean of each coordinate without its highest and lowest values (Yin et al. 2018).


def _combine_by_trimmed_mean(vectors: "Sequence[Tensor]", samples: Sequence[int], settings: Aggregation) -> "Tensor":
    """Return the mean of the workers' vectors at each coordinate without its `settings.trim` highest and lowest values; `samples`
    is not used.
    """
    from crossover.algorithms import robust

    return robust.trimmed_mean(vectors, trim=settings.trim)


TRIMMED_MEAN = Rule(
    name="trimmed_mean",
    combine=_combine_by_trimmed_mean,
    bears=lambda settings, workers: settings.trim,
    command="TRIMMEDMEAN",
    options=lambda settings: ["TRIM", settings.trim],
)


# --- rules ------------------------------------------------------------------------------------------------------------
# The rules that aggregation.rule may name: every one above is found.

RULES = {each.name: each for each in tuple(vars().values()) if isinstance(each, Rule)}


def count_tolerated(settings: Aggregation, workers: int) -> int:
    """Return how many of `workers` workers may send arbitrary vectors before the rule's result becomes arbitrary too."""
    return RULES[settings.rule].bears(settings, workers)


# --- dropping ---------------------------------------------------------------------------------------------------------
# Whose vectors a round combines: one with a NaN or an infinity ends the run, or its worker is left out of the round.

Agree = Callable[[list[int]], list[int]]
"""A function that takes the workers that this process would drop and returns those that all drop; called before combining."""


def select_participants(
    finite: Sequence[bool], rule: Aggregation, *, names: Sequence[str], agree: Agree = list
) -> tuple[list[int], Aggregation]:
    """Return (ascending indices of the vectors to combine in a round, the rule's settings adapted to that number of vectors). Unless
    `rule.non_finite` is "refuse", `agree` is called exactly once, even if all vectors are finite.

    `finite`: whether each vector is finite; `names`: of the vectors, for errors. `agree`: takes the indices of the vectors that this
    process would drop, returns those that all workers drop. Raises Refused if a vector is not finite and `rule.non_finite` is "refuse", or
    if more are dropped than the rule tolerates.
    """
    bad = [index for index, is_finite in enumerate(finite) if not is_finite]
    if rule.non_finite == "refuse":
        if bad:
            raise Refused(f"{names[bad[0]]} contains NaN or infinite values")
        return list(range(len(finite))), rule
    dropped = agree(bad)
    if len(dropped) > count_tolerated(rule, len(finite)):
        raise Refused(
            f"{', '.join(names[index] for index in dropped)}: {len(dropped)} of {len(finite)} contain NaN or infinite "
            f"values; aggregation.rule: {rule.rule} bears {count_tolerated(rule, len(finite))} as it is set"
        )
    return [index for index in range(len(finite)) if index not in dropped], rule.with_fewer_workers(len(dropped))
