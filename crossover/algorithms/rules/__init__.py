"""The rules that aggregation.rule may name: one file each, and one line here, by which it is found."""

from crossover.algorithms.rules.krum import KRUM as KRUM
from crossover.algorithms.rules.mean import MEAN as MEAN
from crossover.algorithms.rules.median import MEDIAN as MEDIAN
from crossover.algorithms.rules.rule import Rule
from crossover.algorithms.rules.trimmed_mean import TRIMMED_MEAN as TRIMMED_MEAN
from crossover.experiment import Aggregation

RULES = {each.name: each for each in tuple(vars().values()) if isinstance(each, Rule)}


def bears(settings: Aggregation, workers: int) -> int:
    """How many of `workers` may be faulty before the result means nothing."""
    return RULES[settings.rule].bears(settings, workers)
