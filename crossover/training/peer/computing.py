"""ComputeBatchGradients on the peer itself: its batches one after another, two vectors in memory."""

from typing import TYPE_CHECKING

from crossover.algorithms import buffers
from crossover.algorithms.running_mean import RunningMean
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.training import gradients
from crossover.training.calendar import minibatch_samples

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batch import Batch
    from crossover.training.peer.replica import Replica


class TrainingLoss:
    """The epoch's mean training loss so far, as a note for its record."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._loss, self._samples, self._answers, self._epoch = 0.0, 0, 0.0, 0

    def count(self, epoch: int) -> None:
        """One more minibatch, whose loss the context has just noted."""
        if epoch != self._epoch:
            self._loss, self._samples, self._answers, self._epoch = 0.0, 0, 0.0, epoch
        answers = gradients.noted_answers(self._ctx)
        self._loss += self._ctx.notes["loss"] * answers
        self._samples += self._ctx.notes["samples"]
        self._answers += answers
        gradients.note(self._ctx, self._loss / max(1, self._answers), samples=self._samples, answers=self._answers)


class OnInstance:
    """Batches in this process, one after another."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._loss = ctx, TrainingLoss(ctx)

    def gradient(self, event: Event, out: "Tensor") -> None:
        ctx = self._ctx
        mean = RunningMean(minibatch_samples(ctx.facts, event["round"], worker=event["worker"]), total=out)
        for minibatch in range(event["minibatches"]):
            place = {**event, "minibatch": minibatch}
            gradient = gradients.compute(ctx, place, self.batch(place))
            mean.add(buffers.tensor(gradient.data))
            self._loss.count(event["epoch"])
        mean.result()

    def steps(self, event: Event, replica: "Replica", history: list[tuple[float, float]]) -> None:
        for minibatch in range(replica.days.minibatches_in(event["round"])):
            place = {**event, "minibatch": minibatch}
            gradient = gradients.compute(self._ctx, place, self.batch(place))
            replica.step(buffers.tensor(gradient.data), minibatch=minibatch, history=history)
            self._loss.count(event["epoch"])

    def batch(self, place: Event) -> "Batch":
        return gradients.fetch_batch(self._ctx, place)

    def forget(self, round: int) -> None:
        """Nothing was left anywhere."""
