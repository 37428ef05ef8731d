"""ComputeBatchGradients with the next batch already on its way while this one is computed."""

from functools import partial
from typing import TYPE_CHECKING, Any

from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.runtime.threads import BackgroundCall
from crossover.training.calendar import at, calendar
from crossover.training.peer.computing import OnInstance

if TYPE_CHECKING:
    from crossover.learning.batch import Batch


class Prefetching(OnInstance):
    """Batches of this process, fetched one ahead; `device_learner`: moves them to its GPU as well, None without one."""

    def __init__(self, ctx: Context, device_learner: Any) -> None:
        super().__init__(ctx)
        self._device_learner = device_learner
        self._ahead: tuple[tuple[int, int], BackgroundCall[Batch]] | None = None  # (round, minibatch)

    def batch(self, place: Event) -> "Batch":
        batch = self._take(place)
        self._fetch_after(place)
        return batch

    def _take(self, place: Event) -> "Batch":
        wanted = (place["round"], place["minibatch"])
        if self._ahead is not None and self._ahead[0] == wanted:
            return self._ahead[1].result()
        return self._fetch(place)

    def _fetch(self, place: Event) -> "Batch":
        batch = super().batch(place)
        if self._device_learner is not None:
            epoch, _ = calendar(self._ctx.facts).place(place["round"], place["minibatch"])
            batch = self._device_learner.on_device(batch, epoch=epoch)
        return batch

    def _fetch_after(self, place: Event) -> None:
        """Start on the one that follows, in this round or the next."""
        days, round = calendar(self._ctx.facts), place["round"]
        if place["minibatch"] + 1 < days.minibatches_in(round):
            then = {**place, "minibatch": place["minibatch"] + 1}
        elif round + 1 < days.rounds:
            then = {**place, **at(self._ctx, {}, round + 1)}
        else:
            return
        self._ahead = ((then["round"], then["minibatch"]), BackgroundCall(partial(self._fetch, then), name="prefetch"))
