"""The workers' contributions to a round as one vector, by the rule that the experiment names: for every architecture and the reference."""

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from crossover.algorithms.dropping import Agree, participants
from crossover.algorithms.rules import RULES
from crossover.algorithms.running_mean import RunningMean
from crossover.experiment import Aggregation


def combined(
    vectors: Iterable[Tensor],
    samples: Sequence[int],
    rule: Aggregation,
    *,
    names: Sequence[str],
    agree: Agree = list,
    out: Tensor | None = None,
) -> Tensor:
    """One (D,) float32 of the workers' (D,), by rank. `names`: what errors call each vector; `out` receives the result where given.

    An iterator's vector may be overwritten once the next is asked for; the mean of one holds two vectors in memory, not all. Raises Refused
    where a vector is not finite and the rule does not drop it (crossover/algorithms/dropping.py).
    """
    if rule.rule == "mean" and out is not None and not isinstance(vectors, Sequence):
        running = RunningMean(samples, total=out)
        for vector in vectors:
            participants([finite(vector)], rule, names=[names[running.added]])
            running.add(vector)
            del vector  # before the next one comes
        return running.result()
    held = vectors if isinstance(vectors, Sequence) else [vector.clone() for vector in vectors]
    kept, rule = participants([finite(vector) for vector in held], rule, names=names, agree=agree)
    result = applied([held[index] for index in kept], [samples[index] for index in kept], rule)
    return result if out is None else out.copy_(result)


def applied(vectors: Sequence[Tensor], samples: Sequence[int], rule: Aggregation) -> Tensor:
    """`rule` itself, of vectors that are known to be finite."""
    return RULES[rule.rule].combine(vectors, samples, rule)


def finite(vector: Tensor) -> bool:
    """Whether no element is NaN or infinite. A sum is finite unless a term is not, or it overflows: only then all are looked at."""
    return math.isfinite(float(vector.sum())) or bool(vector.isfinite().all())
