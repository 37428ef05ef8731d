"""The single-process reference that every synchronous architecture must equal bit for bit: all workers in one loop, nothing stored or sent.

Two levels of means (minibatches within a worker, workers by rank), one state, one optimizer step per round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from crossover.algorithms import buffers
from crossover.algorithms.aggregation import combined
from crossover.algorithms.attacks import attacked
from crossover.algorithms.averaging import mean
from crossover.algorithms.convergence import verdict
from crossover.algorithms.optimizers.step import step
from crossover.algorithms.randomness import generator
from crossover.algorithms.schedule import learning_rate
from crossover.algorithms.update import Update
from crossover.experiment import Experiment
from crossover.learning.datasets import Dataset
from crossover.learning.learner import Learner, learner_for
from crossover.learning.staging import VALIDATION_CHUNK, Minibatches, plan


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch ended with; `train_loss` is the mean over the epoch's samples."""

    train_loss: float
    val_loss: float
    val_metric: float


@dataclass(frozen=True, slots=True)
class State:
    """A round's state: the model (P + B,) and the optimizer's vectors (P,): none, a velocity, or two moments."""

    model: Tensor
    optimizer: tuple[Tensor, ...] = ()


def train_reference(
    experiment: Experiment,
    dataset: Dataset,
    *,
    on_round: Callable[[int, State], None] | None = None,
    learner: Learner | None = None,
) -> tuple[bytes, tuple[bytes, ...], list[Epoch]]:
    """(model bytes, the optimizer's vectors as bytes, what each epoch ended with).

    `training.sync_every` None or "epoch": all of a worker's minibatches of an epoch are one round. `on_round` sees the state after each
    round. `learner`: another than the experiment's own.
    """
    reference = _Reference(experiment, dataset, learner or learner_for(experiment, dataset))
    history: list[Epoch] = []
    while not verdict(experiment.training, [(epoch.val_loss, epoch.val_metric) for epoch in history]):
        history.append(reference.epoch(history, on_round))
    state = reference.state
    return bytes(buffers.view(state.model)), tuple(bytes(buffers.view(part)) for part in state.optimizer), history


class _Reference:
    def __init__(self, experiment: Experiment, dataset: Dataset, learner: Learner) -> None:
        every = experiment.training.sync_every
        self.experiment = experiment
        self.plan = plan(experiment, len(dataset.train_labels))
        self.per_round = self.plan.minibatches if every in (None, "epoch") else min(int(every), self.plan.minibatches)
        self.rounds_per_epoch = -(-self.plan.minibatches // self.per_round)
        self.minibatches = Minibatches(experiment, dataset, self.plan)
        self.chunks = -(-len(dataset.validation_labels) // VALIDATION_CHUNK)
        self.learner = learner
        self.state = State(buffers.tensor(bytes(self.learner.initial_model())))
        self.round = 0

    def epoch(self, history: Sequence[Epoch], on_round: Callable[[int, State], None] | None) -> Epoch:
        losses, samples = 0.0, 0
        for first in range(0, self.plan.minibatches, self.per_round):
            numbers = range(first, min(first + self.per_round, self.plan.minibatches))
            averages, counts = [], []
            for worker in range(self.experiment.workers):
                average, count, loss = self._worker(worker, numbers, epoch=len(history) + 1)
                averages.append(average)
                counts.append(count)
                losses += loss
            samples += sum(counts)
            names = [f"worker {worker}, round {self.round}: its average" for worker in range(self.experiment.workers)]
            average = combined(averages, counts, self.experiment.aggregation, names=names)
            self.state = self._update(average, history)
            self.round += 1
            if on_round is not None:
                on_round(self.round, self.state)
        self.learner.model[:] = buffers.view(self.state.model)
        result = self.learner.evaluate(self.minibatches.validation(chunk) for chunk in range(self.chunks))
        return Epoch(losses / samples, result.loss, result.metric)

    def _worker(self, worker: int, numbers: range, *, epoch: int) -> tuple[Tensor, int, float]:
        """(average, samples, summed loss) of one worker's minibatches of the round."""
        gradients, counts, losses = [], [], 0.0
        for position, number in enumerate(numbers):
            batch = self.minibatches.train(worker, number)
            self.learner.model[:] = buffers.view(self.state.model)
            loss = self.learner.compute_gradient(
                batch, epoch=epoch, round=self.round, worker=worker, minibatch=position
            )
            gradients.append(self._published(worker))
            counts.append(batch.samples)
            losses += loss * batch.samples
        return mean(gradients, counts), sum(counts), losses

    def _published(self, worker: int) -> Tensor:
        """A copy of the learner's gradient, attacked where the worker is faulty."""
        faults, own = self.experiment.faults, buffers.tensor(bytes(self.learner.gradient))
        if worker not in faults.workers:
            return own
        random = generator("attack", self.experiment.seed, self.round, worker)
        return attacked(own, attack=faults.attack, scale=faults.scale, generator=random, buffers=self.learner.buffers)

    def _update(self, gradient: Tensor, history: Sequence[Epoch]) -> State:
        training = self.experiment.training
        rate = learning_rate(
            training,
            round=self.round,
            rounds=training.epochs * self.rounds_per_epoch,
            history=[(epoch.val_loss, epoch.val_metric) for epoch in history],
        )
        update = Update.of(
            training, number=self.round, rate=rate, buffers=self.learner.buffers, sync_every=self.per_round
        )
        return State(*step(self.state.model, gradient, self.state.optimizer, update))
