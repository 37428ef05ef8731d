"""ComputeBatchGradients with the next batch already on its way while this one is computed."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from crossover.algorithms import buffers
from crossover.algorithms.running_mean import RunningMean
from crossover.context import Context
from crossover.event import Event
from crossover.training import gradients
from crossover.training.calendar import at, calendar, minibatch_samples
from peers.p2p.computing import TrainingLoss

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batch import Batch


class Prefetching:
    """Batches of this process, fetched one ahead; `device_learner`: moves them to its GPU as well, None without one."""

    def __init__(self, ctx: Context, device_learner: Any) -> None:
        self._ctx, self._device_learner, self._loss = ctx, device_learner, TrainingLoss(ctx)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._ahead: tuple[tuple[int, int], Future[Batch]] | None = None  # (round, minibatch)

    def gradient(self, event: Event, out: "Tensor") -> None:
        mean = RunningMean(minibatch_samples(self._ctx.facts, event["round"], worker=event["worker"]), total=out)
        for minibatch in range(event["minibatches"]):
            place = {**event, "minibatch": minibatch}
            batch = self._take(place)
            self._fetch_after(place)
            gradient = gradients.compute(self._ctx, place, batch)
            mean.add(buffers.tensor(gradient.data))
            self._loss.count(event["epoch"], gradient.samples)
        mean.result()

    def forget(self, round: int) -> None:
        """Nothing was left anywhere."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self, place: Event) -> "Batch":
        wanted = (place["round"], place["minibatch"])
        if self._ahead is not None and self._ahead[0] == wanted:
            return self._ahead[1].result()
        return self._fetch(place)

    def _fetch(self, place: Event) -> "Batch":
        batch = gradients.fetch_batch(self._ctx, place)
        return batch if self._device_learner is None else self._device_learner.on_device(batch, epoch=place["epoch"])

    def _fetch_after(self, place: Event) -> None:
        """Start on the one that follows, in this round or the next."""
        days, round = calendar(self._ctx.facts), place["round"]
        if place["minibatch"] + 1 < place["minibatches"]:
            then = {**place, "minibatch": place["minibatch"] + 1}
        elif round + 1 < days.rounds:
            then = {**place, **at(self._ctx, {}, round + 1)}
        else:
            return
        self._ahead = ((then["round"], then["minibatch"]), self._pool.submit(self._fetch, then))
