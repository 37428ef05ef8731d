"""A peer's replica: model and optimizer between two rounds, kept as one object per checkpoint.

A checkpoint is created before anything of its round is published, so what others have seen of a round proves that its peer can start there
again. Another attempt of the same peer writes the same bits; where it might not (asynchronous mode), the first one written holds for both.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from crossover.algorithms import buffers
from crossover.algorithms.optimizers.step import step
from crossover.context import Context
from crossover.errors import Missing, StaleAttempt
from crossover.training import attempts, checkpoints, gradients
from crossover.training.calendar import calendar
from crossover.training.checkpoints import Checkpoint, Position

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 2  # checkpoints of a peer: one may be half forgotten while another is being read


class Replica:
    """`model`, (P + B,): the learner's own memory. `round` rounds are behind it; `facts`: what else its peer must remember.

    `confirm` is called before checkpoints are made or taken away; it raises where another attempt holds the rank.
    """

    def __init__(self, ctx: Context, rank: int, *, every: int = 1, confirm: Callable[[], None] = lambda: None) -> None:
        self._ctx, self._rank, self._every, self._confirm = ctx, rank, every, confirm
        self.days = calendar(ctx.facts)
        self.model: Tensor = buffers.tensor(ctx.learner.model)
        self.optimizer: tuple[Tensor, ...] = ()
        self.round = 0
        self.facts: dict[str, Any] = {}
        self._saved: list[int] = []

    @property
    def epoch(self) -> int:
        """The epoch of the round that comes."""
        return self.days.epoch(self.round)

    def restore(self, *, at: int | None = None) -> None:
        """The newest checkpoint, or that of round `at`, or the seeded model, which is the same on every peer.

        Those after `at` go: on a GPU the rounds may come to other bits this time, and all peers save these.
        """
        for _ in range(3):
            saved = self._ctx.objects.list(self._ctx.keys.checkpoints_of(self._rank))
            if at is not None:
                later = [key for key in saved if _round(key) > at]
                saved = [key for key in saved if _round(key) == at]
                if at and not saved:
                    raise Missing(self._ctx.keys.checkpoint(self._rank, at))
                if later:
                    self._confirm()
                    self._ctx.objects.delete(*later)
            if not saved:
                self._ctx.learner.initial_model()
                self.optimizer, self.round, self.facts = (), 0, {}
                return
            try:
                self._take(checkpoints.read(self._ctx.objects.get(saved[-1]), key=saved[-1]))
            except Missing:
                continue  # an older attempt that still lives has saved newer ones and forgotten this
            self._saved = [round for key in saved if (round := _round(key)) <= self.round]
            return
        raise StaleAttempt(f"peer {self._rank}: another attempt saves checkpoints faster than they can be read")

    def _take(self, checkpoint: Checkpoint) -> None:
        self._ctx.learner.model[:] = checkpoint.vectors["model"].data
        self.optimizer = checkpoints.optimizer_of(checkpoint)
        self.round, self.facts = checkpoint.position.round, dict(checkpoint.facts)

    def save(self, *, agreed: bool = False) -> None:
        """Create the checkpoint of the round that comes, if one is due, and forget older ones.

        `agreed`: another attempt may have come to other bits; then the one created first is taken up here too.
        """
        if self.round % self._every and not agreed:
            return
        if self.round in self._saved:
            return
        self._confirm()
        key = self._ctx.keys.checkpoint(self._rank, self.round)
        body = checkpoints.encode(
            Checkpoint(Position(self.round), checkpoints.vectors_of(self._ctx, self.optimizer), self.facts)
        )
        created = self._ctx.objects.put_new(key, body)
        attempts.settle(self._ctx, lambda: self._ctx.objects.delete(key))
        if not created and agreed:
            self._take(checkpoints.read(self._ctx.objects.get(key), key=key))
        self._saved.append(self.round)
        spent, self._saved = self._saved[:-KEPT], self._saved[-KEPT:]
        if spent:
            self._ctx.objects.delete(*(self._ctx.keys.checkpoint(self._rank, round) for round in spent))

    def update(self, gradient: "Tensor", *, history: list[tuple[float, float]]) -> None:
        """The state of the next round, by the combined gradient, (P + B,) float32."""
        update = gradients.update(self._ctx, self.round, history=history)
        model, self.optimizer = step(self.model, gradient, self.optimizer, update)
        self.model.copy_(model)
        self.round += 1


def _round(key: str) -> int:
    return int(key.rpartition("/")[2].split(".")[0])
