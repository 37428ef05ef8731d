"""A worker of MLLess: it tells the others only what is significant, and keeps the rest for later.

Its model is x = y + r (correctness, section 3): y, what all have been told, equal on every worker; r, its own unsent residual. It applies
exactly the updates that the supervisor's words name, in rank order, and with a slack a fixed number of steps late.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from crossover import runtime
from crossover.algorithms import buffers, significance, sparse
from crossover.algorithms.running_mean import RunningMean
from crossover.algorithms.schedule import learning_rate
from crossover.algorithms.update import statistics_momentum
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import Corrupt, Missing, Refused, StaleAttempt
from crossover.training import attempts
from crossover.training.checkpoints import Checkpoint
from crossover.training.long_worker.invocation import Invocation, through
from functions.mlless import words
from functions.mlless.settings import MLLess
from functions.mlless.words import StepReport

if TYPE_CHECKING:
    from torch import Tensor

_PATIENCE = 3.0  # with the supervisor, which itself may be waiting for a dead worker, and be started again meanwhile
_STORE_LOOK_S = 1.0  # announcements wake; one that was lost costs no more than this


def train(ctx: Context, event: Event) -> Event:
    """Table 1's four stages, step after step, until training ends, the supervisor sends this worker home, or the invocation must end."""
    return through(ctx, event, FilteringWorker)


