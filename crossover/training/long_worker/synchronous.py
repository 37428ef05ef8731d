"""A synchronous worker of LambdaML: compute, exchange, update, round after round, for as long as the invocation lasts.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021). Gradients are exchanged, or, after local updates,
models. All workers end every round with the same bits; exchanging gradients, with those of learning/reference.py.

torch is imported where it is needed, so that an architecture in functions/ may derive a worker of its own from these.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from crossover.context import Context
from crossover.dataplane.vector import Kind, Vector
from crossover.errors import StaleAttempt
from crossover.event import Event
from crossover.training import checkpoints, gradients
from crossover.training.checkpoints import Checkpoint
from crossover.training.long_worker.invocation import Invocation, through
from crossover.training.long_worker.waits import Settled

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.long_worker.group import Exchange, Group


class SynchronousWorker:
    """The state of one worker between two rounds: model and optimizer; within a round, what its minibatches have come to. Every worker
    takes the optimizer's step with the mean gradient of all.

    A variation overrides what differs: `compute`, `contribution`, `apply`, and `extra_state` for vectors that it keeps from round to round.
    """

    exchanges = Kind.GRADIENT  # what `contribution` is
    computing_moves_on = (
        False  # whether `compute` changes what the worker keeps: then it is repeated where the round's result is known
    )

    def __init__(self, invocation: Invocation, exchange: "Exchange") -> None:
        from crossover.algorithms import buffers

        self.ctx, self.invocation = invocation.ctx, invocation
        self.model: Tensor = buffers.tensor(self.ctx.learner.model)  # the learner's own memory
        self._received: Tensor = buffers.tensor(self.ctx.learner.gradient)
        self._exchange = exchange
        self._optimizer: tuple[Tensor, ...] = ()
        self._sum: Tensor | None = None  # of the round's gradients so far, then their mean
        self._replaying = True  # until a round is found whose result is not there yet

    # --- what a variation may override ------------------------------------------------------------------------------------

    def compute(self) -> None:
        """Fetch and compute: the round's minibatches that are left, from wherever the last invocation stopped."""
        from crossover.algorithms.running_mean import RunningMean

        invocation, total = self.invocation, self._total()
        mean = RunningMean(invocation.minibatch_samples(), total=total, added=invocation.position.minibatch)

        def add(gradient: "Tensor") -> None:
            mean.add(gradient)
            if mean.complete:
                mean.result()

        while not mean.complete:
            invocation.compute(add)

    def contribution(self) -> "Tensor":
        """What is exchanged and averaged over all workers, by their samples: (D,) float32."""
        return self._total()

    def apply(self, combined: "Tensor") -> None:
        """The state of the next round, from what all contributions were combined to, (D,) float32."""
        self.step(combined, number=self.invocation.round, sync_every=self.invocation.days.sync_every)

    def extra_state(self) -> "Mapping[str, Tensor]":
        """Vectors beside model and optimizer that checkpoints keep, by name: float32, each written to in place. What a checkpoint holds of
        them is put there before the first round.
        """
        return {}

    # --- one round, and what a checkpoint keeps ---------------------------------------------------------------------------

    def step(self, gradient: "Tensor", *, number: int, sync_every: int) -> None:
        """The optimizer's step `number` (from 0), on the model."""
        from crossover.algorithms.optimizers.step import step

        history = self.invocation.history()
        update = gradients.update(
            self.ctx, self.invocation.round, history=history, number=number, sync_every=sync_every
        )
        model, self._optimizer = step(self.model, gradient, self._optimizer, update)
        self.model.copy_(model)

    def restore(self, checkpoint: Checkpoint) -> None:
        from crossover.algorithms import buffers

        vectors = checkpoint.vectors
        self.ctx.learner.model[:] = vectors["model"].data
        self._optimizer = checkpoints.optimizer_of(checkpoint)
        if "sum" in vectors:
            self._total().copy_(buffers.tensor(vectors["sum"].data))
        for name, own in self.extra_state().items():
            if (kept := vectors.get(f"extra {name}")) is not None:
                own.copy_(buffers.tensor(kept.data).view_as(own))

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        from crossover.algorithms import buffers

        vectors = checkpoints.vectors_of(self.ctx, self._optimizer)
        if self.invocation.position.minibatch and self._sum is not None:
            vectors["sum"] = Vector(Kind.GRADIENT, buffers.view(self._sum))
        extra = self.extra_state().items()
        return vectors | {f"extra {name}": Vector(Kind.STATE, buffers.view(own)) for name, own in extra}, {}

    def show_model(self) -> None:
        """The learner's model is the state's model at all times."""

    def stored(self, round: int) -> list[str]:
        rank, count = self.invocation.rank, self.ctx.experiment.workers
        used_up = self._exchange.used_up(self.ctx.keys, round, rank=rank, count=count)
        return [*used_up, *self._exchange.results(self.ctx.keys, round, rank=rank, count=count)]

    def round(self) -> None:
        from crossover.training.long_worker.group import Group

        invocation, samples = self.invocation, self.invocation.samples()
        group = Group(self.ctx, invocation.waits, invocation.rank, invocation.round, samples, self.exchanges)
        self._replaying = self._replaying and self._exchange.done(group)
        if self.computing_moves_on or not self._replaying:
            self.compute()
        self._synchronise(group)
        with self.ctx.stage("update"):
            self.apply(self._received)
        self._clear_away(group)
        invocation.next_round()

    def _total(self) -> "Tensor":
        if self._sum is None:
            self._sum = self.model.new_empty(self.model.numel())
        return self._sum

    def _synchronise(self, group: "Group") -> None:
        if not self._replaying:
            try:
                self._exchange.exchange(group, self.contribution(), self._received)
                return
            except Settled:  # another attempt of this worker did its share of the round meanwhile
                pass
            except StaleAttempt:
                self.ctx.tensors[group.rank].delete(*self._used_up(group))  # nobody else will
                raise
        self._exchange.collect(group, self._received)

    def _clear_away(self, group: "Group") -> None:
        """What this worker has stored and nobody needs any more."""
        spent = self._used_up(group)
        if self.invocation.journal.is_due(group.round):
            # All have contributed to this round, so all have a checkpoint at its start: older results are no longer needed by anyone.
            oldest = max(0, group.round - self.ctx.experiment.functions.checkpoint_every)
            for round in range(oldest, group.round):
                spent += self._exchange.results(self.ctx.keys, round, rank=group.rank, count=group.count)
        if spent:
            self.invocation.waits.steadily(lambda: self.ctx.tensors[group.rank].delete(*spent))

    def _used_up(self, group: "Group") -> list[str]:
        return self._exchange.used_up(group.keys, group.round, rank=group.rank, count=group.count)


