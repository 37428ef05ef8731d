"""MLLess's supervisor: waits for every report, gives its word, removes who is dead and, past the loss's knee, who is slow. Free of torch.

Its own state is the words it gave: created first-write-wins, so that a later attempt repeats them.
"""

from dataclasses import asdict, replace
from typing import Any

from crossover.algorithms import knee
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.context.metering import gather_stages
from crossover.dataplane.vector import VectorKind
from crossover.errors import CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.training import agreement, attempts
from crossover.training.calendar import at, calendar
from crossover.training.checkpoints import Journal, Position
from crossover.training.long_worker.waits import NearDeadline, Waits, say_why
from functions.mlless import words
from functions.mlless.settings import MLLess
from functions.mlless.words import StepReport, Word

_MOST_POINTS = 2_048  # of the loss curve; beyond, every second one is let go
_FEWEST_REPORTS = knee.SPAN // 2  # of a worker, before its speed is judged, and between two removals

# Where in a step it stands, in the place of a worker's minibatch: each wait has a position of its own, so that a
# checkpoint can keep since when it lasts. Else a dead worker would be waited for anew in every invocation.
_BEGIN, _DECISION, _REPORTS = range(3)


def supervise(ctx: Context, event: Event) -> Event:
    """Step after step until training is over or the invocation must end. Where a duplicate of this invocation has gone on beyond it, this
    one goes on where the other stands, and where it was tried again after progress, it leaves at once, as a worker does
    (`invocation.through`).
    """
    ctx.mark()
    late: Supervisor | None = None
    while True:
        supervisor = Supervisor(ctx, event)
        try:
            if late is not None:
                supervisor.forget_words_of(late)
            return _live(ctx, event, supervisor)
        except CrossoverError as error:
            supervisor.give_way(error)
            if not (isinstance(error, StaleAttempt) and supervisor.passed()):
                raise
            late = supervisor


def _live(ctx: Context, event: Event, supervisor: "Supervisor") -> Event:
    try:
        while not supervisor.progressed and not supervisor.ended():
            supervisor.step()
            gather_stages(ctx)
    except NearDeadline:
        pass
    except (Unavailable, StaleAttempt, Missing):
        raise
    except Exception as cause:
        say_why(ctx, attempt=event["attempt"], member=words.supervisor_rank(ctx), cause=cause)
        raise
    return supervisor.leave()


