"""A run's state where it lies in the workers' databases instead of in checkpoints."""

from collections.abc import Mapping

from crossover.dataplane.protocols import StateKeys, TensorStore
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.training.calendar import Calendar


def state_keys(experiment: Experiment, keys: Keys, round: int, worker: int) -> StateKeys:
    """Under which keys of an attempt the worker's state at the start of `round` lies."""
    training = experiment.training
    return keys.state(round, worker, optimizer=training.optimizer, momentum=training.momentum)


def resumable(tensors: Mapping[int, TensorStore], keys: Keys, days: Calendar, *, decided: int) -> int | None:
    """The newest round that any worker holds, or the one before, so that an unfinished decision is made again; None
    where no database holds any.

    Workers are never more than one round apart, and a round's keys go only once the next round is under way everywhere.
    """
    for round in range(min(decided + 1, days.epochs) * days.rounds_per_epoch, -1, -1):
        holders = [w for w in tensors if tensors[w].exists(keys.model(round, w))]
        if holders:
            before = any(tensors[w].exists(keys.model(round - 1, w)) for w in holders) if round else False
            return round - 1 if before else round
    return None
