"""`make test-all` draws a sample of the deep sweeps, in which each kind of thing occurs; `make test-every-call` runs them whole."""

import os
import random
from collections.abc import Collection, Hashable, Sequence

WHOLE = bool(os.environ.get("CROSSOVER_EVERY_CALL"))
SEED = int(os.environ.get("CROSSOVER_SAMPLE", "1"))


def drawn(kinds: Sequence[Collection[Hashable]], *, seed: int = SEED) -> list[int]:
    """Return the indexes of a small random sample of `kinds` in which every kind that occurs at all occurs. The sample
    depends on `seed`.
    """
    order, missing, sample = list(range(len(kinds))), {kind for each in kinds for kind in each}, list[int]()
    random.Random(seed).shuffle(order)
    while missing:
        best = max(order, key=lambda index: len(missing.intersection(kinds[index])))
        missing.difference_update(kinds[best])
        sample.append(best)
    return sorted(sample)


def chosen(operations: Sequence[str]) -> Sequence[int]:
    """Return the numbers, from 1, of the calls to disturb in a run that makes these operations: one random call of each operation, or all
    calls in the whole sweep.
    """
    if WHOLE:
        return range(1, len(operations) + 1)
    return [1 + index for index in drawn([[name] for name in operations])]
