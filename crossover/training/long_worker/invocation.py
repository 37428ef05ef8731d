"""One invocation of a long worker: where it stands, when it must leave, what is agreed at the end of an epoch."""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from crossover import runtime
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.context.metering import gather_stages
from crossover.dataplane import plain
from crossover.dataplane.vector import Vector
from crossover.errors import Corrupt, CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.training import agreement, attempts, gradients
from crossover.training.calendar import at, calendar, minibatch_samples, round_samples
from crossover.training.checkpoints import Checkpoint, Journal, Position
from crossover.training.long_worker.waits import NearDeadline, Waits, say_why

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batch import Batch


class Worker(Protocol):
    """What lives through the invocations: LambdaML's synchronous worker, MLLess's filtering one."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up what `state` gave; before the first round."""

    def round(self) -> None:
        """The rest of the round that the invocation stands in. May raise NearDeadline."""

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """What a checkpoint keeps: vectors, and plain facts."""

    def show_model(self) -> None:
        """Put the model that is evaluated into the learner."""

    def stored(self, round: int) -> list[str]:
        """The keys under which this worker may have stored something for a round."""


def through(ctx: Context, event: Event, begin: Callable[["Invocation"], Worker]) -> Event:
    """One invocation of a worker; the event to go on with. Lambda delivers an event at least once: where a duplicate of this invocation has
    gone on beyond it, what this one waits for may be gone. Neither knows whose answer counts, so this one goes on where the other stands.

    One that was tried again, and finds a checkpoint beyond its event, answers with that at once: the step is entered anew, with all its
    retries. So they bound the failures without progress in between, not those of a long run.
    """
    while True:
        invocation = Invocation(ctx, event)
        try:
            checkpoint = invocation.restore()
            if invocation.progressed:
                return invocation.left()
            worker = begin(invocation)
            worker.restore(checkpoint)
            return invocation.run(worker)
        except StaleAttempt:
            if attempts.useless(ctx) or not invocation.journal.overtaken(invocation.round):
                raise


