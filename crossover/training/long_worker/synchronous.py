"""A synchronous worker of LambdaML: compute, exchange, update, round after round, for as long as the invocation
lasts.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021). Gradients are exchanged, or,
after local updates, models. All workers end every round with the same bits; exchanging gradients, with those of
learning/reference.py.
"""

from typing import TYPE_CHECKING, Any

from crossover.algorithms import buffers, optimizer
from crossover.algorithms.running_mean import RunningMean
from crossover.context import Context
from crossover.dataplane.vector import Kind, Vector
from crossover.errors import StaleAttempt
from crossover.event import Event
from crossover.training import gradients
from crossover.training.long_worker.group import Exchange, Peers
from crossover.training.long_worker.invocation import Invocation, through
from crossover.training.long_worker.waits import Settled

if TYPE_CHECKING:
    from torch import Tensor


def train(ctx: Context, event: Event, exchange: Exchange) -> Event:
    """Table 1's four stages, round after round, until training ends or the invocation must."""
    return through(ctx, event, lambda invocation: SynchronousWorker(invocation, exchange))


class SynchronousWorker:
    """The state of one worker between two rounds: model and optimizer; within a round, what its minibatches have come
    to.
    """

    def __init__(self, invocation: Invocation, exchange: Exchange) -> None:
        ctx = invocation.ctx
        self._ctx, self._invocation, self._exchange = ctx, invocation, exchange
        self._training = ctx.experiment.training
        self._averages_models = ctx.experiment.exchange.what == "model"
        checkpoint = invocation.restore()
        self._model, self._received = buffers.tensor(ctx.learner.model), buffers.tensor(ctx.learner.gradient)
        ctx.learner.model[:] = checkpoint.vectors["model"].data
        # Copies: what the checkpoint was read into is let go, and an optimizer's vector is replaced, never changed.
        names = sorted(name for name in checkpoint.vectors if name.startswith("optimizer"))
        self._optimizer = tuple(buffers.tensor(checkpoint.vectors[name].data).clone() for name in names)
        self._sum = self._model.new_empty(0 if self._averages_models else self._model.numel())
        if "sum" in checkpoint.vectors:
            self._sum.copy_(buffers.tensor(checkpoint.vectors["sum"].data))
        self._replaying = True  # until a round is found whose result is not there yet

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        kind = Kind.VELOCITY if self._training.optimizer == "sgd" else Kind.MOMENT
        vectors = {"model": Vector(Kind.MODEL, self._ctx.learner.model)}
        vectors |= {f"optimizer{i}": Vector(kind, buffers.view(part)) for i, part in enumerate(self._optimizer)}
        if self._invocation.position.minibatch and not self._averages_models:
            vectors["sum"] = Vector(Kind.GRADIENT, buffers.view(self._sum))
        return vectors, {}

    def show_model(self) -> None:
        """The learner's model is the state's model at all times."""

    def stored(self, round: int) -> list[str]:
        keys, rank, count = self._ctx.keys, self._invocation.rank, self._ctx.experiment.workers
        return [
            *self._exchange.used_up(keys, round, rank=rank, count=count),
            *self._exchange.results(keys, round, rank=rank, count=count),
        ]

    def round(self) -> None:
        invocation = self._invocation
        peers = Peers(
            self._ctx,
            invocation.waits,
            invocation.rank,
            invocation.round,
            invocation.samples(),
            Kind.MODEL if self._averages_models else Kind.GRADIENT,
        )
        self._replaying = self._replaying and self._exchange.done(peers)
        if self._averages_models:
            self._update_locally()
        elif not self._replaying:
            self._accumulate()
        self._synchronise(peers)
        with self._ctx.stage("update"):
            if self._averages_models:
                self._model.copy_(self._received)
            else:
                self._step(self._received, number=invocation.round, sync_every=invocation.days.sync_every)
        spent = self._used_up(peers)
        if invocation.journal.is_due(invocation.round):
            # All have contributed to this round, so all have a checkpoint at its start: older results are no longer
            # needed by anyone.
            oldest = max(0, invocation.round - self._ctx.experiment.functions.checkpoint_every)
            for round in range(oldest, invocation.round):
                spent += self._exchange.results(self._ctx.keys, round, rank=peers.rank, count=peers.count)
        if spent:
            invocation.waits.steadily(lambda: self._ctx.tensors[peers.rank].delete(*spent))
        invocation.next_round()

    def _accumulate(self) -> None:
        """Fetch and compute: the mean gradient over the round's minibatches, from wherever the last invocation left
        it.
        """
        invocation = self._invocation
        mean = RunningMean(invocation.minibatch_samples(), total=self._sum, added=invocation.position.minibatch)

        def add(gradient: Vector) -> None:
            mean.add(buffers.tensor(gradient.data))
            if mean.complete:
                mean.result()

        while not mean.complete:
            invocation.compute(add)

    def _update_locally(self) -> None:
        """Model averaging: an optimizer step after each minibatch; only then models are exchanged."""
        invocation = self._invocation
        before = (invocation.epoch - 1) * invocation.days.minibatches + invocation.days.first_minibatch(
            invocation.round
        )

        def step(gradient: Vector) -> None:
            number = before + invocation.position.minibatch
            self._step(buffers.tensor(gradient.data), number=number, sync_every=1)

        while invocation.position.minibatch < len(invocation.minibatch_samples()):
            invocation.compute(step)

    def _synchronise(self, peers: Peers) -> None:
        own = self._model if self._averages_models else self._sum
        if not self._replaying:
            try:
                self._exchange.exchange(peers, own, self._received)
                return
            except Settled:  # another attempt of this worker did its share of the round meanwhile
                pass
            except StaleAttempt:
                self._ctx.tensors[peers.rank].delete(*self._used_up(peers))  # nobody else will
                raise
        self._exchange.collect(peers, self._received)

    def _used_up(self, peers: Peers) -> list[str]:
        return self._exchange.used_up(peers.keys, peers.round, rank=peers.rank, count=peers.count)

    def _step(self, gradient: "Tensor", *, number: int, sync_every: int) -> None:
        """The optimizer's step `number` (from 0), on the learner's model."""
        invocation = self._invocation
        history = invocation.history()
        update = gradients.update(self._ctx, invocation.round, history=history, number=number, sync_every=sync_every)
        model, self._optimizer = optimizer.step(self._model, gradient, self._optimizer, update)
        self._model.copy_(model)
