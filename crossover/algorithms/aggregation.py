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
    """Return the workers' vectors, each (D,) float32 and in rank order, aggregated by `rule` to one (D,) float32.

    `samples`: the weight of each vector in the mean. `names`: what errors call each vector. `agree`: takes the indices
    that this process would drop, returns those that all workers drop. `out`: receives the result if given. An iterator
    may overwrite a vector once the next one is requested; the mean of an iterator with `out` holds two vectors in
    memory, not all. Raises Refused if a vector is not finite and the rule does not drop it
    (crossover/algorithms/rules.py).
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
    """Return the result of `rule` for the workers' vectors, which must be finite. `samples`: of each vector."""
    return RULES[rule.rule].combine(vectors, samples, rule)


def is_finite(vector: Tensor) -> bool:
    """Return whether no element is NaN or infinite. The elements are checked one by one only if their sum is not
    finite.
    """
    return math.isfinite(float(vector.sum())) or bool(vector.isfinite().all())
