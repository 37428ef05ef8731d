"""The first steps of a training, taken in this process before anything is started or projected: whether it diverges at once."""

import math

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.algorithms.optimizers import Update
from crossover.algorithms.schedule import learning_rate
from crossover.algorithms.updates import step
from crossover.errors import ConfigError, Refused
from crossover.experiment import Experiment
from crossover.learning.learner import Learner
from crossover.learning.samples import Dataset
from crossover.learning.staging import Minibatches, plan_staging

MINIBATCHES = 3
GROWTH = 1_000.0  # times the first loss: no training comes back from there


def try_minibatches(experiment: Experiment, dataset: Dataset, learner: Learner) -> None:
    """Train for a few steps on the first worker's minibatches, before a run. Raises ConfigError if the loss is not
    finite, or grows beyond GROWTH times the first.
    """
    training, cut = experiment.training, plan_staging(experiment, len(dataset.train_labels))
    minibatches = Minibatches(experiment, dataset, cut)
    steps = training.steps or training.epochs * cut.minibatches
    model, state = buffers.tensor(bytes(learner.initial_model())), tuple[Tensor, ...]()
    losses = list[float]()
    for number in range(MINIBATCHES):
        learner.model[:] = buffers.view(model)
        batch = minibatches.train(0, number % cut.minibatches)
        try:
            losses.append(learner.compute_gradient(batch, epoch=1, round=number, worker=0, minibatch=0))
        except Refused as refused:
            raise ConfigError(_build_message(experiment, number, str(refused).partition(": ")[2])) from refused
        if not math.isfinite(losses[-1]):
            raise ConfigError(_build_message(experiment, number, f"the loss is {losses[-1]}"))
        rate = learning_rate(training, round=number, rounds=max(steps, MINIBATCHES), history=())
        update = Update.from_training(training, number=number, rate=rate, buffers=learner.buffers, sync_every=1)
        model, state = step(model, torch.clone(buffers.tensor(bytes(learner.gradient))), state, update)
    if losses[-1] > GROWTH * losses[0] > 0:
        raise ConfigError(
            _build_message(experiment, MINIBATCHES - 1, f"the loss grows from {losses[0]:.4g} to {losses[-1]:.4g}")
        )
    learner.initial_model()


def _build_message(experiment: Experiment, number: int, problem: str) -> str:
    """Return the error text for a training that diverges at minibatch `number` with this `problem`."""
    training = experiment.training
    scales = training.loss == "mse" and experiment.data.scale_labels == "never"
    other = ", or data.scale_labels: auto" if scales else ""
    return (
        f"training.learning_rate: {training.learning_rate:g}: training diverges, tried here for {number + 1} minibatches of "
        f"{training.batch_size}: {problem}; expected a lower one{other}"
    )
