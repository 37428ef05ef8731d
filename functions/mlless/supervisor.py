"""MLLess's supervisor: collects all reports, publishes its word on each step, removes dead and, past the loss's knee, slow workers.

This module does not import torch. The supervisor's own state is the words that it published. They are created first-write-wins, so that a
later attempt repeats them.
"""

from dataclasses import asdict, replace
from typing import Any

from crossover.algorithms import schedule
from crossover.errors import CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.stores.clients import Event
from crossover.stores.encoding import VectorKind
from crossover.training import progress
from crossover.training.checkpoints import Journal, Position
from crossover.training.progress import build_round_event, calendar
from crossover.training.waits import NearDeadline, Waits, report_failure
from crossover.workflow.context import Context, gather_stages
from functions.mlless import words
from functions.mlless.settings import MLLess
from functions.mlless.words import StepReport, Word

_MOST_POINTS = 2_048  # of the loss curve; above this, every second one is dropped
_FEWEST_REPORTS = schedule.SPAN // 2  # of a worker, before its speed is judged, and between two removals

# The position within a step, stored as a worker's minibatch is: each wait has a position of its own, so that a checkpoint can keep when
# it began. Otherwise every invocation would wait anew for a dead worker.
_BEGIN, _DECISION, _REPORTS = range(3)


def supervise(ctx: Context, event: Event) -> Event:
    """Supervise step after step in one invocation, until training is over or the deadline is near; return the changes of the event for the
    next invocation.

    If a duplicate of this invocation is further on, this one continues from the duplicate's checkpoint. If it was retried and finds a
    checkpoint beyond its event, it returns at once, as a worker does (`long_worker.run_invocation`).
    """
    ctx.report_usage()
    late: Supervisor | None = None
    while True:
        supervisor = Supervisor(ctx, event)
        try:
            if late is not None:
                supervisor.delete_late_words(late)
            return _run_steps(ctx, event, supervisor)
        except CrossoverError as error:
            supervisor.roll_back_if_obsolete(error)
            if not (isinstance(error, StaleAttempt) and supervisor.is_behind_duplicate()):
                raise
            late = supervisor


def _run_steps(ctx: Context, event: Event, supervisor: "Supervisor") -> Event:
    """Run the supervisor's steps until training is over or the deadline is near, save a checkpoint, and return the changes of the event for
    the next invocation.

    All errors but NearDeadline are raised; those that a retry cannot repair (others than Unavailable, StaleAttempt and Missing) are
    reported first, so that the workers do not wait for the supervisor.
    """
    try:
        while not supervisor.progressed and not supervisor.is_over():
            supervisor.step()
            gather_stages(ctx)
    except NearDeadline:
        pass
    except (Unavailable, StaleAttempt, Missing):
        raise
    except Exception as cause:
        report_failure(ctx, attempt=event["attempt"], member=words.supervisor_rank(ctx), cause=cause)
        raise
    return supervisor.leave()


