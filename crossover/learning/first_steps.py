"""The first steps of a training, taken in this process before anything is started or projected: whether it diverges at once."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from crossover import runtime
from crossover.algorithms import buffers
from crossover.algorithms.optimizers import Update
from crossover.algorithms.schedule import learning_rate
from crossover.algorithms.updates import step
from crossover.errors import ConfigError, Refused
from crossover.experiment import Experiment
from crossover.learning.batches import Batch
from crossover.learning.learner import Learner
from crossover.learning.memory import release_freed_memory
from crossover.learning.samples import Dataset
from crossover.learning.staging import Minibatches, plan_staging

MINIBATCHES = 3
LARGE, OF_LARGE = (
    50_000_000,
    2,
)  # elements of a model whose trial has fewer minibatches: a second update holds six vectors
GROWTH = 1_000.0  # times the first loss: no training comes back from there
SURE_S = 1.0  # which a minibatch takes that is not timed twice
MOST_S = 10.0  # for all minibatches together; those of a large model have fewer samples than the experiment's


def try_minibatches(
    experiment: Experiment, dataset: Dataset, learner: Learner, *, clock: Callable[[], float] = runtime.perf_counter
) -> None:
    """Train `learner` alone on the first minibatches of the experiment's first worker, from the initial model, and raise ConfigError if the
    loss is not finite, grows more than 1,000-fold, or the learner refuses a gradient. The learner's model is changed.

    There are 3 minibatches, or 2 for a model of more than 50 million elements. If they would take more than about 10 s together,
    each has fewer samples. `clock`: returns seconds.
    """
    training, cut = experiment.training, plan_staging(experiment, len(dataset.train_labels))
    minibatches = Minibatches(experiment, dataset, cut)
    steps = training.steps or training.epochs * cut.minibatches
    release_freed_memory()  # by now nobody needs the builds that were compared, and the steps below take three vectors
    model, state = buffers.tensor(learner.initialise_model()), tuple[Tensor, ...]()
    losses = list[float]()
    count = MINIBATCHES if model.numel() <= LARGE else OF_LARGE
    samples = _count_affordable_samples(minibatches.build_minibatch(0, 0), learner, clock)
    for number in range(count):
        batch = _take_first(minibatches.build_minibatch(0, number % cut.minibatches), samples)
        try:
            losses.append(learner.compute_gradient(batch, epoch=1, round=number, worker=0, minibatch=0))
        except Refused as refused:
            raise ConfigError(_build_message(experiment, number, str(refused).partition(": ")[2])) from refused
        if not math.isfinite(losses[-1]):
            raise ConfigError(_build_message(experiment, number, f"the loss is {losses[-1]}"))
        if number + 1 == count:
            break
        rate = learning_rate(training, round=number, rounds=max(steps, MINIBATCHES), history=())
        update = Update.from_training(training, number=number, rate=rate, buffers=learner.buffers, sync_every=1)
        gradient = buffers.tensor(learner.gradient)
        if number + 2 < count:  # the optimizer's first state may be the gradient itself, which the learner overwrites
            gradient = torch.clone(gradient)
        moved, state = step(model, gradient, state, update)
        model.copy_(moved)
        del moved, gradient
        if number + 2 == count:
            state = ()  # a large model's vectors are most of a machine's memory
    if losses[-1] > GROWTH * losses[0] > 0:
        raise ConfigError(
            _build_message(experiment, count - 1, f"the loss grows from {losses[0]:.4g} to {losses[-1]:.4g}")
        )


def _count_affordable_samples(batch: Batch, learner: Learner, clock: Callable[[], float]) -> int:
    """Return how many samples each of the three tried minibatches may have so that all take about 10 s together: at least 2, at most
    those of `batch`; all of them if the gradient is refused, which the trial then reports. Overwrites the learner's gradient.

    The time per sample is measured with 2 samples, by `clock`, which returns seconds; twice unless it takes over 1 s, since the first
    pass includes what torch prepares once.
    """
    few = _take_first(batch, 2)
    spent = list[float]()
    for _ in range(2 if batch.samples > 2 else 0):
        began = clock()
        try:
            learner.compute_gradient(few, epoch=1, round=0, worker=0, minibatch=0)
        except Refused:
            return batch.samples  # told by the trial itself, of a whole minibatch
        spent.append(clock() - began)
        if spent[0] > SURE_S:
            break
    sample_s = min(spent, default=0.0) / 2
    affordable = MOST_S / MINIBATCHES / sample_s if sample_s else math.inf
    return batch.samples if affordable >= batch.samples else max(2, int(affordable))


def _take_first(batch: Batch, samples: int) -> Batch:
    """Return a minibatch of the first `samples` samples of `batch`, with `answers` unset; `batch` itself if it has no more samples
    than that.
    """
    if samples >= batch.samples:
        return batch
    return Batch(batch.inputs[:samples], batch.labels[:samples], batch.sample_ids[:samples])


def _build_message(experiment: Experiment, number: int, problem: str) -> str:
    """Return the error text for a training that diverges. `number`: index of the minibatch at which it does; `problem`: how, in words."""
    training = experiment.training
    scales = training.loss == "mse" and experiment.data.scale_labels == "never"
    other = ", or data.scale_labels: auto" if scales else ""
    return (
        f"training.learning_rate: {training.learning_rate:g}: training diverges, tried here for {number + 1} minibatches of "
        f"{training.batch_size}: {problem}; expected a lower one{other}"
    )