class FilteringWorker:
    """The state of one worker: what all have been told, what it has not told, its velocity, the last word it applied."""

    def __init__(self, invocation: Invocation) -> None:
        ctx = invocation.ctx
        self._ctx, self._invocation, self._rank = ctx, invocation, invocation.rank
        self._training, self._settings = ctx.experiment.training, ctx.experiment.settings(MLLess)
        self._model = buffers.tensor(ctx.learner.model)  # x
        self._complaints: set[int] = set()
        self._began_s = runtime.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        vectors, facts = checkpoint.vectors, checkpoint.facts
        self._shared = buffers.tensor(vectors["model"].data).clone()  # y
        size, parameters = self._shared.numel(), self._shared.numel() - self._ctx.facts.buffers
        self._residual = _own(vectors.get("residual"), self._shared, size)
        self._velocity = _own(vectors.get("velocity"), self._shared, parameters) if self._training.momentum else None
        self._sum = _own(vectors.get("sum"), self._shared, size)
        self._word = words.last_known(facts)
        # This worker's own updates that the words it has applied do not cover yet, by step.
        self._ahead: dict[int, Tensor | None] = dict.fromkeys(facts.get("ahead", []))  # None: still in the database

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        vectors = {
            "model": Vector(VectorKind.MODEL, buffers.view(self._shared)),
            "residual": Vector(VectorKind.UPDATE, buffers.view(self._residual)),
        }
        if self._velocity is not None:
            vectors["velocity"] = Vector(VectorKind.VELOCITY, buffers.view(self._velocity))
        if 0 < self._invocation.position.minibatch < len(self._invocation.minibatch_samples()):
            vectors["sum"] = Vector(VectorKind.GRADIENT, buffers.view(self._sum))
        return vectors, {"word": asdict(self._word), "ahead": sorted(self._ahead)}

    def show_model(self) -> None:
        """y, the same on every worker at an epoch's end."""
        self._model.copy_(self._shared)

    def stored(self, round: int) -> list[str]:
        return [self._ctx.keys.update(round, self._rank), self._ctx.keys.report(round, self._rank)]

    def round(self) -> None:
        invocation, step = self._invocation, self._invocation.round
        workers = self._ctx.experiment.workers
        self._began_s = runtime.monotonic()
        if self._rank in self._word.dropped or self._word.leaves.get(self._rank, step) < step:
            invocation.finished = True  # the others have gone on without this worker
            return
        if self._word.leaves.get(self._rank) == step:
            self._say_farewell(step)
            return
        if invocation.position.minibatch < len(invocation.minibatch_samples()):
            samples = invocation.samples()
            everybody = sum(samples[w] for w in self._word.computing(workers, step)) or 1
            self._accumulate()
            with self._ctx.stage("filter"):
                update = self._filter(step, share=samples[self._rank] / everybody)
            self._publish(step, update)
        every = self._ctx.experiment.functions.checkpoint_every
        last = words.applied_by(invocation.days, step, slack=self._settings.slack, every=every)
        while self._word.step < last:
            self._apply(self._word.step + 1)
            if self._rank in self._word.dropped:
                invocation.finished = True
                return
        invocation.next_round()

    # --- compute and filter -------------------------------------------------------------------------------------------

    def _accumulate(self) -> None:
        """Fetch and compute: the mean gradient over the round's minibatches, at x."""
        invocation = self._invocation
        self._model.copy_(self._base()).add_(self._residual)
        mean = RunningMean(invocation.minibatch_samples(), total=self._sum, added=invocation.position.minibatch)
        while not mean.complete:
            invocation.compute(mean.add)
        mean.result()

    def _filter(self, step: int, *, share: float) -> "Tensor | None":
        """The step into the residual; then what is significant of it, taken out and encoded. None: nothing to tell."""
        training, invocation, settings = self._training, self._invocation, self._settings
        count = self._residual.numel() - self._ctx.facts.buffers
        rate = learning_rate(
            training, round=invocation.round, rounds=invocation.days.rounds, history=invocation.history()
        )
        significance.local_step(
            self._residual,
            self._velocity,
            self._sum,
            self._model,
            share=share,
            learning_rate=rate,
            momentum=training.momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            buffers=self._ctx.facts.buffers,
            statistics_momentum=statistics_momentum(invocation.days.sync_every),
        )
        base, residual = self._base()[:count], self._residual[:count]
        try:
            if settings.filter == "coordinate":
                indices, values = significance.take_significant(residual, base, threshold=settings.threshold, step=step)
            elif significance.is_significant(residual, base, threshold=settings.threshold, step=step):
                update = self._residual.clone()
                self._residual.zero_()
                return update
            else:
                indices, values = residual.new_empty(0), residual.new_empty(0)
        except ValueError as error:
            raise Refused(f"worker {self._rank}, step {step}: {error}") from error
        # BatchNorm's statistics are never filtered: summed late they could make a variance negative. They are a hundredth of the vector.
        tail = self._residual[count:].clone()
        self._residual[count:] = 0.0
        if not indices.numel() and not tail.numel():
            return None
        return sparse.encode(indices, values, elements=self._residual.numel(), tail=tail)

    def _base(self) -> "Tensor":
        """y and this worker's own updates on their way: what its residual is measured against."""
        if not self._ahead:
            return self._shared
        base = self._shared.clone()
        for step, update in sorted(self._ahead.items()):
            if update is None:
                update = self._ahead[step] = self._stored(step)
            sparse.add_to(base, update)
        return base

    # --- synchronise --------------------------------------------------------------------------------------------------

    def _publish(self, step: int, update: "Tensor | None", *, farewell: bool = False) -> None:
        """Update, report, announcement, in this order: whoever knows of one finds the one before."""
        ctx, keys = self._ctx, self._ctx.keys
        samples = self._invocation.samples()[self._rank]
        with ctx.stage("store"):
            if update is not None:
                kind, dtype = (
                    (VectorKind.UPDATE, "float32") if update.is_floating_point() else (VectorKind.SPARSE, "uint8")
                )
                vector = Vector(kind, buffers.view(update), samples, dtype)  # type: ignore[arg-type]
                self._steadily(lambda: ctx.tensors[self._rank].create(keys.update(step, self._rank), vector))
            report = StepReport(
                loss=None if farewell else float(ctx.notes["loss"]),
                samples=0 if farewell else samples,
                seconds=runtime.monotonic() - self._began_s,
                update=update is not None,
                complaints=tuple(sorted(self._complaints)),
            )
            self._steadily(lambda: ctx.tensors[self._rank].create(keys.report(step, self._rank), words.encode(report)))
            self._steadily(lambda: ctx.bus.arrive(keys.updates, round=step, member=self._rank))
        if update is not None and not farewell:
            self._ahead[step] = update

    def _say_farewell(self, step: int) -> None:
        """Scaled in: all that was not told yet, so that nothing this worker learnt is lost; then home."""
        indices = self._residual.nonzero().squeeze(1)
        update = sparse.encode(indices, self._residual[indices], elements=self._residual.numel())
        self._publish(step, update if indices.numel() else None, farewell=True)
        self._invocation.finished = True

    def _apply(self, step: int) -> None:
        """The supervisor's word on `step`, and exactly the updates it names, in rank order."""
        ctx = self._ctx
        with ctx.stage("synchronise"):
            word = self._expected(step)
            updates = []
            for sender in word.senders:
                own = self._ahead.get(step) if sender == self._rank else None
                updates.append((sender, own if own is not None else self._fetched(step, sender)))
        with ctx.stage("update"):
            for sender, update in updates:
                if update is None or not self._added(update):
                    self._complaints.add(sender)  # everybody reads the same bytes, so everybody leaves it out
        self._ahead.pop(step, None)
        self._word = word

    def _expected(self, step: int) -> words.Word:
        ctx, key = self._ctx, self._ctx.keys.expected(step)
        waits, supervisor, look_at_s = self._invocation.waits, words.supervisor_rank(ctx), 0.0

        def look() -> Vector:
            nonlocal look_at_s
            told = supervisor in ctx.bus.arrived(ctx.keys.updates, round=step, reader=self._rank)
            if not told and runtime.monotonic() < look_at_s:
                raise Missing(key)
            look_at_s = runtime.monotonic() + _STORE_LOOK_S
            return ctx.tensors[self._rank].get(key, kind=VectorKind.RECORD)

        try:
            found = self._await(look, key=key, sender=supervisor, patience=_PATIENCE)
        except StaleAttempt:
            if waits.steadily(lambda: attempts.useless(ctx)):
                raise  # going on would be for nobody, word or not; what it left goes as it leaves
            look_at_s = 0.0  # its last look may not have been at the store, where the word lies for as long as anybody needs the update
            try:
                found = waits.steadily(look)
                waits.since = None  # this wait is over: the next one is not to count from its beginning
            except Missing:
                raise StaleAttempt(f"worker {self._rank}, step {step}: {key} came and is gone") from None
        return words.read_word(found, key=key)

    def _fetched(self, step: int, sender: int) -> "Tensor | None":
        """The stored update; None where it is not one. Fetched once more then: the fault may have been on the way."""
        key = self._ctx.keys.update(step, sender)
        for _ in range(2):
            try:
                found = self._await(lambda: self._ctx.tensors[self._rank].get(key), key=key, sender=sender)
                return _update(found, key=key, elements=self._shared.numel())
            except (Corrupt, ValueError):
                continue
        return None

    def _added(self, update: "Tensor") -> bool:
        try:
            sparse.add_to(self._shared, update)
        except ValueError:
            return False
        return True

    def _stored(self, step: int) -> "Tensor":
        key = self._ctx.keys.update(step, self._rank)
        found = self._await(lambda: self._ctx.tensors[self._rank].get(key), key=key, sender=self._rank)
        return _update(found, key=key, elements=self._shared.numel())

    def _await(self, look: Callable[[], Vector], *, key: str, sender: int, patience: float = 1.0) -> Vector:
        """Whatever step the key is of, the wait is of the round that this worker stands in: with a slack that is a later one, whose
        checkpoint it has written itself.
        """
        waits, round = self._invocation.waits, self._invocation.round
        return waits.until(look, round=round, key=key, sender=sender, patience=patience)

    def _steadily(self, call: Any) -> None:
        self._invocation.waits.steadily(call)


def _own(vector: Vector | None, like: "Tensor", size: int) -> "Tensor":
    """A tensor of this worker's own: what the checkpoint holds, or zeros."""
    own = like.new_zeros(size)
    return own if vector is None else own.copy_(buffers.tensor(vector.data))


def _update(vector: Vector, *, key: str, elements: int) -> "Tensor":
    if vector.kind is VectorKind.SPARSE and vector.dtype == "uint8":
        return buffers.octets(vector.data)
    if vector.kind is VectorKind.UPDATE and vector.dtype == "float32" and vector.elements == elements:
        return buffers.tensor(vector.data)
    raise Corrupt(
        f"{key}: holds a {vector.kind} of {vector.elements} {vector.dtype}; an update of {elements} elements is expected"
    )