class LocalSteps(SynchronousWorker):
    """`exchange.what: model`: LambdaML's model averaging, elsewhere called local SGD. An optimizer step of the worker's own after each
    minibatch; only then are models exchanged, and their mean is every worker's.
    """

    exchanges = Kind.MODEL
    computing_moves_on = True  # the optimizer's vectors stay the worker's own

    def compute(self) -> None:
        invocation = self.invocation
        before = (invocation.epoch - 1) * invocation.days.minibatches
        before += invocation.days.first_minibatch(invocation.round)

        def step(gradient: "Tensor") -> None:
            self.step(gradient, number=before + invocation.position.minibatch, sync_every=1)

        while invocation.position.minibatch < len(invocation.minibatch_samples()):
            invocation.compute(step)

    def contribution(self) -> "Tensor":
        return self.model

    def apply(self, combined: "Tensor") -> None:
        self.model.copy_(combined)


def train(
    ctx: Context,
    event: Event,
    exchange: "Exchange",
    worker: "Callable[[Invocation, Exchange], SynchronousWorker] | None" = None,
) -> Event:
    """One invocation of one worker: Table 1's four stages, round after round, until training ends or the invocation must. `worker`: a
    variation of an architecture's own, instead of what the YAML says.
    """
    kind = worker or (LocalSteps if ctx.experiment.exchange.what == "model" else SynchronousWorker)
    return through(ctx, event, lambda invocation: kind(invocation, exchange))