class Supervisor:
    """State of MLLess's supervisor in one invocation: its position (the step, and how far the step has come), the last word (decision)
    that it published, and the figures by which it scales in (loss curve, seconds per step of each worker). `progressed`: whether an
    earlier try of this invocation left a checkpoint beyond the event.
    """

    def __init__(self, ctx: Context, event: Event) -> None:
        """Take the state of the newest checkpoint at or after the event's position. Raises Missing or Corrupt if it cannot be read."""
        self._ctx, self._event = ctx, event
        self._workers = ctx.experiment.workers
        self._days = calendar(ctx.facts)
        self._slack = ctx.experiment.settings(MLLess).slack
        self._journal = Journal(ctx, words.supervisor_rank(ctx), every=ctx.experiment.functions.checkpoint_every)
        self._waits = Waits(ctx, "the supervisor", event["attempt"], self._journal.is_superseded)
        entered = Position(event["round"], event["minibatch"])
        checkpoint = self._waits.retry(lambda: self._journal.restore(entered))
        self.progressed, facts = checkpoint.position > entered, checkpoint.facts
        self._step, self._at = checkpoint.position.round, checkpoint.position.minibatch
        self._waits.since = facts.get("waiting_since")
        self._word = words.read_last_word(facts)
        self._curve: list[list[float]] = facts.get("curve", [])  # [unix seconds, loss]
        self._seconds: dict[str, list[float]] = facts.get("seconds", {})  # by worker: of its latest steps
        self._settled_from: int = facts.get("settled_from", 0)  # the curve's point from which the present workers speak
        self._finished, self._replaying = False, True

    def is_over(self) -> bool:
        """Return whether training is over. Called at the start of a step: first saves a checkpoint if one is due, and if an epoch has just
        ended, waits for the decision that a worker makes on it. Raises NearDeadline during that wait, RunFailed if no worker is left,
        StaleAttempt if this attempt is obsolete.
        """
        if self._journal.is_due(self._step):
            self._save()
        if self._step and self._days.ends_epoch(self._step - 1):
            epoch = self._days.epoch(self._step - 1)
            key = self._ctx.keys.decision(epoch)
            if self._at < _REPORTS:
                self._at = _DECISION
                self._await_decision(key)
            self._finished = bool(self._waits.retry(lambda: progress.read_decision(self._ctx, epoch))["finished"])
            self._ctx.report_usage()
        return self._finished

    def _await_decision(self, key: str) -> None:
        """Wait for the decision on an epoch, stored under `key` by a worker. Raises RunFailed if no worker is left."""

        def look() -> bytes:
            """Read and return the bytes of the decision that the outer call waits for. Raises Missing if it is not stored yet."""
            return self._ctx.objects.get(key)

        with self._ctx.stage("synchronise"):
            self._waits.wait_for(
                look, round=self._step, key=key, sender=None, is_unneeded=self._raise_if_no_worker_left, channel="s3"
            )

    def _raise_if_no_worker_left(self) -> bool:
        """Raise RunFailed, with the error of the highest rank, if every worker that reports on the current step has reported a failure,
        because nobody is left to decide; otherwise return False. Called while the supervisor waits. Raises Unavailable if the object store
        does not answer for 60 s, or if the deadline is near.
        """
        causes = [self._waits.failure_of(worker) for worker in self._word.list_reporting(self._workers, self._step)]
        if all(causes):
            raise RunFailed(f"the supervisor, step {self._step}: no worker is left; the last one: {causes[-1]}")
        return False

    def step(self) -> None:
        """Wait for all workers' reports on the current step, then store and announce the word on it, and move to the next step. After a
        restart, a word that is stored already is reused. If a checkpoint is due at the step, the keys of the steps that no worker needs any
        more are deleted. Raises NearDeadline if the deadline is near; the next invocation then begins the step again. Raises RunFailed if
        no worker is left.
        """
        step, ctx = self._step, self._ctx
        key = ctx.keys.supervisor_word(step)
        word = self._find_word(key) if self._replaying else None
        if word is None:
            self._replaying, self._at = False, _REPORTS
            with ctx.stage("synchronise"):
                said = self._judge(*self._gather())
            created = self._waits.retry(lambda: ctx.tensors[0].create(key, words.encode(said)))
            word = said if created else self._find_word(key) or said  # an attempt before this one gave it
        self._remember(word)
        self._waits.retry(lambda: ctx.bus.arrive(ctx.keys.updates, round=step, member=words.supervisor_rank(ctx)))
        if self._journal.is_due(step):
            self._delete_before(step - self._slack)
        self._step, self._at, self._waits.since = step + 1, _BEGIN, None

    def _find_word(self, key: str) -> Word | None:
        """Return the word (decision) stored under `key`, or None if there is none. Raises Corrupt if it is damaged."""
        try:
            return words.read_word(
                self._waits.retry(lambda: self._ctx.tensors[0].get(key, kind=VectorKind.RECORD)), key=key
            )
        except Missing:
            return None

    def _gather(self) -> tuple[dict[int, StepReport], Word]:
        """Wait for the reports on the current step; return them by rank, and the last word, extended by the workers to drop: those that
        failed, timed out, or whose update could not be read. Raises NearDeadline; RunFailed if no worker is left or one failed because of
        damaged data; StaleAttempt if this attempt is obsolete; Corrupt if a report is damaged.
        """
        word, reports = self._word, dict[int, StepReport]()
        since = self._waits.since or self._ctx.clock()
        for worker in word.list_reporting(self._workers, self._step):
            key = self._ctx.keys.report(self._step, worker)
            self._waits.since = since  # of the step: several dead workers are waited for at once
            try:
                found = self._waits.wait_for(
                    lambda key=key: self._ctx.tensors[0].get(key, kind=VectorKind.RECORD),  # type: ignore[misc]
                    round=self._step,
                    key=key,
                    sender=worker,
                )
            except (WaitTimeout, RunFailed) as gone:
                if "Corrupt: " in str(gone):  # the worker is alive: dropping it would train another model
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
        """Return a copy of `word` that names `worker` as dropped, and note the reason `why` in the record. Raises RunFailed if no worker is
        left.
        """
        self._ctx.notes[f"dropped_{worker}"] = why
        dropped = replace(word, dropped=(*word.dropped, worker))
        if not dropped.list_computing(self._workers, self._step):
            raise RunFailed(f"the supervisor, step {self._step}: no worker is left; the last one: {why}")
        return dropped

    def _judge(self, reports: dict[int, StepReport], word: Word) -> Word:
        """Return the new word on the current step: whose updates all apply, the mean loss, and perhaps one more worker that has to leave.
        Adds the seconds of the reports to the workers' figures.

        `reports`: of the current step, by rank; `word`: the last word, with the workers dropped meanwhile.
        """
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
            del latest[: -schedule.SPAN]
        given = Word(
            step=self._step,
            senders=tuple(worker for worker in sorted(reports) if reports[worker].update),
            leaves=word.leaves,
            dropped=word.dropped,
            loss=loss,
            at=self._ctx.clock(),
        )
        slow = self._worker_to_remove(given)
        if slow is None:
            return given
        every = self._ctx.experiment.functions.checkpoint_every
        leaving_at = words.visible_from(self._days, self._step, slack=self._slack, every=every)
        return replace(given, leaves={**given.leaves, slow: leaving_at})

    def _worker_to_remove(self, word: Word) -> int | None:
        """Return the rank of the slowest worker if it should leave now, or None if all stay. `word`: the word about to be published.

        A worker leaves only if `scale_in` is set, the loss curve is past its knee, and little reduction of the loss is predicted for the
        next seconds.
        """
        settings = self._ctx.experiment.settings(MLLess)
        staying = word.list_staying(self._workers)
        curve = [*self._curve, [word.at, word.loss]] if word.loss is not None else self._curve
        if (
            not settings.scale_in
            or len(staying) <= settings.min_workers
            or len(curve) - self._settled_from < _FEWEST_REPORTS
        ):
            return None
        times, losses = [at for at, _ in curve], schedule.smooth([loss for _, loss in curve])
        bend = schedule.find_knee(losses)
        if bend is None:
            return None
        since = max(bend, self._settled_from, len(curve) - schedule.SPAN)
        promised = schedule.predict_reduction(times[since:], losses[since:], ahead_s=settings.knee_window_s)
        if promised > settings.knee_reduction:
            return None
        return max(staying, key=lambda worker: (_mean(self._seconds.get(str(worker), [])), worker))

    def _remember(self, word: Word) -> None:
        """Make `word` the last word, and add its loss to the loss curve. If the set of workers has changed, the curve is judged only from
        here on.
        """
        left = set(word.leaves) | set(word.dropped)
        changed = left != set(self._word.leaves) | set(self._word.dropped)
        self._word = word
        if word.loss is not None:
            self._curve.append([word.at, word.loss])
        if changed:
            self._settled_from = len(self._curve)
        if len(self._curve) > _MOST_POINTS:
            self._curve, self._settled_from = self._curve[::2], self._settled_from // 2

    def _delete_before(self, step: int) -> None:
        """Delete the database keys of the last `checkpoint_every` + `slack` steps before `step`, which no worker needs any more. Called at
        each checkpoint: earlier calls deleted the older keys.

        All workers have reported on a step that began with a checkpoint, so none returns to an earlier step. Raises Unavailable if the
        database does not answer for 60 s, or the deadline is near.
        """
        oldest = max(0, step - self._ctx.experiment.functions.checkpoint_every - self._slack)
        workers = range(self._workers)
        spent = [key for old in range(oldest, step) for key in words.keys_of(self._ctx.keys, old, workers)]
        if spent:
            self._waits.retry(lambda: self._ctx.tensors[0].delete(*spent))

    def delete_late_words(self, late: "Supervisor") -> None:
        """Delete the words that `late` published on steps whose words a duplicate of this invocation had deleted before. Nobody else would
        delete them.

        `late`: former state of this invocation, which was behind the duplicate from whose checkpoint this state was read. Raises
        Unavailable if the database does not answer for 60 s, or the deadline is near.
        """
        every = self._ctx.experiment.functions.checkpoint_every
        forgotten = (self._step - 1) // every * every - self._slack
        spent = [self._ctx.keys.supervisor_word(step) for step in (late._step - 1, late._step) if 0 <= step < forgotten]
        if spent:
            self._waits.retry(lambda: self._ctx.tensors[0].delete(*spent))

    def _save(self) -> None:
        """Save a checkpoint at the current position. Raises StaleAttempt if this attempt was superseded or has concluded the run."""
        facts: dict[str, Any] = {
            "word": asdict(self._word),
            "curve": self._curve,
            "seconds": self._seconds,
            "settled_from": self._settled_from,
        }
        if self._waits.since:
            facts["waiting_since"] = self._waits.since
        self._waits.retry(lambda: self._journal.save(Position(self._step, self._at), {}, facts))
        if self._waits.retry(lambda: progress.is_obsolete(self._ctx)):
            raise StaleAttempt(f"the supervisor, step {self._step}: its checkpoint is not needed any more")

    def is_behind_duplicate(self) -> bool:
        """Return whether a duplicate of this invocation has a checkpoint beyond the current step."""
        return self._journal.is_superseded(self._step)

    def roll_back_if_obsolete(self, error: CrossoverError) -> None:
        """If this attempt was superseded or has concluded the run, delete what it left and raise StaleAttempt from `error`; otherwise
        return.
        """
        self._waits.roll_back_if_obsolete(self._roll_back, error)

    def _roll_back(self) -> None:
        """Delete this attempt's recent words, and its checkpoints unless the next attempt still has to read them."""
        oldest = max(0, self._step - 2 * (self._ctx.experiment.functions.checkpoint_every + self._slack))
        self._ctx.tensors[0].delete(*(self._ctx.keys.supervisor_word(step) for step in range(oldest, self._step + 1)))
        if progress.is_state_unneeded(self._ctx):
            self._journal.delete_all()

    def leave(self) -> Event:
        """Save a checkpoint and return the changes of the event for the next invocation: the current position and `finished`. Raises
        StaleAttempt if this attempt is obsolete.
        """
        self._save()
        there = build_round_event(self._ctx, self._step)
        return {**there, "minibatch": self._at, "finished": self._finished}


def _mean(values: list[float]) -> float:
    """Return the mean of `values`, or 0 if there are none."""
    return sum(values) / len(values) if values else 0.0
