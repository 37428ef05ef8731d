"""What a run must come to, computed in one process without stores, messages or faults: the model and the metrics after each epoch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from crossover.algorithms import buffers, compression, significance
from crossover.algorithms.averaging import RunningMean
from crossover.algorithms.optimizers import statistics_momentum
from crossover.algorithms.schedule import Calendar, learning_rate, weigh_contributions
from crossover.experiment import Experiment, Training
from crossover.learning.batches import Batch
from crossover.learning.learner import Evaluation
from crossover.learning.reference import RoundState, train_reference
from crossover.learning.samples import Dataset
from crossover.learning.staging import VALIDATION_CHUNK, Minibatches, plan_staging
from crossover.training.progress import calendar_of
from functions.mlless.settings import MLLess
from tests.chaos.world.learner import ExactLearner


@dataclass(frozen=True)
class EpochResult:
    """The expected state after an epoch: SHA-256 of the model ("" if unknown), loss and metric of the evaluation, and whether training ends
    here. `reports`: with MLLess, by (step, worker) of the epoch: the mean training loss, and how many samples it stands for.
    """

    model: str
    loss: float
    metric: float
    finished: bool
    reports: Mapping[tuple[int, int], tuple[float, int]] = field(default_factory=dict, compare=False)


Yardstick = Mapping[int, EpochResult]  # by epoch; empty if what a run comes to depends on who is late


def measure_reference(experiment: Experiment, dataset: Dataset, learner: ExactLearner) -> Yardstick:
    """Return the results of the single-process reference after each epoch. `experiment`: already resolved by its architecture."""
    models: list[str] = []

    def keep(round: int, state: RoundState) -> None:
        """Remember the model after a round."""
        models.append(_sha256(state.model))

    epochs = train_reference(experiment, dataset, on_round=keep, learner=cast(Any, learner))[2]
    days = _calendar(experiment, dataset)
    evaluated = [(epoch.val_loss, epoch.val_metric) for epoch in epochs]
    ends = [days.epoch_of_decision(number) for number in range(1, len(evaluated) + 1)]
    return {
        epoch: EpochResult(
            models[days.rounds_until(epoch) - 1],
            *evaluated[number],
            ends_training(experiment.training, evaluated[: number + 1], epoch),
        )
        for number, epoch in enumerate(ends)
    }


def ends_training(training: Training, evaluated: Sequence[tuple[float, float]], epoch: int) -> bool:
    """Return whether training ends after `epoch`. `evaluated`: loss and metric after each epoch so far."""
    losses, metric = [loss for loss, _ in evaluated], evaluated[-1][1]
    reached = training.target is not None and training.metric.reaches(metric, training.target)
    waited = len(losses) - 1 - losses.index(min(losses))
    return reached or 0 < training.early_stopping <= waited or epoch >= training.epochs


def measure_mlless(experiment: Experiment, dataset: Dataset, learner: ExactLearner) -> Yardstick:
    """Return the results of MLLess's algorithm without removals after each epoch: all workers in one loop. `experiment`: already resolved
    by its architecture.
    """
    return _MLLessInOneProcess(experiment, dataset, learner).train()


@dataclass
class _Worker:
    """One worker of MLLess in the reference: its residual that was not sent yet, its velocity, and by step its own updates that were not
    applied yet.
    """

    residual: Tensor
    velocity: Tensor | None
    on_the_way: dict[int, Tensor] = field(default_factory=dict)


class _MLLessInOneProcess:
    """A reference implementation of MLLess in one process."""

    def __init__(self, experiment: Experiment, dataset: Dataset, learner: ExactLearner) -> None:
        """Prepare the minibatches of `dataset` and all workers with the seeded model. `learner`: computes gradients and evaluations."""
        self._experiment, self._settings, self._learner = experiment, experiment.settings(MLLess), learner
        self._plan = plan_staging(experiment, len(dataset.train_labels))
        self._batches = Minibatches(experiment, dataset, self._plan)
        self._answers, self._days = self._batches.count_answers(), _calendar(experiment, dataset)
        self._chunks = -(-len(dataset.validation_labels) // VALIDATION_CHUNK)
        self._shared = buffers.tensor(bytes(learner.initialise_model())).clone()
        size, momentum = self._shared.numel(), experiment.training.momentum
        self._workers = [
            _Worker(torch.zeros(size), torch.zeros(size - learner.buffers) if momentum else None)
            for _ in range(experiment.workers)
        ]
        self._evaluated: list[tuple[float, float]] = []
        self._reports: dict[tuple[int, int], tuple[float, int]] = {}

    def train(self) -> Yardstick:
        """Train until the training ends, and return the results by epoch."""
        found: dict[int, EpochResult] = {}
        applied, every = 0, self._experiment.functions.checkpoint_every  # steps that all have applied
        for step in range(self._days.rounds):
            for rank in range(len(self._workers)):
                self._compute(step, rank)
            ends_epoch = self._days.ends_epoch(step)
            while applied <= step and (applied <= step - self._settings.slack or ends_epoch or (step + 1) % every == 0):
                self._apply(applied)
                applied += 1
            if ends_epoch:
                epoch, result = self._days.epoch(step), self._evaluate()
                self._evaluated.append((result.loss, result.metric))
                ends = ends_training(self._experiment.training, self._evaluated, epoch)
                said, self._reports = self._reports, {}
                found[epoch] = EpochResult(_sha256(self._shared), result.loss, result.metric, ends, said)
                if ends:
                    break
        return found

    def _compute(self, step: int, rank: int) -> None:
        """Compute a worker's gradient at its own model, take a local step, and move the significant part of its residual into its updates
        to apply.
        """
        worker, training, learner = self._workers[rank], self._experiment.training, self._learner
        base = self._shared.clone()
        for _, update in sorted(worker.on_the_way.items()):
            compression.add_to(base, update)
        model = base + worker.residual
        learner.model[:] = buffers.view(model)
        counts = [self._counts(step, each) for each in range(len(self._workers))]
        mean, losses = RunningMean.allocate(weigh_contributions(counts[rank]), elements=model.numel()), list[float]()
        for position, number in enumerate(self._days.list_minibatches(step)):
            epoch = self._days.locate_minibatch(step, position)[0]
            batch: Batch = self._batches.build_minibatch(rank, number)
            losses.append(learner.compute_gradient(batch, epoch=epoch, round=step, worker=rank, minibatch=position))
            mean.add(buffers.tensor(learner.gradient))
        samples = weigh_contributions([sum(each) for each in counts])
        summed = sum(loss * count for loss, count in zip(losses, counts[rank], strict=True))
        self._reports[step, rank] = summed / (sum(counts[rank]) or 1), samples[rank]
        significance.take_local_step(
            worker.residual,
            worker.velocity,
            mean.result(),
            model,
            share=samples[rank] / (sum(samples) or 1),
            learning_rate=learning_rate(training, round=step, rounds=self._days.rounds, history=self._evaluated),
            momentum=training.momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            buffers=learner.buffers,
            statistics_momentum=statistics_momentum(self._days.sync_every),
        )
        if (significant := self._filter(step, base, worker.residual)) is not None:
            worker.on_the_way[step] = significant

    def _counts(self, step: int, rank: int) -> list[int]:
        """Return the number of answers (labels that count) in each of a worker's minibatches of a step."""
        return [self._answers[rank][number] for number in self._days.list_minibatches(step)]

    def _filter(self, step: int, base: Tensor, residual: Tensor) -> Tensor | None:
        """Return the significant part of `residual` as an encoded update, and set it to zero there; None if nothing is significant."""
        count, threshold = residual.numel() - self._learner.buffers, self._settings.threshold
        indices, values = residual.new_empty(0, dtype=torch.int64), residual.new_empty(0)
        if self._settings.filter == "coordinate":
            indices, values = significance.take_significant(
                residual[:count], base[:count], threshold=threshold, step=step
            )
        elif significance.is_significant(residual[:count], base[:count], threshold=threshold, step=step):
            whole = residual.clone()
            residual.zero_()
            return whole
        tail = residual[count:].clone()
        residual[count:] = 0.0
        if not indices.numel() and not tail.numel():
            return None
        return compression.encode(indices, values, elements=residual.numel(), tail=tail)

    def _apply(self, step: int) -> None:
        """Add all workers' updates of `step` to the shared model, by rank."""
        for worker in self._workers:
            if (update := worker.on_the_way.pop(step, None)) is not None:
                compression.add_to(self._shared, update)

    def _evaluate(self) -> Evaluation:
        """Return the evaluation of the shared model."""
        self._learner.model[:] = buffers.view(self._shared)
        return self._learner.evaluate(self._batches.build_validation_chunk(chunk) for chunk in range(self._chunks))


def evaluate_model(
    model: bytes, experiment: Experiment, dataset: Dataset, learner: ExactLearner
) -> tuple[float, float]:
    """Return the loss and the metric of a model on the validation set."""
    batches = Minibatches(experiment, dataset, plan_staging(experiment, len(dataset.train_labels)))
    learner.model[:] = model
    chunks = range(-(-len(dataset.validation_labels) // VALIDATION_CHUNK))
    result = learner.evaluate(batches.build_validation_chunk(chunk) for chunk in chunks)
    return result.loss, result.metric


def _calendar(experiment: Experiment, dataset: Dataset) -> Calendar:
    """Return the calendar of the experiment's run on a data set."""
    minibatches = plan_staging(experiment, len(dataset.train_labels)).minibatches
    return calendar_of(experiment, {"minibatches": minibatches})


def _sha256(model: Tensor) -> str:
    """Return the SHA-256 of a model's bytes."""
    return hashlib.sha256(buffers.view(model)).hexdigest()
