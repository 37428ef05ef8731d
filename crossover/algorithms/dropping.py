"""Whose vectors a round combines: one with a NaN or an infinity ends the run, or its worker is left out of the round."""

from collections.abc import Callable, Sequence

from crossover.algorithms.rules import bears
from crossover.errors import Refused
from crossover.experiment import Aggregation

Agree = Callable[[list[int]], list[int]]
"""Takes whom this process would drop, and returns whom all drop; called before anybody combines."""


def participants(
    finite: Sequence[bool], rule: Aggregation, *, names: Sequence[str], agree: Agree = list
) -> tuple[list[int], Aggregation]:
    """The indices of the vectors to combine, and the rule for so many. `finite`: of each vector, `names`: what errors call it.

    Raises Refused, with the names, where `rule.non_finite` is refuse, or where more are dropped than the rule bears.
    """
    bad = [index for index, is_finite in enumerate(finite) if not is_finite]
    if rule.non_finite == "refuse":
        if bad:
            raise Refused(f"{names[bad[0]]} contains NaN or infinite values")
        return list(range(len(finite))), rule
    dropped = agree(bad)
    if len(dropped) > bears(rule, len(finite)):
        raise Refused(
            f"{', '.join(names[index] for index in dropped)}: {len(dropped)} of {len(finite)} contain NaN or infinite "
            f"values; aggregation.rule: {rule.rule} bears {bears(rule, len(finite))} as it is set"
        )
    return [index for index in range(len(finite)) if index not in dropped], rule.without(len(dropped))
