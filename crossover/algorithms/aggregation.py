"""The workers' contributions to a round as one vector, by the rule that the experiment names: for every architecture and the reference."""

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from crossover.algorithms.averaging import RunningMean
from crossover.algorithms.rules import RULES, Agree, select_participants
from crossover.experiment import Aggregation


def combine_vectors(
    vectors: Iterable[Tensor],
    samples: Sequence[int],
    rule: Aggregation,
    *,
    names: Sequence[str],
    agree: Agree = list,
    out: Tensor | None = None,
) -> Tensor:
    """Return the aggregate of the workers' vectors, each (D,) float32 and in rank order, by `rule`: one (D,) float32.

    `samples`: weight of each vector in a mean. `names`: name of each vector for errors. `agree`: takes the indices of the vectors that this
    process would drop, returns those that all workers drop. `out`: tensor to write the result to. An iterator may overwrite a vector once
    the next one is requested; for the mean of an iterator, with `out`, only two vectors are in memory, and `agree` is not called. Raises
    Refused if a vector is not finite and the rule does not drop it, or if more are dropped than the rule tolerates.
    """
    if rule.rule == "mean" and out is not None and not isinstance(vectors, Sequence):
        running = RunningMean(samples, total=out)
        for vector in vectors:
            select_participants([is_finite(vector)], rule, names=[names[running.added]])
            running.add(vector)
            del vector  # before the next one comes
        return running.result()
    held = vectors if isinstance(vectors, Sequence) else [vector.clone() for vector in vectors]
    kept, rule = select_participants([is_finite(vector) for vector in held], rule, names=names, agree=agree)
    result = apply_rule([held[index] for index in kept], [samples[index] for index in kept], rule)
    return result if out is None else out.copy_(result)


def apply_rule(vectors: Sequence[Tensor], samples: Sequence[int], rule: Aggregation) -> Tensor:
    """Return the aggregate of the workers' vectors by `rule`, a new (D,) tensor. `vectors`: in rank order; they must be finite, which is
    not checked. `samples`: weight of each vector in a mean.
    """
    return RULES[rule.rule].combine(vectors, samples, rule)


def is_finite(vector: Tensor) -> bool:
    """Return whether no element is NaN or infinite. For speed, the elements are checked one by one only if their sum is not finite."""
    return math.isfinite(float(vector.sum())) or bool(vector.isfinite().all())
