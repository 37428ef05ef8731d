"""The bits that every aggregator must come to: one process that makes all gradients and adds them in the same order, block by block."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from crossover.algorithms import buffers
from crossover.algorithms.aggregators.gradients import BLOCK, gradient
from crossover.algorithms.aggregators.plan import Aggregator, Plan
from crossover.algorithms.running_mean import RunningMean

LevelAndNumber = tuple[int, int]  # level from 1 on, aggregator


def digests(plan: Plan, *, seed: int) -> dict[LevelAndNumber, str]:
    """SHA-256 of each aggregator's mean. Needs memory for a block of every client, whatever the model's size."""
    hashes = {
        (level, number): hashlib.sha256() for level, row in enumerate(plan.levels, 1) for number, _ in enumerate(row)
    }
    for number in range(plan.parts):
        part = plan.part(number)
        for first in range(part.start, part.stop, BLOCK):
            block = slice(first, min(part.stop, first + BLOCK))
            members = {client: gradient(seed, client, block) for client in range(plan.clients)}
            for level, row in enumerate(plan.levels, 1):
                members = {n: _mean(each, members) for n, each in enumerate(row) if each.part == number}
                for n, mean in members.items():
                    hashes[level, n].update(buffers.view(mean))
    return {place: found.hexdigest() for place, found in hashes.items()}


def _mean(aggregator: Aggregator, members: Mapping[int, Tensor]) -> Tensor:
    mean = RunningMean.of(aggregator.weights, elements=members[aggregator.inputs[0]].numel())
    for member in aggregator.inputs:
        mean.add(members[member])
    return mean.result()


def differing(plan: Plan, records: Iterable[Mapping[str, Any]], *, seed: int) -> list[str]:
    """Which aggregators came to other bits, or left no word of theirs, in words; none: every mean is that of one process."""
    told: dict[LevelAndNumber, set[str]] = {}
    for record in records:
        if "sha256" in record:
            told.setdefault((record["round"], record["minibatch"]), set()).add(record["sha256"])
    return [
        f"level {level}, aggregator {number}: {'other bits' if told.get((level, number)) else 'no mean was recorded'}"
        for (level, number), digest in digests(plan, seed=seed).items()
        if told.get((level, number)) != {digest}
    ]
