"""ComputeBatchGradients on the peer itself: its batches one after another, two vectors in memory."""

from typing import TYPE_CHECKING

from crossover import rounds
from crossover.algorithms import buffers
from crossover.algorithms.running_mean import RunningMean
from crossover.context import Context
from crossover.workflow import Event

if TYPE_CHECKING:
    from torch import Tensor


def minibatch_samples(ctx: Context, event: Event) -> list[int]:
    """Of the worker's minibatches of the event's round."""
    first = rounds.calendar(ctx.facts).first_minibatch(event["round"])
    counts: list[int] = ctx.facts.manifest["counts"][event["worker"]]
    return counts[first : first + event["minibatches"]]


def round_samples(ctx: Context, round: int) -> list[int]:
    """Of every worker in `round`, by rank."""
    days = rounds.calendar(ctx.facts)
    first, count = days.first_minibatch(round), days.minibatches_in(round)
    return [sum(each[first : first + count]) for each in ctx.facts.manifest["counts"]]


class OnInstance:
    """Batches in this process, one after another."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._loss, self._samples, self._epoch = 0.0, 0, 0

    def gradient(self, event: Event, out: "Tensor") -> None:
        ctx = self._ctx
        mean = RunningMean(minibatch_samples(ctx, event), total=out)
        for minibatch in range(event["minibatches"]):
            place = {**event, "minibatch": minibatch}
            gradient = rounds.gradient(ctx, place, rounds.fetch(ctx, place))
            mean.add(buffers.tensor(gradient.data))
            self._count(event["epoch"], ctx.notes["loss"], gradient.samples)
        mean.result()

    def forget(self, round: int) -> None:
        """Nothing was left anywhere."""

    def _count(self, epoch: int, loss: float, samples: int) -> None:
        """The epoch's training loss so far, for its record."""
        if epoch != self._epoch:
            self._loss, self._samples, self._epoch = 0.0, 0, epoch
        self._loss += loss * samples
        self._samples += samples
        self._ctx.note(loss=self._loss / self._samples, samples=self._samples)
