"""LambdaML's synchronous worker: compute, exchange and update, round after round, until the invocation ends.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021). Workers exchange gradients or, after local updates,
models. All workers end every round with the same bits; if they exchange gradients, with the bits of learning/reference.py.

torch is imported where it is needed, so that an architecture in functions/ can derive its own worker from these classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crossover.algorithms import codecs
from crossover.errors import Refused
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind
from crossover.training import checkpoints, gradients, long_worker
from crossover.training.checkpoints import Checkpoint
from crossover.training.long_worker import Invocation, run_invocation
from crossover.training.waits import ResultExists
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.algorithms.contributions import Contribution, Encoder
    from crossover.stores.keys import Keys
    from crossover.training.group import Group, GroupExchange


class SynchronousWorker:
    """State and actions of one worker that steps its optimizer with the mean gradient of all workers: model, optimizer, and the sum of the
    current round's gradients so far.

    A subclass overrides `compute`, `contribution` and `apply`, and `extra_state` if it keeps further vectors from round to round.
    `exchanges`: kind of the vector that `contribution` returns; `computing_moves_on`: whether `compute` changes state that the worker keeps
    from round to round, so that it must be repeated even if the round's result is stored already.
    """

    exchanges = VectorKind.GRADIENT
    computing_moves_on = False

    def __init__(self, invocation: Invocation, exchange: "GroupExchange") -> None:
        """Take the model from the learner of the `invocation`, and create an encoder if the experiment compresses. `exchange`: sends and
        combines the contributions.
        """
        from crossover.algorithms import buffers, contributions

        self.ctx, self.invocation = invocation.ctx, invocation
        self.model: Tensor = buffers.tensor(self.ctx.learner.model)  # the learner's own memory
        self._received: Tensor = buffers.tensor(self.ctx.learner.gradient)
        self._exchange = exchange
        learner = self.ctx.learner
        self._codec = contributions.build_encoder(
            self.ctx.experiment, worker=invocation.rank, shapes=learner.shapes, parameters=learner.parameters
        )
        self._factors: dict[int, Tensor] = {}  # by length, memory for what a second exchange brings
        self._optimizer: tuple[Tensor, ...] = ()
        self._sum: Tensor | None = None  # of the round's gradients so far, then their mean
        self._replaying = True  # until a round is found whose result is not there yet

    # --- what a variation may override ------------------------------------------------------------------------------------

    def compute(self) -> None:
        """Fetch the round's remaining minibatches and compute their gradients, starting where the last invocation stopped. The mean of all
        the round's gradients is then what `contribution` returns.

        Raises NearDeadline before a minibatch if too little time is left or the invocation's limit of minibatches is reached; `state` then
        contains the sum so far.
        """
        from crossover.algorithms.averaging import RunningMean

        invocation, total = self.invocation, self._gradient_sum()
        mean = RunningMean(invocation.minibatch_weights(), total=total, added=invocation.position.minibatch)

        def add(gradient: "Tensor") -> None:
            """Add a minibatch's gradient to the running mean; after the last one, divide the sum, so that the buffer holds the mean."""
            mean.add(gradient)
            if mean.is_complete:
                mean.result()

        while not mean.is_complete:
            invocation.compute(add)

    def contribution(self) -> "Tensor":
        """Return the vector that this worker contributes to the average over all workers, which is weighted by samples: (D,) float32.
        Called after `compute`.

        Here it is the mean gradient of the worker's minibatches, not copied; a subclass may return another vector.
        """
        return self._gradient_sum()

    def apply(self, combined: "Tensor") -> None:
        """Take one optimizer step, by which the model and the optimizer's vectors become those of the next round. The number of the round
        does not change here. `combined`: the aggregate of all workers' contributions, (D,) float32; here it is the step's gradient.
        """
        self.step(combined)

    def extra_state(self) -> "Mapping[str, Tensor]":
        """Return, by name, the vectors that a checkpoint stores in addition to model and optimizer: the float32 tensors themselves, which
        are updated in place.

        Restoring a checkpoint copies its values into these tensors. Here there are none.
        """
        return {}

    # --- one round, and what a checkpoint keeps ---------------------------------------------------------------------------

    def step(self, gradient: "Tensor", *, minibatch: int | None = None) -> None:
        """Apply one optimizer step with `gradient` to the model and to the optimizer's vectors.

        `minibatch`: None for the step that ends the round; for a local step, the number, from 0, of the minibatch in the round that it
        follows.
        """
        from crossover.algorithms.updates import step

        history = self.invocation.read_history()
        update = gradients.build_update(self.ctx, self.invocation.round, history=history, minibatch=minibatch)
        model, self._optimizer = step(self.model, gradient, self._optimizer, update)
        self.model.copy_(model)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the model, the optimizer's vectors, the unfinished sum of gradients, and the additional vectors to those of `checkpoint`. A
        sum or additional vector that it lacks stays as it is.
        """
        from crossover.algorithms import buffers

        vectors = checkpoint.vectors
        self.ctx.learner.model[:] = vectors["model"].data
        self._optimizer = checkpoints.copy_optimizer(checkpoint)
        if "sum" in vectors:
            self._gradient_sum().copy_(buffers.tensor(vectors["sum"].data))
        checkpoints.restore_kept_vectors(checkpoint, self._kept_vectors())

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """Return the content of a checkpoint at the current position: its vectors by name, as views of this worker's own memory, and its
        plain values, of which there are none.
        """
        from crossover.algorithms import buffers

        vectors = checkpoints.build_vectors(self.ctx, self._optimizer)
        if self.invocation.position.minibatch and self._sum is not None:
            vectors["sum"] = Vector(VectorKind.GRADIENT, buffers.view(self._sum))
        return vectors | checkpoints.wrap_kept_vectors(self._kept_vectors()), {}

    def _kept_vectors(self) -> "dict[str, Tensor]":
        """Return, by name, the tensors that a checkpoint stores in addition to model and optimizer: those of `extra_state` and of the
        encoder.
        """
        return {**self.extra_state(), **(self._codec.state if self._codec else {})}

    def show_model(self) -> None:
        """Do nothing: the learner, which evaluates, already holds this worker's model."""

    def may_deviate(self) -> bool:
        """Return False: all workers take part in every attempt."""
        return False

    def list_stored(self, round: int) -> list[str]:
        """Return the keys in the tensor store under which this worker may have stored something for `round`, in any of its exchanges."""
        rank, count = self.invocation.rank, self.ctx.experiment.workers
        return [
            key
            for keys in self._keys_by_exchange()
            for key in long_worker.keys_of(keys, self._exchange, round, rank, count)
        ]

    def round(self) -> None:
        """Run the current round: compute, exchange, update the model, delete keys that no worker needs any more, and move to the next
        round.

        After a restart the worker repeats rounds whose result is already stored. It does not compute those again, unless computing changes
        its own state.

        Raises NearDeadline if too little time is left to compute or wait, or the invocation's limit of minibatches is reached; the position
        is then still in this round, and the next invocation continues there.
        """
        from crossover.training.group import Group

        invocation, samples = self.invocation, self.invocation.samples()
        group = Group(self.ctx, invocation.waits, invocation.rank, invocation.round, samples, self.exchanges)
        last = replace(group, exchange=codecs.count_exchanges(self.ctx.experiment.exchange) - 1)
        self._replaying = self._replaying and self._exchange.is_combined(last)
        if self.computing_moves_on or self._codec or not self._replaying:
            self.compute()
        combined = self._synchronise(group) if self._codec is None else self._exchange_encoded(group, self._codec)
        with self.ctx.stage("update"):
            self.apply(combined)
        self._delete_spent_keys(group)
        invocation.next_round()

    def _gradient_sum(self) -> "Tensor":
        """Return the buffer, (D,), for the sum of the round's gradients, which is allocated, without a value, at the first call."""
        if self._sum is None:
            self._sum = self.model.new_empty(self.model.numel())
        return self._sum

    def _synchronise(self, group: "Group") -> "Tensor":
        """Exchange this worker's uncompressed contribution with the group and return the aggregate of all contributions, (D,), in the
        learner's gradient buffer, which the next minibatch overwrites. If the result is already stored, it is only fetched.
        """
        own = None if self._replaying else self.contribution()
        return self._exchange_part(group, own, self._received)

    def _exchange_encoded(self, group: "Group", codec: "Encoder") -> "Tensor":
        """Exchange the contribution, compressed by `codec`, with the workers of `group`, in the one or two exchanges that this needs, and
        return the decoded aggregate, (D,).

        The contribution is encoded also if the round's result is already stored, because the codec has to keep the error of its compression
        for the next round.
        """
        from crossover.algorithms.contributions import Contribution

        own = self.contribution()
        with self.ctx.stage("compress"):
            following: Contribution | Tensor = self._encode_first(codec, own, group)
        for number in range(codecs.count_exchanges(self.ctx.experiment.exchange)):
            assert isinstance(following, Contribution)
            values = following.values
            out = self._received if values.numel() == own.numel() else self._buffer_like(values)
            group = replace(group, own=following, exchange=number)
            mean = self._exchange_part(group, None if self._replaying else values, out)
            with self.ctx.stage("compress"):
                following = codec.proceed(mean)
        assert not isinstance(following, Contribution)
        return following

    def _encode_first(self, codec: "Encoder", own: "Tensor", group: "Group") -> "Contribution":
        """Return `own`, this worker's vector, encoded by `codec` for the first exchange of `group`'s round. Raises Refused if it cannot be
        encoded.
        """
        try:
            return codec.begin(own, round=group.round, parts=self._exchange.split(own.numel(), group.count, codec.unit))
        except Refused as error:
            raise Refused(f"worker {group.rank}, round {group.round}: {error}") from error

    def _buffer_like(self, values: "Tensor") -> "Tensor":
        """Return an uninitialised buffer as long as `values`. Every call with the same length returns the same buffer."""
        if values.numel() not in self._factors:
            self._factors[values.numel()] = values.new_empty(values.numel())
        return self._factors[values.numel()]

    def _exchange_part(self, group: "Group", own: "Tensor | None", out: "Tensor") -> "Tensor":
        """Run one exchange with the workers of `group`, write its result into `out`, and return `out`.

        `own`: this worker's contribution; None if the result is already stored, so that it is only fetched; likewise if another attempt of
        this worker stores its share meanwhile.
        """
        if own is not None:
            try:
                self._exchange.exchange(group, own, out)
                return out
            except ResultExists:  # another attempt of this worker did its share of the round meanwhile
                pass
        self._exchange.collect(group, out)
        return out

    def _keys_by_exchange(self) -> "list[Keys]":
        """Return the Keys (names under which vectors are stored) of each exchange of a round: one or two."""
        return self.ctx.keys.list_by_exchange(codecs.count_exchanges(self.ctx.experiment.exchange))

    def _delete_spent_keys(self, group: "Group") -> None:
        """Delete this worker's keys that no worker needs any more, once this worker holds the result of the group's round. At a round with
        a checkpoint, these include all keys of the rounds since the checkpoint before.
        """
        spent = self._list_spent_keys(group)
        if self.invocation.journal.is_due(group.round):
            # All have contributed to this round, so all have a checkpoint at its start: nobody needs older keys. Those that were used up go
            # once more, because a duplicate of an invocation that was killed since may have stored them again.
            oldest = max(0, group.round - self.ctx.experiment.functions.checkpoint_every)
            spent += [key for round in range(oldest, group.round) for key in self.list_stored(round)]
        if spent:
            self._delete(spent)

    def _delete(self, spent: list[str]) -> None:
        """Delete the keys `spent` from the worker's tensor store. Raises Unavailable if it does not answer for 60 s, or the deadline is
        near.
        """
        self.invocation.waits.retry(lambda: self.ctx.tensors[self.invocation.rank].delete(*spent))

    def _list_spent_keys(self, group: "Group") -> list[str]:
        """Return the keys that this worker stored for `group`'s round and that no worker needs any more because this worker holds the
        round's result.
        """
        rank, count = group.rank, group.count
        return [
            key
            for keys in self._keys_by_exchange()
            for key in self._exchange.list_used_keys(keys, group.round, rank=rank, count=count)
        ]


