"""What an asynchronous peer must hold behind each round, by what it held before and the gradients that it says it averaged."""

from collections.abc import Mapping

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.algorithms.averaging import RunningMean
from crossover.algorithms.optimizers import Update
from crossover.algorithms.schedule import learning_rate, weigh_contributions
from crossover.algorithms.updates import step
from crossover.experiment import Experiment
from crossover.learning.batches import Batch
from crossover.learning.samples import Dataset
from crossover.learning.staging import Minibatches, plan_staging
from crossover.training.checkpoints import Checkpoint, copy_optimizer
from crossover.training.progress import calendar_of
from tests.chaos.world.learner import ExactLearner

States = Mapping[int, Mapping[int, Checkpoint]]  # of each peer, by round
History = list[tuple[float, float]]  # loss and metric of each evaluation, oldest first


class AsynchronousSteps:
    """The rounds of asynchronous peers, each computed again in one process from the peer's earlier checkpoint. `experiment`: already
    resolved; `states`: all checkpoints that the peers have saved.
    """

    def __init__(self, experiment: Experiment, dataset: Dataset, learner: ExactLearner, states: States) -> None:
        """Prepare the workers' minibatches of `dataset`. `learner`: computes the gradients."""
        self._experiment, self._learner, self._states = experiment, learner, states
        plan = plan_staging(experiment, len(dataset.train_labels))
        self._batches = Minibatches(experiment, dataset, plan)
        self._answers = self._batches.count_answers()
        self._days = calendar_of(experiment, {"minibatches": plan.minibatches})

    def find_wrong_steps(self, history: History) -> list[str]:
        """Return a sentence for each round after which a peer saved another model than its own gradient and those that it averaged give.
        Models are compared approximately, because gradients are added in any order. `history`: the run's evaluations.
        """
        return [
            f"peer {peer}, round {round}: its model is not the step along the mean of the gradients that it says it averaged"
            for peer, saved in self._states.items()
            for round in sorted(saved)
            if (expected := self._expect(peer, round, history)) is not None
            and not torch.allclose(buffers.tensor(saved[round].vectors["model"].data), expected, rtol=1e-4, atol=1e-5)
        ]

    def _expect(self, peer: int, round: int, history: History) -> Tensor | None:
        """Return the model that the peer must have at the start of `round`; None if a model that it follows from was never saved."""
        before, now = round - 1, self._states[peer][round]
        model, own = self._model(peer, before), self._gradient(peer, before)
        if model is None or own is None:
            return None
        known = self._states[peer][before].facts.get("seen", {}) if before else {}
        total = float(self._weights(before)[peer])
        summed = own * total
        for other, version in now.facts.get("seen", {}).items():
            if known.get(other) == version:
                continue
            gradient = self._gradient(int(other), version)
            if gradient is None:
                return None
            inverse = self._experiment.p2p.staleness_weights == "inverse"
            weight = self._weights(version)[int(other)] / (1 + max(0, before - version) if inverse else 1)
            summed, total = summed + gradient * weight, total + weight
        count = model.numel() - self._learner.buffers
        mean = summed / total
        mean[count:] = own[count:]
        rounds = self._days.rounds
        told = history[: self._days.epochs_before(before)]
        training = self._experiment.training
        update = Update.from_training(
            training,
            number=before,
            rate=learning_rate(training, round=before, rounds=rounds, history=told),
            buffers=self._learner.buffers,
            sync_every=self._days.sync_every,
        )
        optimizer = copy_optimizer(self._states[peer][before]) if before else ()
        return step(model, mean, optimizer, update)[0]

    def _model(self, peer: int, round: int) -> Tensor | None:
        """Return the model that a peer had at the start of `round`; None if it was never saved."""
        if not round:
            return buffers.tensor(bytes(self._learner.initialise_model())).clone()
        saved = self._states.get(peer, {}).get(round)
        return None if saved is None else buffers.tensor(saved.vectors["model"].data).clone()

    def _gradient(self, peer: int, round: int) -> Tensor | None:
        """Return the mean gradient that a peer sent in `round`; None if the model that it computed at was never saved."""
        model = self._model(peer, round)
        if model is None:
            return None
        self._learner.model[:] = buffers.view(model)
        numbers = self._days.list_minibatches(round)
        counts = [self._answers[peer][number] for number in numbers]
        mean = RunningMean.allocate(weigh_contributions(counts), elements=model.numel())
        for position, number in enumerate(numbers):
            epoch = self._days.locate_minibatch(round, position)[0]
            batch: Batch = self._batches.build_minibatch(peer, number)
            self._learner.compute_gradient(batch, epoch=epoch, round=round, worker=peer, minibatch=position)
            mean.add(buffers.tensor(self._learner.gradient))
        return mean.result().clone()

    def _weights(self, round: int) -> list[int]:
        """Return the weight of each peer's gradient of a round."""
        numbers = self._days.list_minibatches(round)
        return weigh_contributions([sum(own[number] for number in numbers) for own in self._answers])
