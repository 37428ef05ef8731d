"""A worker of MLLess: it sends the others only significant updates, and keeps the rest for later.

Its model is x = y + r (correctness, section 3): y, the sum of all updates sent, equal on every worker; r, its own residual that is not sent
yet. It applies exactly the updates that the supervisor's words name, in rank order, and with a slack a fixed number of steps late.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from crossover import runtime
from crossover.algorithms import buffers, compression, significance
from crossover.algorithms.averaging import RunningMean
from crossover.algorithms.optimizers import statistics_momentum
from crossover.algorithms.schedule import learning_rate
from crossover.errors import Corrupt, Missing, Refused, StaleAttempt
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind
from crossover.training import gradients, progress
from crossover.training.checkpoints import Checkpoint
from crossover.training.long_worker import Invocation, run_invocation
from crossover.workflow.context import Context
from functions.mlless import words
from functions.mlless.settings import MLLess
from functions.mlless.words import StepReport

if TYPE_CHECKING:
    from torch import Tensor

_TIMEOUTS = 3.0  # for the supervisor, which itself may be waiting for a dead worker, and be started again meanwhile
_STORE_LOOK_S = 1.0  # seconds; announcements wake the worker, and a lost one delays it by at most this


def train(ctx: Context, event: Event) -> Event:
    """Run a worker's steps in one invocation (Table 1's four stages), until training ends, the supervisor removes the worker, or the
    deadline is near. Return the changes of the event for its next invocation, `finished` among them.
    """
    return run_invocation(ctx, event, FilteringWorker)


class FilteringWorker:
    """State of one MLLess worker in one invocation: the shared model (the sum of all updates applied so far, equal on every worker), its
    own residual that is not sent yet, its velocity, and the last word (the supervisor's decision) that it applied. `run_invocation` calls
    `restore`, then `round` again and again.
    """

    def __init__(self, invocation: Invocation) -> None:
        """Take settings and the learner's model; the worker's own state is set by `restore`."""
        ctx = invocation.ctx
        self._ctx, self._invocation, self._rank = ctx, invocation, invocation.rank
        self._training, self._settings = ctx.experiment.training, ctx.experiment.settings(MLLess)
        self._model = buffers.tensor(ctx.learner.model)  # x
        self._complaints: set[int] = set()
        self._loss, self._answers = (
            0.0,
            0.0,
        )  # mean loss of the step's minibatches so far, and how many labels that is the mean of
        self._began_s = runtime.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the shared model, the residual, the velocity, the unfinished sum of gradients with its loss, and the last word to those of
        `checkpoint`; what it lacks is zero. Raises Corrupt as `words.read_last_word` does.
        """
        vectors, facts = checkpoint.vectors, checkpoint.facts
        self._shared = buffers.tensor(vectors["model"].data).clone()  # y
        size, parameters = self._shared.numel(), self._shared.numel() - self._ctx.facts.buffers
        self._residual = _own(vectors.get("residual"), self._shared, size)
        self._velocity = _own(vectors.get("velocity"), self._shared, parameters) if self._training.momentum else None
        self._sum = _own(vectors.get("sum"), self._shared, size)
        self._word = words.read_last_word(facts)
        self._loss, self._answers = facts.get("loss", (0.0, 0.0))
        # This worker's own updates that the words it has applied do not cover yet, by step.
        self._ahead: dict[int, Tensor | None] = dict.fromkeys(facts.get("ahead", []))  # None: still in the database

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """Return the content of a checkpoint at the current position: its vectors by name, as views of this worker's own memory, and its
        plain values (the last word, the steps of own updates not applied yet, and within a step the loss so far).
        """
        vectors = {
            "model": Vector(VectorKind.MODEL, buffers.view(self._shared)),
            "residual": Vector(VectorKind.UPDATE, buffers.view(self._residual)),
        }
        if self._velocity is not None:
            vectors["velocity"] = Vector(VectorKind.VELOCITY, buffers.view(self._velocity))
        facts = {"word": asdict(self._word), "ahead": sorted(self._ahead)}
        if 0 < self._invocation.position.minibatch < len(self._invocation.minibatch_weights()):
            vectors["sum"] = Vector(VectorKind.GRADIENT, buffers.view(self._sum))
            facts["loss"] = [self._loss, self._answers]
        return vectors, facts

    def show_model(self) -> None:
        """Copy the shared model, which at the end of an epoch is the same on every worker, into the learner for evaluation."""
        self._model.copy_(self._shared)

    def may_deviate(self) -> bool:
        """Return whether the supervisor has dropped a worker or sent one away, perhaps only in this attempt."""
        return bool(self._word.dropped or self._word.leaves)

    def list_stored(self, round: int) -> list[str]:
        """Return the keys under which this worker may have stored something for `round`: its update and its report."""
        return [self._ctx.keys.update(round, self._rank), self._ctx.keys.report(round, self._rank)]

    def round(self) -> None:
        """Run the current step: compute the gradient, take out the significant part of the update, publish it, then apply the words that
        are due, and move to the next step. Minibatches that the restored checkpoint contains are not computed again.

        A worker that was dropped, by an earlier word or one applied here, only sets `finished` of the invocation. One that is to leave in
        this step publishes its whole residual instead of an update, then sets `finished`.

        Raises NearDeadline if the invocation has computed its limit of minibatches, or too little time is left for a minibatch or a wait;
        the next invocation continues the step. Other errors of waits and stores are raised too: RunFailed or WaitTimeout if the supervisor
        or a sender is gone, StaleAttempt if this attempt is obsolete, Unavailable, Missing or Corrupt; and Refused if an update cannot be
        encoded.
        """
        invocation, step = self._invocation, self._invocation.round
        workers = self._ctx.experiment.workers
        self._began_s = runtime.monotonic()
        if self._rank in self._word.dropped or self._word.leaves.get(self._rank, step) < step:
            invocation.finished = True  # the others have continued without this worker
            return
        if self._word.leaves.get(self._rank) == step:
            self._say_farewell(step)
            return
        if invocation.position.minibatch < len(invocation.minibatch_weights()):
            samples = invocation.samples()
            everybody = sum(samples[w] for w in self._word.list_computing(workers, step)) or 1
            self._accumulate()
            with self._ctx.stage("filter"):
                update = self._filter(step, share=samples[self._rank] / everybody)
            self._publish(step, update)
        every = self._ctx.experiment.functions.checkpoint_every
        last = words.last_applied_step(invocation.days, step, slack=self._settings.slack, every=every)
        while self._word.step < last:
            self._apply(self._word.step + 1)
            if self._rank in self._word.dropped:
                invocation.finished = True
                return
        invocation.next_round()

    # --- compute and filter -------------------------------------------------------------------------------------------

    def _accumulate(self) -> None:
        """Compute the gradients of the step's remaining minibatches and set `self._sum` to the mean over all of the step's minibatches.
        They are computed at the worker's own model: shared model plus own updates not applied yet plus residual. Raises NearDeadline before
        a minibatch if too little time is left; `state` then contains the sum so far.
        """
        invocation = self._invocation
        self._model.copy_(self._base()).add_(self._residual)
        if not invocation.position.minibatch:
            self._loss, self._answers = 0.0, 0.0
        mean = RunningMean(invocation.minibatch_weights(), total=self._sum, added=invocation.position.minibatch)

        def add(gradient: "Tensor") -> None:
            """Add a minibatch's gradient to the running mean of the step, and the loss that was noted for it to the step's loss."""
            mean.add(gradient)
            answers = gradients.get_noted_answers(self._ctx)
            self._answers += answers
            self._loss += (self._ctx.notes["loss"] - self._loss) * answers / (self._answers or 1.0)

        while not mean.is_complete:
            invocation.compute(add)
        mean.result()

    def _filter(self, step: int, *, share: float) -> "Tensor | None":
        """Add the local optimizer step to the residual, then remove the significant values from the residual and return them: encoded as
        pairs, or, if the filter judges the whole update and it is significant, the whole residual as float32; None if there are none.
        Statistics of BatchNorm always count as significant.

        `share`: this worker's fraction of the step's samples. Raises Refused if the values cannot be encoded.
        """
        training, invocation, settings = self._training, self._invocation, self._settings
        count = self._residual.numel() - self._ctx.facts.buffers
        rate = learning_rate(
            training, round=invocation.round, rounds=invocation.days.rounds, history=invocation.read_history()
        )
        significance.take_local_step(
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
        return compression.encode(indices, values, elements=self._residual.numel(), tail=tail)

    def _base(self) -> "Tensor":
        """Return the shared model plus this worker's own updates that it has sent but not applied yet; if there are none, the shared model
        itself, not a copy, which must not be changed. The residual is compared with it to find significant values. Raises Corrupt if an own
        update is fetched and cannot be read, and what `_await` raises.
        """
        if not self._ahead:
            return self._shared
        base = self._shared.clone()
        for step, update in sorted(self._ahead.items()):
            if update is None:
                update = self._ahead[step] = self._fetch_own_update(step)
            compression.add_to(base, update)
        return base

    # --- synchronise --------------------------------------------------------------------------------------------------

    def _publish(self, step: int, update: "Tensor | None", *, farewell: bool = False) -> None:
        """Store this worker's update of `step`, then its report, then announce both on the bus. In this order, whoever finds the report
        also finds the update.

        `update`: encoded; None if nothing is significant. `farewell`: whether the worker leaves in this step, without having computed; any
        other update is kept among those sent but not applied yet. Keys that an earlier try has stored stay as they are. Raises Unavailable
        if a store does not answer for 60 s, or the deadline is near.
        """
        ctx, keys = self._ctx, self._ctx.keys
        samples = self._invocation.samples()[self._rank]
        with ctx.stage("store"):
            if update is not None:
                kind, dtype = (
                    (VectorKind.UPDATE, "float32") if update.is_floating_point() else (VectorKind.SPARSE, "uint8")
                )
                vector = Vector(kind, buffers.view(update), samples, dtype)  # type: ignore[arg-type]
                self._retry(lambda: ctx.tensors[self._rank].create(keys.update(step, self._rank), vector))
            report = StepReport(
                loss=None if farewell else self._loss,
                samples=0 if farewell else samples,
                seconds=runtime.monotonic() - self._began_s,
                update=update is not None,
                complaints=tuple(sorted(self._complaints)),
            )
            self._retry(lambda: ctx.tensors[self._rank].create(keys.report(step, self._rank), words.encode(report)))
            self._retry(lambda: ctx.bus.arrive(keys.updates, round=step, member=self._rank))
        if update is not None and not farewell:
            self._ahead[step] = update

    def _say_farewell(self, step: int) -> None:
        """Publish the whole residual as the update of `step` and mark the worker as finished. Called if the supervisor scales this worker
        in, so that nothing it learnt is lost.
        """
        indices = self._residual.nonzero().squeeze(1)
        update = compression.encode(indices, self._residual[indices], elements=self._residual.numel())
        self._publish(step, update if indices.numel() else None, farewell=True)
        self._invocation.finished = True

    def _apply(self, step: int) -> None:
        """Wait for the supervisor's word on `step`, and add exactly the updates that it names to the shared model, in rank order.

        An update that cannot be read is left out, and its sender is named in the next report. Raises what `_await_word` raises, such as
        StaleAttempt and NearDeadline.
        """
        ctx = self._ctx
        with ctx.stage("synchronise"):
            word = self._await_word(step)
            updates = []
            for sender in word.senders:
                own = self._ahead.get(step) if sender == self._rank else None
                updates.append((sender, own if own is not None else self._fetch_update(step, sender)))
        with ctx.stage("update"):
            for sender, update in updates:
                if update is None or not self._add_update(update):
                    self._complaints.add(sender)  # all workers read the same bytes, so all leave it out
        self._ahead.pop(step, None)
        self._word = word

    def _await_word(self, step: int) -> words.Word:
        """Wait for the supervisor's word (decision) on `step` and return it. If it was stored and is deleted again because the others have
        continued without this worker, return a word without senders that names this worker as dropped.

        Raises StaleAttempt if it is deleted although this worker was not dropped, or if this attempt is obsolete, and what `_await`
        raises.
        """
        ctx, key = self._ctx, self._ctx.keys.supervisor_word(step)
        waits, supervisor, look_at_s = self._invocation.waits, words.supervisor_rank(ctx), 0.0

        def look() -> Vector:
            """Return the stored word on the step for which the outer call waits. Raises Missing if it is not stored; the store is asked
            only if the word is announced, or once per _STORE_LOOK_S seconds.
            """
            nonlocal look_at_s
            told = supervisor in ctx.bus.list_arrived(ctx.keys.updates, round=step, reader=self._rank)
            if not told and runtime.monotonic() < look_at_s:
                raise Missing(key)
            look_at_s = runtime.monotonic() + _STORE_LOOK_S
            return ctx.tensors[self._rank].get(key, kind=VectorKind.RECORD)

        try:
            found = self._await(look, key=key, sender=supervisor, timeout_factor=_TIMEOUTS)
        except StaleAttempt:
            if waits.retry(lambda: progress.is_obsolete(ctx)):
                raise  # this attempt is not needed any more, with or without the word; it deletes its keys as it ends
            look_at_s = 0.0  # the last call may not have asked the store, which keeps the word as long as anybody needs the update
            try:
                found = waits.retry(look)
                waits.since = None  # this wait is over: the next one is not to count from its beginning
            except Missing:
                saved = waits.retry(lambda: ctx.objects.list(ctx.keys.checkpoints_of(supervisor)))
                last = waits.retry(lambda: words.read_saved_word(ctx, saved)) if saved else words.START
                if self._rank in last.dropped:  # a failure of this worker would end the others' run
                    return replace(last, step=step, senders=())
                raise StaleAttempt(f"worker {self._rank}, step {step}: {key} was stored and is deleted") from None
        return words.read_word(found, key=key)

    def _fetch_update(self, step: int, sender: int) -> "Tensor | None":
        """Wait for the update of `step` by the worker `sender` and return it, or None if it cannot be read. A damaged one is fetched twice,
        because the transfer may have failed. Raises what `_await` raises.
        """
        key = self._ctx.keys.update(step, sender)
        for _ in range(2):
            try:
                found = self._await(lambda: self._ctx.tensors[self._rank].get(key), key=key, sender=sender)
                return _decode_update(found, key=key, elements=self._shared.numel())
            except (Corrupt, ValueError):
                continue
        return None

    def _add_update(self, update: "Tensor") -> bool:
        """Add the encoded `update` to the shared model and return True. Return False, and leave the model as it is, if the update does not
        fit.
        """
        try:
            compression.add_to(self._shared, update)
        except ValueError:
            return False
        return True

    def _fetch_own_update(self, step: int) -> "Tensor":
        """Fetch this worker's own update of `step` from the database and return it. Raises Corrupt if it cannot be read."""
        key = self._ctx.keys.update(step, self._rank)
        found = self._await(lambda: self._ctx.tensors[self._rank].get(key), key=key, sender=self._rank)
        return _decode_update(found, key=key, elements=self._shared.numel())

    def _await(self, look: Callable[[], Vector], *, key: str, sender: int, timeout_factor: float = 1.0) -> Vector:
        """Call `look` again and again until it finds `key`, which `sender` stores, and return its result. `timeout_factor`: factor on the
        usual timeout (`wait_timeout_s`). Raises NearDeadline, StaleAttempt, RunFailed if the sender has failed, and WaitTimeout.

        The wait counts for the worker's current step, even if the key belongs to an earlier one: with a slack, the worker has passed that
        step and saved its checkpoint.
        """
        waits, round = self._invocation.waits, self._invocation.round
        return waits.wait_for(look, round=round, key=key, sender=sender, timeout_factor=timeout_factor)

    def _retry(self, call: Any) -> None:
        """Call `call` until its store answers, and drop its result. Raises Unavailable after a minute, or if the deadline is near."""
        self._invocation.waits.retry(call)


def _own(vector: Vector | None, like: "Tensor", size: int) -> "Tensor":
    """Return a new tensor of `size` elements, of the type and device of `like`: a copy of the checkpoint's `vector`, or zeros if that is
    None.
    """
    own = like.new_zeros(size)
    return own if vector is None else own.copy_(buffers.tensor(vector.data))


def _decode_update(vector: Vector, *, key: str, elements: int) -> "Tensor":
    """Return the encoded update in `vector`: bytes of (index, value) pairs, or a float32 tensor. Raises Corrupt, naming `key`, if it is no
    update of `elements` elements.
    """
    if vector.kind is VectorKind.SPARSE and vector.dtype == "uint8":
        return buffers.octets(vector.data)
    if vector.kind is VectorKind.UPDATE and vector.dtype == "float32" and vector.elements == elements:
        return buffers.tensor(vector.data)
    raise Corrupt(
        f"{key}: holds a {vector.kind} of {vector.elements} {vector.dtype}; an update of {elements} elements is expected"
    )
