"""ComputeBatchGradients that fetches the next batch while the current one is computed."""

from functools import partial
from typing import TYPE_CHECKING, Any

from crossover.processes import BackgroundCall
from crossover.stores.clients import Event
from crossover.training import gradients
from crossover.training.peer import OnInstance
from crossover.training.progress import build_round_event, calendar
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batches import Batch


class Prefetching(OnInstance):
    """Computation of a peer's minibatches in its own process, with the next minibatch fetched in the background while one is computed."""

    def __init__(self, ctx: Context, device_learner: Any) -> None:
        """Start with nothing fetched. `device_learner`: learner whose GPU the minibatches are also copied to; None without a GPU."""
        super().__init__(ctx)
        self._device_learner = device_learner
        self._ahead: tuple[tuple[int, int], BackgroundCall[Batch]] | None = None  # (round, minibatch)

    def compute_minibatch_gradient(self, place: Event) -> "Tensor":
        """Compute and return the gradient of the minibatch that `place`, an event, names: in the GPU's memory if the learner's vectors stay
        there. No attack alters it there.
        """
        learner = self._device_learner
        if learner is None or not learner.keeps_vectors:
            return super().compute_minibatch_gradient(place)
        gradients.run_minibatch(self._ctx, place, self.fetch_batch(place))
        vector: Tensor = learner.gradient_vector
        return vector

    def fetch_batch(self, place: Event) -> "Batch":
        """Return the minibatch that `place`, an event, names, with a GPU as a DeviceBatch whose copy may not be complete, and start to
        fetch the one after it in the background, unless it is the run's last. Raises what the background fetch raised.
        """
        batch = self._take(place)
        self._fetch_after(place)
        return batch

    def _take(self, place: Event) -> "Batch":
        """Return the minibatch at `place`: the one fetched in the background if it is that one, otherwise fetched now. Errors of either
        fetch are raised.
        """
        wanted = (place["round"], place["minibatch"])
        if self._ahead is not None and self._ahead[0] == wanted:
            return self._ahead[1].result()
        return self._fetch(place)

    def _fetch(self, place: Event) -> "Batch":
        """Fetch the minibatch at `place`, copy it to the GPU if there is one, and return it."""
        batch = super().fetch_batch(place)
        if self._device_learner is not None:
            epoch, _ = calendar(self._ctx.facts).locate_minibatch(place["round"], place["minibatch"])
            batch = self._device_learner.copy_to_device(batch, epoch=epoch)
        return batch

    def _fetch_after(self, place: Event) -> None:
        """Start to fetch, in the background, the minibatch that follows `place` in this round or the next. Does nothing after the run's
        last.
        """
        days, round = calendar(self._ctx.facts), place["round"]
        if place["minibatch"] + 1 < days.minibatches_in(round):
            then = {**place, "minibatch": place["minibatch"] + 1}
        elif round + 1 < days.rounds:
            then = {**place, **build_round_event(self._ctx, round + 1)}
        else:
            return
        self._ahead = ((then["round"], then["minibatch"]), BackgroundCall(partial(self._fetch, then), name="prefetch"))
