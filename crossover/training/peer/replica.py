"""A peer's replica: model and optimizer between two rounds, kept as one object per checkpoint.

A checkpoint is created before anything of its round is published, so what others have seen of a round proves that its peer can start there
again. Another attempt of the same peer writes the same bits; where it might not (asynchronous mode), the first one written holds for both.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from crossover.algorithms import buffers, contributions
from crossover.algorithms.contributions import Encoder
from crossover.algorithms.optimizers.step import step
from crossover.algorithms.outer import moved, step_outside
from crossover.algorithms.update import Update
from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import Missing, StaleAttempt
from crossover.training import attempts, checkpoints, gradients
from crossover.training.calendar import calendar
from crossover.training.checkpoints import Checkpoint, Position

if TYPE_CHECKING:
    from torch import Tensor

KEPT = 2  # checkpoints of a peer: one may be half forgotten while another is being read


class Replica:
    """`model`, (P + B,): the learner's own memory. `round` rounds are behind it; `facts`: what else its peer must remember.

    With local steps `optimizer` is the peer's own, and `outer` the outer one's vectors, which are the same on all. `codec` keeps what
    the peer left out of what it sent; `between`, where a round has several exchanges, the mean of the first of the round before: by it
    the peer can say again what it said in the second, though nobody else may be in that round any more.

    `confirm` is called before checkpoints are made or taken away; it raises where another attempt holds the rank.
    """

    def __init__(self, ctx: Context, rank: int, *, every: int = 1, confirm: Callable[[], None] = lambda: None) -> None:
        self._ctx, self._rank, self._every, self._confirm = ctx, rank, every, confirm
        self.days = calendar(ctx.facts)
        self.model: Tensor = buffers.tensor(ctx.learner.model)
        self.optimizer: tuple[Tensor, ...] = ()
        self.outer: tuple[Tensor, ...] = ()
        self.codec: Encoder | None = None
        self.between: Tensor | None = None
        self._begun: Tensor | None = (
            None  # the model of all when the round began, once a step of its own has led away from it
        )
        self.round = 0
        self.facts: dict[str, Any] = {}
        self._saved: list[int] = []

    def restore(self, *, at: int | None = None, forget: bool = True) -> None:
        """The newest checkpoint, or that of round `at`, or the seeded model, which is the same on every peer.

        Those after `at` go, if it is to `forget` them: on a GPU the rounds may come to other bits this time, and all peers save these.
        """
        for _ in range(3):
            saved = self._ctx.objects.list(self._ctx.keys.checkpoints_of(self._rank))
            if at is not None:
                later = [key for key in saved if _round(key) > at]
                saved = [key for key in saved if _round(key) == at]
                if at and not saved:
                    raise Missing(self._ctx.keys.checkpoint(self._rank, at))
                if later and forget:
                    self._confirm()
                    self._ctx.objects.delete(*later)
            if not saved:
                self._ctx.learner.initial_model()
                self.optimizer, self.outer, self.round, self.facts = (), (), 0, {}
                self.codec, self.between = self._new_codec(), None
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
        self.optimizer, self.outer = checkpoints.optimizer_of(checkpoint), checkpoints.optimizer_of(checkpoint, "outer")
        self.round, self.facts = checkpoint.position.round, dict(checkpoint.facts)
        self.codec, found = self._new_codec(), checkpoint.vectors.get("between")
        checkpoints.take_kept(checkpoint, self._kept())
        self.between = None if found is None else buffers.tensor(found.data).clone()

    def _new_codec(self) -> Encoder | None:
        learner = self._ctx.learner
        return contributions.encoder(
            self._ctx.experiment, worker=self._rank, shapes=learner.shapes, parameters=learner.parameters
        )

    def _kept(self) -> "Mapping[str, Tensor]":
        return {} if self.codec is None else self.codec.state

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
        body = checkpoints.encode(Checkpoint(Position(self.round), self._vectors(), self.facts))
        created = self._ctx.objects.put_new(key, body)
        attempts.settle(self._ctx, lambda: self._ctx.objects.delete(key))
        if not created and agreed:
            self._take(checkpoints.read(self._ctx.objects.get(key), key=key))
        self._saved.append(self.round)
        spent, self._saved = self._saved[:-KEPT], self._saved[-KEPT:]
        if spent:
            self._ctx.objects.delete(*(self._ctx.keys.checkpoint(self._rank, round) for round in spent))

    def _vectors(self) -> dict[str, Vector]:
        vectors = checkpoints.vectors_of(self._ctx, self.optimizer, self.outer)
        if self.between is not None:
            vectors["between"] = Vector(VectorKind.STATE, buffers.view(self.between))
        return vectors | checkpoints.kept_vectors(self._kept())

    def step(self, gradient: "Tensor", *, minibatch: int, history: list[tuple[float, float]]) -> None:
        """A step of the peer's own, after a `minibatch` of the round."""
        if minibatch == 0:
            self._begun = self.model.clone()
        self._step(gradient, gradients.update(self._ctx, self.round, history=history, minibatch=minibatch))

    def stepped(self, after: Checkpoint) -> None:
        """All of the round's own steps are taken, by a function: its model and its optimizer's vectors."""
        self._begun = self.model.clone()
        self._ctx.learner.model[:] = after.vectors["model"].data
        self.optimizer = checkpoints.optimizer_of(after)

    def contribution(self, out: "Tensor") -> None:
        """What the peer's own steps have come to, into `out`, (P + B,) float32."""
        assert self._begun is not None, "a step of its own is behind it"
        delta = self._ctx.experiment.exchange.what == "delta"
        out.copy_(moved(self._begun, self.model, buffers=self._ctx.facts.buffers) if delta else self.model)

    def update(self, combined: "Tensor", *, history: list[tuple[float, float]]) -> None:
        """The state of the next round, by what all contributions were combined to, (P + B,) float32."""
        exchange, count = self._ctx.experiment.exchange, self._ctx.facts.buffers
        match exchange.what:
            case "gradients":
                self._step(combined, gradients.update(self._ctx, self.round, history=history))
            case "model":
                self.model.copy_(combined)
            case "delta":
                assert self._begun is not None, "a step of its own is behind it"
                model, self.outer = step_outside(
                    self._begun, combined, self.outer, exchange.outer, number=self.round, buffers=count
                )
                self.model.copy_(model)
        self.round += 1

    def _step(self, gradient: "Tensor", update: Update) -> None:
        model, self.optimizer = step(self.model, gradient, self.optimizer, update)
        self.model.copy_(model)


def _round(key: str) -> int:
    return int(key.rpartition("/")[2].split(".")[0])