class Invocation:
    """The position of one worker, moved on by its `Worker`; deadline, checkpoints and agreement around it."""

    def __init__(self, ctx: Context, event: Event) -> None:
        self.ctx, self.event = ctx, event
        self.rank: int = event["worker"]
        self.days = calendar(ctx.facts)
        self.journal = Journal(ctx, self.rank, every=ctx.experiment.functions.checkpoint_every)
        self.waits = Waits(ctx, f"worker {self.rank}", event["attempt"], self._overtaken)
        self.position = Position(event["round"], event["minibatch"])
        self.finished = self.progressed = False
        limit = ctx.experiment.exchange.minibatches_per_invocation
        self._limit = limit if isinstance(limit, int) else None
        self._computed, self._slowest_s, self._evaluation_s = 0, 0.0, 0.0
        self._losses: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._history: tuple[int, list[tuple[float, float]]] = (0, [])

    @property
    def round(self) -> int:
        return self.position.round

    @property
    def epoch(self) -> int:
        return self.days.epoch(self.position.round)

    def restore(self) -> Checkpoint:
        """The state to go on with: the event's, or a higher one that an attempt before this left behind."""
        try:
            checkpoint = self.waits.steadily(lambda: self.journal.restore(self.position))
        except Corrupt as cause:  # nobody need wait for this worker
            say_why(self.ctx, attempt=self.event["attempt"], member=self.rank, cause=cause)
            raise
        self.progressed = checkpoint.position > self.position
        self.position = checkpoint.position
        self.waits.since = checkpoint.facts.get("waiting_since")
        return checkpoint

    def run(self, worker: Worker) -> Event:
        """Rounds until training is over or the invocation must end; the event to go on with. Raises StaleAttempt where the run was resumed
        or concluded meanwhile, and leaves nothing then.
        """
        self.ctx.mark()
        try:
            return self._live(worker)
        except CrossoverError as error:
            self.waits.give_way(lambda: self._take_back(worker), error)
            if isinstance(error, StaleAttempt):
                # A duplicate has gone on, and everybody with it: what this one stored late nobody else will delete.
                self.waits.steadily(lambda: self._delete_stored(worker, since=self.round - 1))
            raise

    def _live(self, worker: Worker) -> Event:
        try:
            while not self._ended(worker):
                worker.round()
                gather_stages(self.ctx)
        except NearDeadline:
            pass
        except (Unavailable, StaleAttempt, Missing):
            raise  # tried again, or of no consequence
        except Exception as cause:
            say_why(self.ctx, attempt=self.event["attempt"], member=self.rank, cause=cause)
            raise
        self.save(worker)
        return self.left()

    def _take_back(self, worker: Worker) -> None:
        """What the next attempt found, it has deleted; this is what came later."""
        self._delete_stored(worker, since=self.round - 2 * self.ctx.experiment.functions.checkpoint_every)
        self.ctx.objects.delete_prefix(self.ctx.keys.evaluations)
        if attempts.spare(self.ctx):
            self.journal.forget()

    def _delete_stored(self, worker: Worker, *, since: int) -> None:
        spent = [key for round in range(max(0, since), self.round + 1) for key in worker.stored(round)]
        if spent:
            self.ctx.tensors[self.rank].delete(*spent)

    def save(self, worker: Worker) -> None:
        with self.ctx.stage("checkpoint"):
            vectors, facts = worker.state()
            if self.waits.since:
                facts["waiting_since"] = self.waits.since
            self.waits.steadily(lambda: self.journal.save(self.position, vectors, facts))
            if self.waits.steadily(lambda: attempts.useless(self.ctx)):
                raise StaleAttempt(f"worker {self.rank}, round {self.round}: nobody needs its checkpoint any more")

    def _ended(self, worker: Worker) -> bool:
        """At the start of a round: checkpoint if one is due, agree if an epoch is over. Whether training is."""
        round = self.position.round
        if self.finished or self.position.minibatch:
            return self.finished
        if self.journal.is_due(round):
            self.save(worker)
        if round and self.days.ends_epoch(round - 1):
            self.finished = self._agree(worker, self.days.epoch(round - 1))
            self.ctx.mark()
        return self.finished

    def _agree(self, worker: Worker, epoch: int) -> bool:
        key, steadily = self.ctx.keys.decision(epoch), self.waits.steadily
        if not steadily(lambda: self.ctx.objects.exists(key)) and not self._decided_elsewhere(epoch):
            self.waits.leave_in_time(need_s=2 * self._evaluation_s)
            began_s = runtime.monotonic()
            with self.ctx.stage("evaluate"):
                worker.show_model()
                steadily(lambda: agreement.agree(self.ctx, epoch))
            self._evaluation_s = runtime.monotonic() - began_s
        self.waits.since = None
        agreed = steadily(lambda: agreement.decision(self.ctx, epoch))
        self._history = (epoch, [(loss, metric) for loss, metric in agreed["history"]])
        return bool(agreed["finished"])

    def _decided_elsewhere(self, epoch: int) -> bool:
        """All would come to the same result, so the first one here evaluates and the others wait; False if this worker is the one, or the
        one does not answer.
        """
        key, decision, steadily = self.ctx.keys.evaluating(epoch), self.ctx.keys.decision(epoch), self.waits.steadily
        own = json.dumps({"by": self.rank, "at": self.ctx.clock()}).encode()
        one = plain.read(steadily(lambda: self.ctx.objects.create(key, own)), {"by": int, "at": float}, key=key)
        if one["by"] == self.rank:
            return False
        self.waits.since = one["at"]  # the store's word: no checkpoint at this position keeps it from life to life
        try:
            with self.ctx.stage("synchronise"):
                self.waits.until(
                    lambda: self.ctx.objects.get(decision),
                    round=self.round,
                    key=decision,
                    sender=one["by"],
                    patience=0.5,  # the supervisor, who waits for the decision too, must not lose its own first
                    channel="s3",
                )
        except (RunFailed, WaitTimeout):
            return False
        return True

    def history(self) -> list[tuple[float, float]]:
        """Validation loss and metric of the evaluations before this round."""
        before = self.days.epochs_before(self.round)
        if self._history[0] != before:
            self._history = (before, self.waits.steadily(lambda: agreement.history(self.ctx, before)))
        return self._history[1]

    def compute(self, use: "Callable[[Tensor], None]") -> None:
        """The gradient of the position's next minibatch, handed to `use` as a view of the learner's buffer. Raises NearDeadline when this
        invocation has done its share, or may not finish another.
        """
        from crossover.algorithms import buffers

        if self._limit is not None and self._computed >= self._limit:
            raise NearDeadline
        self.waits.leave_in_time(need_s=2 * self._slowest_s)
        began_s = runtime.monotonic()
        place = {**self.event, "epoch": self.epoch, "round": self.round, "minibatch": self.position.minibatch}
        with self.ctx.stage("fetch"):
            batch: Batch = self.waits.steadily(lambda: gradients.fetch_batch(self.ctx, place))
        with self.ctx.stage("compute"):
            gradient = gradients.compute(self.ctx, place, batch)
            use(buffers.tensor(gradient.data))
        answers = gradients.noted_answers(self.ctx)
        self._losses[self.epoch][0] += self.ctx.notes["loss"] * answers
        self._losses[self.epoch][1] += answers
        self._computed += 1
        self._slowest_s = max(self._slowest_s, runtime.monotonic() - began_s)
        self.position = Position(self.round, self.position.minibatch + 1)

    def next_round(self) -> None:
        self.position = Position(self.round + 1)

    def samples(self) -> list[int]:
        """Of every worker, in this round."""
        return round_samples(self.ctx.facts, self.round)

    def minibatch_samples(self) -> list[int]:
        """Of this worker's minibatches of the round."""
        return minibatch_samples(self.ctx.facts, self.round, worker=self.rank)

    def _overtaken(self, round: int) -> bool:
        """A round's keys are missing for good once every worker is beyond it; decisions are never deleted, and tell so, but for one that an
        attempt before this made: this one has yet to come there.
        """
        if self.journal.overtaken(round):
            return True
        epoch, ctx = self.days.epoch(round), self.ctx
        return (
            ctx.objects.exists(ctx.keys.decision(epoch))
            and agreement.decision(ctx, epoch)["attempt"] == ctx.keys.attempt
        )

    def _note_losses(self) -> None:
        for name in ("loss", "samples", "answers"):  # of the last minibatch; the epochs' own follow
            self.ctx.notes.pop(name, None)
        means = [[epoch, total / max(1, counted), counted] for epoch, (total, counted) in sorted(self._losses.items())]
        self.ctx.notes["losses"] = means
        self.ctx.notes |= {"until": [self.round, self.position.minibatch], "attempt": self.event["attempt"]}

    def left(self) -> Event:
        """The event to go on with: the position's checkpoint is there."""
        self._note_losses()
        return {
            **at(self.ctx, self.event, self.round),
            "minibatch": self.position.minibatch,
            "epoch_finished": self.finished or self.epoch > self.event["epoch"],
            "finished": self.finished,
        }