class Supervisor:
    """Position, the last word given, and what scaling in goes by: the loss curve and each worker's seconds."""

    def __init__(self, ctx: Context, event: Event) -> None:
        self._ctx, self._event = ctx, event
        self._workers = ctx.experiment.workers
        self._days = calendar(ctx.facts)
        self._slack = ctx.experiment.settings(MLLess).slack
        self._journal = Journal(ctx, words.supervisor_rank(ctx), every=ctx.experiment.functions.checkpoint_every)
        self._waits = Waits(ctx, "the supervisor", event["attempt"], self._journal.overtaken)
        entered = Position(event["round"], event["minibatch"])
        checkpoint = self._waits.steadily(lambda: self._journal.restore(entered))
        self.progressed, facts = checkpoint.position > entered, checkpoint.facts
        self._step, self._at = checkpoint.position.round, checkpoint.position.minibatch
        self._waits.since = facts.get("waiting_since")
        self._word = words.last_known(facts)
        self._curve: list[list[float]] = facts.get("curve", [])  # [unix seconds, loss]
        self._seconds: dict[str, list[float]] = facts.get("seconds", {})  # by worker: of its latest steps
        self._settled_from: int = facts.get("settled_from", 0)  # the curve's point from which the present workers speak
        self._finished, self._replaying = False, True

    def ended(self) -> bool:
        """At the start of a step: checkpoint if one is due; whether the epoch before it was the last."""
        if self._journal.is_due(self._step):
            self._save()
        if self._step and self._days.ends_epoch(self._step - 1):
            epoch = self._days.epoch(self._step - 1)
            key = self._ctx.keys.decision(epoch)
            if self._at < _REPORTS:
                self._at = _DECISION
                self._await_decision(key)
            self._finished = bool(self._waits.steadily(lambda: agreement.decision(self._ctx, epoch))["finished"])
            self._ctx.mark()
        return self._finished

    def _await_decision(self, key: str) -> None:
        def look() -> bytes:
            return self._ctx.objects.get(key)

        with self._ctx.stage("synchronise"):
            self._waits.until(look, round=self._step, key=key, sender=None, settled=self._refuse_empty, channel="s3")

    def _refuse_empty(self) -> bool:
        """Raises RunFailed once every worker has left with an error: nobody is there to decide."""
        causes = [self._waits.failure_of(worker) for worker in self._word.reporting(self._workers, self._step)]
        if all(causes):
            raise RunFailed(f"the supervisor, step {self._step}: no worker is left; the last one: {causes[-1]}")
        return False

    def step(self) -> None:
        """All reports, then the word on them."""
        step, ctx = self._step, self._ctx
        key = ctx.keys.expected(step)
        word = self._given(key) if self._replaying else None
        if word is None:
            self._replaying, self._at = False, _REPORTS
            with ctx.stage("synchronise"):
                said = self._judge(*self._gather())
            created = self._waits.steadily(lambda: ctx.tensors[0].create(key, words.encode(said)))
            word = said if created else self._given(key) or said  # an attempt before this one gave it
        self._remember(word)
        self._waits.steadily(lambda: ctx.bus.arrive(ctx.keys.updates, round=step, member=words.supervisor_rank(ctx)))
        if self._journal.is_due(step):
            self._forget_before(step - self._slack)
        self._step, self._at, self._waits.since = step + 1, _BEGIN, None

    def _given(self, key: str) -> Word | None:
        try:
            return words.read_word(
                self._waits.steadily(lambda: self._ctx.tensors[0].get(key, kind=VectorKind.RECORD)), key=key
            )
        except Missing:
            return None

    def _gather(self) -> tuple[dict[int, StepReport], Word]:
        """Every reporting worker's report, and the last word with those dropped who sent none."""
        word, reports = self._word, dict[int, StepReport]()
        since = self._waits.since or self._ctx.clock()
        for worker in word.reporting(self._workers, self._step):
            key = self._ctx.keys.report(self._step, worker)
            self._waits.since = since  # of the step: several dead workers are waited for at once
            try:
                found = self._waits.until(
                    lambda key=key: self._ctx.tensors[0].get(key, kind=VectorKind.RECORD),  # type: ignore[misc]
                    round=self._step,
                    key=key,
                    sender=worker,
                )
            except (WaitTimeout, RunFailed) as gone:
                if "Corrupt: " in str(
                    gone
                ):  # it is not the worker that is gone: without it another model would be trained
                    raise
                word = self._drop(word, worker, why=str(gone))
            else:
                reports[worker] = words.read_report(found, key=key)
        for worker in sorted({each for report in reports.values() for each in report.complaints} - set(word.dropped)):
            word = self._drop(word, worker, why="its update could not be read")
            reports.pop(worker, None)
        self._waits.since = None
        return reports, word

    def _drop(self, word: Word, worker: int, *, why: str) -> Word:
        self._ctx.notes[f"dropped_{worker}"] = why
        dropped = replace(word, dropped=(*word.dropped, worker))
        if not dropped.computing(self._workers, self._step):
            raise RunFailed(f"the supervisor, step {self._step}: no worker is left; the last one: {why}")
        return dropped

    def _judge(self, reports: dict[int, StepReport], word: Word) -> Word:
        """The word on this step."""
        computed = [report for report in reports.values() if report.loss is not None]
        samples = sum(report.samples for report in computed)
        loss = (
            sum(report.loss * report.samples for report in computed if report.loss is not None) / samples
            if samples
            else None
        )
        for worker, report in reports.items():
            latest = self._seconds.setdefault(str(worker), [])
            latest.append(report.seconds)
            del latest[: -knee.SPAN]
        given = Word(
            step=self._step,
            senders=tuple(worker for worker in sorted(reports) if reports[worker].update),
            leaves=word.leaves,
            dropped=word.dropped,
            loss=loss,
            at=self._ctx.clock(),
        )
        slow = self._superfluous(given)
        if slow is None:
            return given
        every = self._ctx.experiment.functions.checkpoint_every
        leaving_at = words.visible_from(self._days, self._step, slack=self._slack, every=every)
        return replace(given, leaves={**given.leaves, slow: leaving_at})

    def _superfluous(self, word: Word) -> int | None:
        """Scaling in: the slowest worker, once the loss is past its knee and the next seconds promise little. None: all stay."""
        settings = self._ctx.experiment.settings(MLLess)
        staying = word.staying(self._workers)
        curve = [*self._curve, [word.at, word.loss]] if word.loss is not None else self._curve
        if (
            not settings.scale_in
            or len(staying) <= settings.min_workers
            or len(curve) - self._settled_from < _FEWEST_REPORTS
        ):
            return None
        times, losses = [at for at, _ in curve], knee.smoothed([loss for _, loss in curve])
        bend = knee.knee(losses)
        if bend is None:
            return None
        since = max(bend, self._settled_from, len(curve) - knee.SPAN)
        promised = knee.predicted_reduction(times[since:], losses[since:], ahead_s=settings.knee_window_s)
        if promised > settings.knee_reduction:
            return None
        return max(staying, key=lambda worker: (_mean(self._seconds.get(str(worker), [])), worker))

    def _remember(self, word: Word) -> None:
        left = set(word.leaves) | set(word.dropped)
        changed = left != set(self._word.leaves) | set(self._word.dropped)
        self._word = word
        if word.loss is not None:
            self._curve.append([word.at, word.loss])
        if changed:
            self._settled_from = len(self._curve)
        if len(self._curve) > _MOST_POINTS:
            self._curve, self._settled_from = self._curve[::2], self._settled_from // 2

    def _forget_before(self, step: int) -> None:
        """All have reported on a step that began with a checkpoint, so nobody goes back beyond it (and the words it had not applied)."""
        oldest = max(0, step - self._ctx.experiment.functions.checkpoint_every - self._slack)
        workers = range(self._workers)
        spent = [key for old in range(oldest, step) for key in words.keys_of(self._ctx.keys, old, workers)]
        if spent:
            self._waits.steadily(lambda: self._ctx.tensors[0].delete(*spent))

    def forget_words_of(self, late: "Supervisor") -> None:
        """What `late` gave after the duplicate, whose checkpoint this one has, had deleted the words on those steps: nobody else will."""
        every = self._ctx.experiment.functions.checkpoint_every
        forgotten = (self._step - 1) // every * every - self._slack
        spent = [self._ctx.keys.expected(step) for step in (late._step - 1, late._step) if 0 <= step < forgotten]
        if spent:
            self._waits.steadily(lambda: self._ctx.tensors[0].delete(*spent))

    def _save(self) -> None:
        facts: dict[str, Any] = {
            "word": asdict(self._word),
            "curve": self._curve,
            "seconds": self._seconds,
            "settled_from": self._settled_from,
        }
        if self._waits.since:
            facts["waiting_since"] = self._waits.since
        self._waits.steadily(lambda: self._journal.save(Position(self._step, self._at), {}, facts))
        if self._waits.steadily(lambda: attempts.useless(self._ctx)):
            raise StaleAttempt(f"the supervisor, step {self._step}: nobody needs its checkpoint any more")

    def passed(self) -> bool:
        """Whether a duplicate of this invocation has a checkpoint beyond this step."""
        return self._journal.overtaken(self._step)

    def give_way(self, error: CrossoverError) -> None:
        self._waits.give_way(self._take_back, error)

    def _take_back(self) -> None:
        """The words that this attempt gave after the next one had begun."""
        oldest = max(0, self._step - 2 * (self._ctx.experiment.functions.checkpoint_every + self._slack))
        self._ctx.tensors[0].delete(*(self._ctx.keys.expected(step) for step in range(oldest, self._step + 1)))
        if attempts.spare(self._ctx):
            self._journal.forget()

    def leave(self) -> Event:
        self._save()
        there = at(self._ctx, self._event, self._step)
        return {**there, "minibatch": self._at, "finished": self._finished}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