class LocalSteps(SynchronousWorker):
    """Worker for `exchange.what: model`: LambdaML's model averaging, also called local SGD.

    The worker takes its own optimizer step after each minibatch. Only then are models exchanged, and every worker continues with their
    mean.
    """

    exchanges = VectorKind.MODEL
    computing_moves_on = True  # the optimizer's vectors stay the worker's own

    def compute(self) -> None:
        """Compute the gradient of each of the round's remaining minibatches, and take a local optimizer step after each. Raises
        NearDeadline before a minibatch if too little time is left or the invocation's limit of minibatches is reached.
        """
        invocation = self.invocation

        def step(gradient: "Tensor") -> None:
            """Take a local optimizer step with `gradient`, that of the invocation's current minibatch."""
            self.step(gradient, minibatch=invocation.position.minibatch)

        while invocation.position.minibatch < len(invocation.minibatch_weights()):
            invocation.compute(step)

    def contribution(self) -> "Tensor":
        """Return the worker's model itself, not a copy: (D,) float32."""
        return self.model

    def apply(self, combined: "Tensor") -> None:
        """Overwrite the worker's model with `combined`, the mean of all workers' models."""
        self.model.copy_(combined)


class OuterSteps(LocalSteps):
    """Worker for `exchange.what: delta`: workers exchange how far their models have moved since the round began.

    Each worker then applies the outer optimizer to the mean of these deltas to get its next model (algorithms/outer.py). The outer
    optimizer's velocity is the same on all workers.
    """

    exchanges = VectorKind.GRADIENT  # it is subtracted

    def __init__(self, invocation: Invocation, exchange: "GroupExchange") -> None:
        """Create the additional vectors: a copy of the model at the round's start, and the outer velocity, which is empty without outer
        momentum.
        """
        super().__init__(invocation, exchange)
        outer = self.ctx.experiment.exchange.outer
        self._begun = self.model.clone()  # the model of all when the round began
        self._velocity = self.model.new_zeros(self.ctx.facts.parameters if outer.momentum else 0)

    def extra_state(self) -> "Mapping[str, Tensor]":
        """Return "velocity", the outer optimizer's velocity if there is momentum, and within a round also "begun", the model at the round's
        start.
        """
        within = {"begun": self._begun} if self.invocation.position.minibatch else {}
        return {**within, **({"velocity": self._velocity} if self._velocity.numel() else {})}

    def compute(self) -> None:
        """Copy the model if the round is at its start, then take a local optimizer step after each of the round's remaining minibatches.
        Raises NearDeadline as `LocalSteps.compute` does.
        """
        if not self.invocation.position.minibatch:
            self._begun.copy_(self.model)
        super().compute()

    def contribution(self) -> "Tensor":
        """Return the delta, (D,) float32: the model at the round's start minus the present one, which serves as a gradient; for BatchNorm
        statistics the present ones.
        """
        from crossover.algorithms.outer import compute_delta

        return compute_delta(self._begun, self.model, buffers=self.ctx.facts.buffers)

    def apply(self, combined: "Tensor") -> None:
        """Overwrite the model and the outer velocity by the result of an outer optimizer step from the model at the round's start, with
        `combined`, the mean of all workers' deltas, as the gradient. `combined` is not changed.
        """
        from crossover.algorithms.outer import take_outer_step

        round, outer = self.invocation.round, self.ctx.experiment.exchange.outer
        model, vectors = take_outer_step(
            self._begun, combined, [self._velocity], outer, number=round, buffers=self.ctx.facts.buffers
        )
        self.model.copy_(model)
        for own, new in zip([self._velocity], vectors, strict=False):  # none without momentum
            own.copy_(new)


WORKERS = {"gradients": SynchronousWorker, "model": LocalSteps, "delta": OuterSteps}  # by exchange.what


def train(
    ctx: Context,
    event: Event,
    exchange: "GroupExchange",
    worker: "Callable[[Invocation, GroupExchange], SynchronousWorker] | None" = None,
) -> Event:
    """Run one invocation of one worker: round after round of computing, exchanging and updating, until training ends or the deadline is
    near. Return the changes of the event for the worker's next invocation, `finished` among them. A retried invocation that finds a
    checkpoint beyond its event returns at once.

    `ctx`, `event`: of this invocation; `exchange`: sends and combines the contributions; `worker`: builds an architecture's own variant of
    the worker; None: the class in WORKERS for the experiment's `exchange.what`. Raises what `run_invocation` raises, such as StaleAttempt,
    Missing and Corrupt.
    """
    kind = worker or WORKERS[ctx.experiment.exchange.what]
    return run_invocation(ctx, event, lambda invocation: kind(invocation, exchange))
