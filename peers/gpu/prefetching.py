"""ComputeBatchGradients that fetches the next batch while the current one is computed."""

from functools import partial
from typing import TYPE_CHECKING, Any

from crossover.data.clients import Event
from crossover.processes import BackgroundCall
from crossover.training.peer import OnInstance
from crossover.training.progress import calendar, event_at
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from crossover.learning.batches import Batch


class Prefetching(OnInstance):
    """Batches of this process, each fetched one ahead. `device_learner`: moves them to its GPU as well; None without a GPU."""

    def __init__(self, ctx: Context, device_learner: Any) -> None:
        super().__init__(ctx)
        self._device_learner = device_learner
        self._ahead: tuple[tuple[int, int], BackgroundCall[Batch]] | None = None  # (round, minibatch)

    def batch(self, place: Event) -> "Batch":
        """Return the batch at `place`, and start to fetch the next one."""
        batch = self._take(place)
        self._fetch_after(place)
        return batch

    def _take(self, place: Event) -> "Batch":
        """Return the batch that was fetched ahead, or fetch it now if another one was."""
        wanted = (place["round"], place["minibatch"])
        if self._ahead is not None and self._ahead[0] == wanted:
            return self._ahead[1].result()
        return self._fetch(place)

    def _fetch(self, place: Event) -> "Batch":
        """Fetch the batch at `place`, and copy it to the device if there is one."""
        batch = super().batch(place)
        if self._device_learner is not None:
            epoch, _ = calendar(self._ctx.facts).place(place["round"], place["minibatch"])
            batch = self._device_learner.on_device(batch, epoch=epoch)
        return batch

    def _fetch_after(self, place: Event) -> None:
        """Start to fetch the batch that follows `place`, in this round or the next."""
        days, round = calendar(self._ctx.facts), place["round"]
        if place["minibatch"] + 1 < days.minibatches_in(round):
            then = {**place, "minibatch": place["minibatch"] + 1}
        elif round + 1 < days.rounds:
            then = {**place, **event_at(self._ctx, {}, round + 1)}
        else:
            return
        self._ahead = ((then["round"], then["minibatch"]), BackgroundCall(partial(self._fetch, then), name="prefetch"))
