"""Which epoch, round and minibatch come when.

An epoch is a pass over a worker's minibatches; a round ends with a synchronisation, after `training.sync_every` minibatches. Epochs count
from 1 (epoch 0 is the untrained model), rounds from 0 through the whole run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossover.context import Context
from crossover.event import Event
from crossover.experiment import Experiment
from crossover.run_facts import RunFacts


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which minibatches and epochs the rounds of a run are."""

    minibatches: int  # of one worker in an epoch
    sync_every: int
    epochs: int

    @property
    def rounds_per_epoch(self) -> int:
        return -(-self.minibatches // self.sync_every)

    @property
    def rounds(self) -> int:
        return self.epochs * self.rounds_per_epoch

    def epoch(self, round: int) -> int:
        return round // self.rounds_per_epoch + 1

    def first_minibatch(self, round: int) -> int:
        """The epoch's minibatch that the round begins with."""
        return round % self.rounds_per_epoch * self.sync_every

    def minibatches_in(self, round: int) -> int:
        """How many minibatches a worker computes in the round; the epoch's last round may be shorter."""
        return min(self.sync_every, self.minibatches - self.first_minibatch(round))

    def ends_epoch(self, round: int) -> bool:
        return (round + 1) % self.rounds_per_epoch == 0


def calendar(facts: RunFacts) -> Calendar:
    return calendar_of(facts.experiment, facts.manifest)


def calendar_of(experiment: Experiment, manifest: Mapping[str, Any]) -> Calendar:
    training, minibatches = experiment.training, manifest["minibatches"]
    assert training.sync_every is not None, "the runner resolves sync_every before a run starts"
    return Calendar(
        minibatches, minibatches if training.sync_every == "epoch" else training.sync_every, training.epochs
    )


def at(ctx: Context, event: Event, round: int) -> Event:
    """The changes that move an event to the start of `round`."""
    days = calendar(ctx.facts)
    return {
        "epoch": days.epoch(round),
        "round": round,
        "minibatches": days.minibatches_in(round),
        "minibatch": 0,
        "synchronised": False,
    }


def ends_epoch(ctx: Context, event: Event) -> bool:
    return calendar(ctx.facts).ends_epoch(event["round"])


def minibatch_samples(facts: RunFacts, round: int, *, worker: int) -> list[int]:
    """How many samples the worker's minibatches of the round have."""
    days = calendar(facts)
    first = days.first_minibatch(round)
    counts: list[int] = facts.manifest["counts"][worker]
    return counts[first : first + days.minibatches_in(round)]


def round_samples(facts: RunFacts, round: int) -> list[int]:
    """How many samples the contribution of each worker to the round stands for, by rank."""
    return [sum(minibatch_samples(facts, round, worker=worker)) for worker in range(len(facts.manifest["counts"]))]
