"""Workers that live through many invocations: one long function that checkpoints before its deadline and is invoked again."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from crossover import runtime
from crossover.algorithms import codecs
from crossover.errors import Corrupt, CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.stores import documents, encoding
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.stores.protocols import Buffer
from crossover.training import checkpoints, gradients, progress
from crossover.training.checkpoints import Checkpoint, Journal, Position
from crossover.training.progress import build_round_event, calendar, minibatch_weights, worker_weights
from crossover.training.waits import NearDeadline, Waits, report_failure
from crossover.workflow import DAY_S, Child, ForEach, Node, Repeat, Step
from crossover.workflow import Sequence as InOrder
from crossover.workflow.context import Context, gather_stages

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batches import Batch
    from crossover.training.group import GroupExchange


# --- invocation -------------------------------------------------------------------------------------------------------


class Worker(Protocol):
    """A worker that lives through many invocations. Protocol; LambdaML's synchronous worker and MLLess's filtering one implement it."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Set the worker's state to that of `checkpoint`, whose vectors and plain values an earlier call of `state` returned; at the run's
        start it has the seeded model as its only vector. Called once, before the first round.
        """

    def round(self) -> None:
        """Run the rest of the current round and move to the next, or set the invocation's `finished`. May raise NearDeadline at a point at
        which the state can be saved: it is saved, and the next invocation calls `round` again at the saved position.

        After any other error the state is not saved. Unavailable, StaleAttempt and Missing are only raised; all others are also stored as
        this worker's failure, so that no worker waits for it.
        """

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """Return the content of a checkpoint at the invocation's position: its vectors by name, and its plain values, which can be written
        as JSON and to which the caller may add. The vectors may be views of the worker's own memory: the caller stores them before the next
        round.
        """

    def show_model(self) -> None:
        """Copy the model that is to be evaluated into the learner. Does nothing if the learner already holds it."""

    def may_deviate(self) -> bool:
        """Return whether the model may differ from the one of an earlier attempt at the same round, because a worker takes part no more."""

    def list_stored(self, round: int) -> list[str]:
        """Return the keys in the tensor store under which this worker may have stored something for `round`, in any of its exchanges.
        Nothing is looked up, so keys may be missing.
        """


def run_invocation(ctx: Context, event: Event, begin: Callable[["Invocation"], Worker]) -> Event:
    """Run one invocation of a worker from its newest checkpoint and return the changes of the event for the next invocation. `ctx`,
    `event`: of the invocation; `begin`: builds the worker.

    Lambda may deliver an event twice. If a duplicate of this invocation is further on, the keys that this one waits for may be gone; this
    one then continues from the duplicate's checkpoint.

    A retried invocation that finds a checkpoint beyond its event returns at once. The step is then entered anew with all its retries, so
    that they limit only the failures without progress in between.

    Raises StaleAttempt if the attempt was superseded or has concluded the run, Missing if the event's checkpoint is deleted, Corrupt if the
    checkpoint is damaged, and the errors of the worker's rounds other than NearDeadline.
    """
    while True:
        invocation = Invocation(ctx, event)
        try:
            checkpoint = invocation.restore()
            if invocation.progressed:
                return invocation.next_event()
            worker = begin(invocation)
            worker.restore(checkpoint)
            return invocation.run(worker)
        except StaleAttempt:
            if progress.is_obsolete(ctx) or not invocation.journal.is_superseded(invocation.round):
                raise


class Invocation:
    """State of one invocation of a long worker: its position in the run, its deadline, checkpoints and decisions. The `Worker` object does
    the computing and exchanging.

    `rank`: the worker's; `days`: the run's calendar; `journal`: reads and writes checkpoints; `waits`: waits for other workers;
    `position`: round and minibatches done; `finished`: whether training is over, set by a decision or by the worker; `progressed`: whether
    an earlier try of this invocation left a checkpoint beyond the event.
    """

    def __init__(self, ctx: Context, event: Event) -> None:
        """Start at the position that `event` names. The run's configuration is read unless this process has it, but no checkpoint yet."""
        self.ctx, self.event = ctx, event
        self.rank: int = event["worker"]
        self.days = calendar(ctx.facts)
        self.journal = Journal(ctx, self.rank, every=ctx.experiment.functions.checkpoint_every)
        self.waits = Waits(ctx, f"worker {self.rank}", event["attempt"], self._is_superseded)
        self.position = Position(event["round"], event["minibatch"])
        self.finished = self.progressed = False
        limit = ctx.experiment.exchange.minibatches_per_invocation
        self._limit = limit if isinstance(limit, int) else None
        self._computed, self._slowest_s, self._evaluation_s = 0, 0.0, 0.0
        self._losses: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._history: tuple[int, list[tuple[float, float]]] = (0, [])

    @property
    def round(self) -> int:
        """Round, from 0, at which the worker is now."""
        return self.position.round

    @property
    def epoch(self) -> int:
        """Epoch, from 1, of the round at which the worker is now."""
        return self.days.epoch(self.position.round)

    def restore(self) -> Checkpoint:
        """Return the checkpoint to continue from, and move to its position: the event's checkpoint, or a later one that an earlier try of
        this invocation left.

        If the checkpoint is damaged, reports the failure, so that no worker waits for this one, and raises Corrupt. Raises Missing if a
        later invocation has already deleted the event's checkpoint.
        """
        try:
            checkpoint = self.waits.retry(lambda: self.journal.restore(self.position))
        except Corrupt as cause:  # so that no other worker waits for this one
            report_failure(self.ctx, attempt=self.event["attempt"], member=self.rank, cause=cause)
            raise
        self.progressed = checkpoint.position > self.position
        self.position = checkpoint.position
        self.waits.since = checkpoint.facts.get("waiting_since")
        return checkpoint

    def run(self, worker: Worker) -> Event:
        """Run rounds of `worker` until training is over or the deadline is near, save a checkpoint, and return the changes of the event for
        the next invocation.

        If the run was resumed or concluded meanwhile, deletes what this invocation stored and raises StaleAttempt; likewise if a duplicate
        of this invocation is further on. Other errors of the rounds are raised.
        """
        self.ctx.report_usage()
        try:
            return self._run_rounds(worker)
        except CrossoverError as error:
            self.waits.roll_back_if_obsolete(lambda: self._roll_back(worker), error)
            if isinstance(error, StaleAttempt):
                # A duplicate has continued, and all others with it: only this one can delete the keys that it stored late.
                self.waits.retry(lambda: self._delete_stored(worker, since=self.round - 1))
            raise

    def _run_rounds(self, worker: Worker) -> Event:
        """Run rounds of `worker` until training is over or the deadline is near, save a checkpoint, and return the changes of the event for
        the next invocation.

        Every error is raised. Errors other than Unavailable, StaleAttempt and Missing, which a retry cannot repair, are reported first, so
        that no worker waits for this one.
        """
        try:
            while not self._is_over(worker):
                worker.round()
                gather_stages(self.ctx)
        except NearDeadline:
            pass
        except (Unavailable, StaleAttempt, Missing):
            raise  # tried again, or of no consequence
        except Exception as cause:
            report_failure(self.ctx, attempt=self.event["attempt"], member=self.rank, cause=cause)
            raise
        self.save(worker)
        return self.next_event()

    def _roll_back(self, worker: Worker) -> None:
        """Delete the keys that `worker` may have stored since two checkpoint intervals ago, the evaluation claims of the whole attempt, and
        the checkpoints that this invocation has read or saved, unless a later attempt still has to read them. Safe to repeat.

        Called if the attempt is superseded or has concluded the run: the function that clears up may have run before these were stored.
        """
        self._delete_stored(worker, since=self.round - 2 * self.ctx.experiment.functions.checkpoint_every)
        self.ctx.objects.delete_prefix(self.ctx.keys.evaluations)
        if progress.is_state_unneeded(self.ctx):
            self.journal.delete_all()

    def _delete_stored(self, worker: Worker, *, since: int) -> None:
        """Delete the keys that `worker` may have stored for the rounds from `since` to the current one."""
        spent = [key for round in range(max(0, since), self.round + 1) for key in worker.list_stored(round)]
        if spent:
            self.ctx.tensors[self.rank].delete(*spent)

    def save(self, worker: Worker) -> None:
        """Save the state of `worker` as a checkpoint at the current position. If one was saved or restored there already, it stays. Raises
        StaleAttempt if this attempt was superseded or has concluded the run, also after saving.
        """
        with self.ctx.stage("checkpoint"):
            vectors, facts = worker.state()
            if self.waits.since:
                facts["waiting_since"] = self.waits.since
            self.waits.retry(lambda: self.journal.save(self.position, vectors, facts))
            if self.waits.retry(lambda: progress.is_obsolete(self.ctx)):
                raise StaleAttempt(f"worker {self.rank}, round {self.round}: its checkpoint is not needed any more")

    def _is_over(self, worker: Worker) -> bool:
        """Return whether training is over. Called at the start of a round: first saves a checkpoint if one is due, and if an epoch has just
        ended, evaluates or reads the decision on it. Raises NearDeadline if the time is too short for the evaluation.
        """
        round = self.position.round
        if self.finished or self.position.minibatch:
            return self.finished
        if self.journal.is_due(round):
            self.save(worker)
        if round and self.days.ends_epoch(round - 1):
            self.finished = self._read_or_create_decision(worker, self.days.epoch(round - 1))
            self.ctx.report_usage()
        return self.finished

    def _read_or_create_decision(self, worker: Worker, epoch: int) -> bool:
        """Return whether the decision after `epoch` ends training. If there is no decision, evaluates the model and creates it, unless
        another worker is doing that. Raises NearDeadline if twice the time of this invocation's last evaluation is not left for it.
        """
        key, retry = self.ctx.keys.decision(epoch), self.waits.retry
        if not retry(lambda: self.ctx.objects.exists(key)) and not self._await_other_decision(epoch):
            self.waits.leave_in_time(need_s=2 * self._evaluation_s)
            began_s = runtime.monotonic()
            with self.ctx.stage("evaluate"):
                worker.show_model()
                retry(lambda: progress.create_decision(self.ctx, epoch))
            self._evaluation_s = runtime.monotonic() - began_s
        self.waits.since = None
        agreed = retry(lambda: progress.read_decision(self.ctx, epoch))
        self._history = (epoch, [(loss, metric) for loss, metric in agreed["history"]])
        if agreed["finished"] and agreed["attempt"] != self.ctx.keys.attempt and worker.may_deviate():
            self._evaluate_final_model(worker)
        return bool(agreed["finished"])

    def _evaluate_final_model(self, worker: Worker) -> None:
        """Evaluate the model of `worker` and store the result for `store_last_model`, unless it is stored. Called if the last decision, of
        an earlier attempt, may describe another model. Raises NearDeadline if the time is too short.
        """
        retry = self.waits.retry
        if retry(lambda: self.ctx.objects.exists(self.ctx.keys.final_evaluation)):
            return
        self.waits.leave_in_time(need_s=2 * self._evaluation_s)
        began_s = runtime.monotonic()
        with self.ctx.stage("evaluate"):
            worker.show_model()
            result = retry(lambda: progress.evaluate(self.ctx))
            body = documents.seal({"val_loss": result.loss, "val_metric": result.metric})
            retry(lambda: self.ctx.objects.create(self.ctx.keys.final_evaluation, body))
        self._evaluation_s = runtime.monotonic() - began_s

    def _await_other_decision(self, epoch: int) -> bool:
        """Claim the evaluation after `epoch`, or wait for the decision of the worker that claimed it first. Return True once that decision
        exists; False if this worker has to evaluate, because the claim is its own, or because the other worker fails or takes longer than
        half the usual timeout. Raises NearDeadline and StaleAttempt as `Waits.wait_for` does.

        All workers would compute the same result, so that one evaluation is enough.
        """
        key, decision, retry = self.ctx.keys.evaluation_claim(epoch), self.ctx.keys.decision(epoch), self.waits.retry
        own = json.dumps({"by": self.rank, "at": self.ctx.clock()}).encode()
        one = encoding.read_plain(retry(lambda: self.ctx.objects.create(key, own)), {"by": int, "at": float}, key=key)
        if one["by"] == self.rank:
            return False
        self.waits.since = one["at"]  # the store's word: no checkpoint at this position keeps it from life to life
        try:
            with self.ctx.stage("synchronise"):
                self.waits.wait_for(
                    lambda: self.ctx.objects.get(decision),
                    round=self.round,
                    key=decision,
                    sender=one["by"],
                    timeout_factor=0.5,  # the supervisor, who waits for the decision too, must not lose its own first
                    channel="s3",
                )
        except (RunFailed, WaitTimeout):
            return False
        return True

    def read_history(self) -> list[tuple[float, float]]:
        """Return (validation loss, metric) of each evaluation before this round, oldest first. They are read from the store once per epoch;
        until then the same list is returned, which must not be changed. Raises Unavailable if the store does not answer for 60 s, or the
        deadline is near.
        """
        before = self.days.epochs_before(self.round)
        if self._history[0] != before:
            self._history = (before, self.waits.retry(lambda: progress.read_history(self.ctx, before)))
        return self._history[1]

    def compute(self, use: "Callable[[Tensor], None]") -> None:
        """Compute the gradient of the next minibatch, pass it to `use` as a view of the learner's buffer, and advance the position by one
        minibatch.

        Raises NearDeadline, before anything is computed, if this invocation has computed its limit of minibatches, or may not have time
        for another (twice the slowest so far).
        """
        from crossover.algorithms import buffers

        if self._limit is not None and self._computed >= self._limit:
            raise NearDeadline
        self.waits.leave_in_time(need_s=2 * self._slowest_s)
        began_s = runtime.monotonic()
        place = {**self.event, "epoch": self.epoch, "round": self.round, "minibatch": self.position.minibatch}
        with self.ctx.stage("fetch"):
            batch: Batch = self.waits.retry(lambda: gradients.fetch_batch(self.ctx, place))
        with self.ctx.stage("compute"):
            gradient = gradients.compute_gradient(self.ctx, place, batch)
            use(buffers.tensor(gradient.data))
        answers = gradients.get_noted_answers(self.ctx)
        self._losses[self.epoch][0] += self.ctx.notes["loss"] * answers
        self._losses[self.epoch][1] += answers
        self._computed += 1
        self._slowest_s = max(self._slowest_s, runtime.monotonic() - began_s)
        self.position = Position(self.round, self.position.minibatch + 1)

    def next_round(self) -> None:
        """Move the position to the start of the next round."""
        self.position = Position(self.round + 1)

    def samples(self) -> list[int]:
        """Return the weight (sample count) of every worker's contribution to this round, by rank."""
        return worker_weights(self.ctx.facts, self.round)

    def minibatch_weights(self) -> list[int]:
        """Return the weight (sample count) of each of this worker's minibatches of the round."""
        return minibatch_weights(self.ctx.facts, self.round, worker=self.rank)

    def _is_superseded(self, round: int) -> bool:
        """Return whether waiting in `round` is in vain because others are beyond it: a duplicate of this invocation has a later checkpoint,
        or this attempt has decided on the epoch of `round`.

        A round's keys are missing for good once every worker is beyond it. An earlier attempt's decision does not count, because this
        attempt has yet to reach it.
        """
        if self.journal.is_superseded(round):
            return True
        epoch, ctx = self.days.epoch(round), self.ctx
        return (
            ctx.objects.exists(ctx.keys.decision(epoch))
            and progress.read_decision(ctx, epoch)["attempt"] == ctx.keys.attempt
        )

    def _note_losses(self) -> None:
        """Note in the record the mean training loss of each epoch, the position reached, and the attempt, in place of the figures of the
        last minibatch.
        """
        for name in ("loss", "samples", "answers"):  # of the last minibatch; the epochs' own follow
            self.ctx.notes.pop(name, None)
        means = [[epoch, total / max(1, counted), counted] for epoch, (total, counted) in sorted(self._losses.items())]
        self.ctx.notes["losses"] = means
        self.ctx.notes |= {"until": [self.round, self.position.minibatch], "attempt": self.event["attempt"]}

    def next_event(self) -> Event:
        """Return the event's changes for the next invocation: the current position, `epoch_finished` (whether the invocation has left the
        event's epoch) and `finished` (whether training is over). Notes the losses in the record. The position's checkpoint must exist.
        """
        self._note_losses()
        return {
            **build_round_event(self.ctx, self.round),
            "minibatch": self.position.minibatch,
            "epoch_finished": self.finished or self.epoch > self.event["epoch"],
            "finished": self.finished,
        }


# --- life -------------------------------------------------------------------------------------------------------------
# How a run of long workers begins and ends: what AllReduce and ScatterReduce share, and MLLess builds on.


def worker_tree(train: Step, *, tolerant: bool = False) -> Node:
    """Return the tree of steps in which all workers run side by side, each invoked again and again until training ends.

    Each epoch of a worker is a state machine's execution of its own, which keeps histories short. `train`: step that is one invocation;
    `tolerant`: whether the others continue if a worker fails.
    """
    invocations = Child("epoch", Repeat(train, until="epoch_finished", timeout_s=DAY_S))
    body = Child("worker", Repeat(invocations, until="finished", timeout_s=DAY_S))
    return ForEach("worker", "workers", together=True, tolerant=tolerant, body=body)


def tree(initialise: Step, train: Step, collect: Step) -> Node:
    """Return the tree of a run's steps: first `initialise`, then `train` for all workers until training ends, then `collect`."""
    return InOrder(initialise, worker_tree(train), collect)


def start(ctx: Context, event: Event, exchange: "GroupExchange") -> Event:
    """Create every worker's first checkpoint, with the seeded model, or resume from the newest round for which every worker has one. Return
    the event's fields for that round, as changes to merge into the event.

    `event`: gives the number of workers; `exchange`: knows which keys earlier attempts may have left; they are deleted. Raises StaleAttempt
    if a higher attempt has begun or the run is concluded, Missing if the run has decisions but no round to resume from, Corrupt if every
    such round is damaged.
    """
    workers = event["workers"]

    def rounds(keys: Keys) -> Several[int]:
        """Return the rounds for which every worker has a checkpoint of the attempt with these `keys`. Raises Missing if there is none."""
        return checkpoints.list_common_rounds(ctx, keys, range(workers))

    def first(keys: Keys, round: int) -> Iterator[tuple[int, bytes]]:
        """Yield (worker, bytes of its checkpoint of `round`) for each worker of the attempt with these `keys`, by rank. Raises Corrupt if
        one is damaged, Missing if one is deleted by now.
        """
        for worker in range(workers):
            key = keys.checkpoint(worker, round)
            body = ctx.objects.get(key)
            checkpoints.read(body, key=key)
            yield worker, body

    def clear(before: Several[Keys]) -> None:
        """Delete all tensor keys and checkpoints that the attempts with the keys `before` left, and this attempt's checkpoints, after the
        run has ended.
        """
        for keys in before:
            _delete(ctx, keys, workers, exchange, rounds_to_clear(ctx, keys))
        delete_checkpoints(ctx)

    with progress.set_up_attempt(ctx, lambda: roll_back(ctx), clear) as before:
        round = adopt_checkpoints(ctx, before, rounds, first)
        if round is None:
            write_first_checkpoints(ctx, workers)
            return build_round_event(ctx, 0)
        for keys in before:
            _delete(ctx, keys, workers, exchange, rounds_around(ctx, round))
        return build_round_event(ctx, round)


def roll_back(ctx: Context) -> None:
    """Delete the checkpoints of the attempt of `ctx`, which was superseded during its set-up. Does nothing if the next attempt still has to
    read them.
    """
    if progress.is_state_unneeded(ctx):
        ctx.objects.delete_prefix(ctx.keys.own_checkpoints)


def rounds_around(ctx: Context, round: int, *, slack: int = 0) -> range:
    """Return the rounds of which an attempt that stopped at `round` may have left keys in the tensor store: from two checkpoint intervals
    and 2 rounds before it, to one round less after it. `ctx`: gives the interval of checkpoints.

    `slack`: number of rounds by which a worker may be behind the others, in addition to two checkpoints; the range is longer by twice as
    many rounds at each end.
    """
    span = 2 * (ctx.experiment.functions.checkpoint_every + slack) + 2
    return range(max(0, round - span), round + span)


def rounds_to_clear(ctx: Context, keys: Keys, *, slack: int = 0) -> list[int]:
    """Return the rounds, ascending, of which the attempt with these `keys` may have left keys when the run ended: for the run's last round
    and the round of each of the attempt's checkpoints, those of `rounds_around`.

    `slack`: number of rounds by which a worker may be behind the others, in addition to two checkpoints.
    """
    saved = (key.rpartition("/")[2] for key in ctx.objects.list(keys.own_checkpoints))
    last = calendar(ctx.facts).rounds_until(progress.read_newest_decision(ctx)["epoch"])
    rounds = {last, *(int(name.partition(".")[0]) for name in saved)}
    return sorted({near for round in rounds for near in rounds_around(ctx, round, slack=slack)})


def write_first_checkpoints(ctx: Context, workers: int) -> None:
    """Create the checkpoint of round 0, with the seeded model, for each of `workers` workers, unless it exists."""
    first = Checkpoint(Position(0), {"model": Vector(VectorKind.MODEL, ctx.learner.initialise_model())})
    for worker in range(workers):
        ctx.objects.put_new(ctx.keys.checkpoint(worker, 0), checkpoints.encode(first))


Rounds = Callable[
    [Keys], Iterable[int]
]  # returns those that an attempt can be resumed from; raises Missing if there are none
First = Callable[
    [Keys, int], Iterable[tuple[int, bytes | Several[Buffer]]]
]  # each member's checkpoint of an attempt's round; raises Corrupt


def adopt_checkpoints(ctx: Context, before: Several[Keys], rounds: Rounds, first: First) -> int | None:
    """Copy the checkpoints of an earlier attempt to this one, mark the earlier attempts as taken over, delete their own checkpoints, and
    return the round to resume at; None if no attempt has a round to resume from and the run has no decisions.

    That is the newest round whose checkpoints are undamaged; damaged newer ones are noted in the step's record. If this attempt has
    checkpoints already, nothing is copied, and the lowest of its rounds is returned. `ctx`: of this attempt; `before`: keys of the earlier
    attempts; `rounds`: returns the rounds that an attempt can be resumed from, or raises Missing if there are none; `first`: yields
    (member, bytes) of each member's checkpoint of one of them; it is called once to check a round, and again to copy it.

    Raises Missing if the run has decisions but no such round, Corrupt if every round is damaged, and StaleAttempt if a higher attempt has
    begun; nothing is deleted then.
    """
    round = _copy_checkpoints(ctx, before, rounds, first)
    progress.mark_taken_over(ctx, before)
    for keys in before:
        ctx.objects.delete_prefix(keys.own_checkpoints)
    return round


def _copy_checkpoints(ctx: Context, before: Several[Keys], rounds: Rounds, first: First) -> int | None:
    """Copy the checkpoints of the newest undamaged round of the attempts `before` to this one and return that round; None if no attempt has
    a round to resume from and the run has no decisions.

    `rounds`: returns the rounds that an attempt can be resumed from, or raises Missing if there are none; `first`: yields (member, bytes)
    of each member's checkpoint of one of them. If this attempt has checkpoints already, because its first step is tried again, nothing is
    copied and the lowest of their rounds is returned. Raises Missing if the run has decisions but no such round, Corrupt if every round is
    damaged.
    """
    objects, starts = ctx.objects, list[tuple[int, Keys]]()
    with suppress(Missing):  # this attempt has begun already, and its first step is tried again
        return min(rounds(ctx.keys))
    for keys in before:
        with suppress(Missing):
            starts += ((round, keys) for round in rounds(keys))
    if not starts:
        if objects.list(ctx.keys.decisions):
            raise Missing(f"{ctx.keys.checkpoints}: a round that all workers can start from")
        return None
    starts.sort(key=lambda each: (each[0], each[1].attempt))
    round, source = _find_undamaged(ctx, starts, first)
    for member, body in first(source, round):
        objects.put_new(ctx.keys.checkpoint(member, round), body)
    return round


def _find_undamaged(ctx: Context, starts: Several[tuple[int, Keys]], first: First) -> tuple[int, Keys]:
    """Return the newest of `starts` whose checkpoints can all be read. Notes the damaged ones in the step's record; copies nothing.

    `starts`: (round, keys of its attempt), ascending; `first`: yields the checkpoints of one of them. Raises the newest round's Corrupt if
    all are damaged, and at once any other error of `first`, such as Missing.
    """
    damaged = list[Corrupt]()
    for round, source in reversed(starts):
        try:
            for _ in first(source, round):
                pass
            if damaged:
                ctx.note(damaged="; ".join(map(str, damaged)))
            return round, source
        except Corrupt as error:
            damaged.append(error)
    raise damaged[0]


def collect(ctx: Context, event: Event, exchange: "GroupExchange") -> None:
    """Store the last round's model and the outcome in the bucket, delete every tensor key and checkpoint of the run, and mark it as
    finished.

    `event`: gives the number of workers; `exchange`: knows the keys of a round. Raises StaleAttempt if a higher attempt has begun, and what
    `store_last_model` raises.
    """
    progress.raise_if_superseded(ctx)
    last = store_last_model(ctx)
    every = ctx.experiment.functions.checkpoint_every
    _delete(ctx, ctx.keys, event["workers"], exchange, range(max(0, last - 2 * every), last + 1))
    delete_checkpoints(ctx)
    progress.mark_finished(ctx)


def find_last_rounds(saved: Iterable[str]) -> dict[str, int]:
    """Return the round of each worker's newest checkpoint, as {prefix of the worker's checkpoint keys, without its last slash: round}.
    `saved`: keys of checkpoints.
    """
    found: dict[str, int] = {}
    for key in saved:
        worker, _, position = key.rpartition("/")
        found[worker] = max(found.get(worker, 0), int(position.partition(".")[0]))
    return found


def delete_checkpoints(ctx: Context, *, own: Several[str] | None = None) -> None:
    """Delete the checkpoints and evaluation claims of this attempt and of all earlier ones, whose late workers may have written some
    since. `own`: keys of this attempt's checkpoints, if they are listed already.
    """
    if own is None:
        ctx.objects.delete_prefix(ctx.keys.own_checkpoints)
    else:
        ctx.objects.delete(*own)
    ctx.objects.delete_prefix(ctx.keys.evaluations)
    for keys in progress.earlier_attempts(ctx):
        ctx.objects.delete_prefix(keys.own_checkpoints)
        ctx.objects.delete_prefix(keys.evaluations)


_EVALUATION = {"val_loss": float, "val_metric": float}


def store_last_model(ctx: Context) -> int:
    """Store the outcome, with the model from a worker's checkpoint of the last agreed round, unless it is stored; return that round. If
    this attempt has evaluated its final model itself, the outcome has that loss and metric instead of the decision's.

    Raises Missing if the outcome has to be stored and no worker has that checkpoint, Corrupt if it is damaged.
    """
    agreed = progress.read_newest_decision(ctx)
    last = calendar(ctx.facts).rounds_until(agreed["epoch"])
    if not ctx.objects.exists(ctx.keys.outcome):
        ends = (ctx.keys.checkpoint(worker, last) for worker in range(ctx.experiment.workers))
        key = next((key for key in ends if ctx.objects.exists(key)), ctx.keys.checkpoint(0, last))
        if agreed.get("attempt") != ctx.keys.attempt and ctx.objects.exists(ctx.keys.final_evaluation):
            agreed |= documents.read_document(ctx.objects, ctx.keys.final_evaluation, _EVALUATION)
        progress.store_outcome(ctx, agreed, checkpoints.read(ctx.objects.get(key), key=key).vectors["model"])
    return last


def _delete(ctx: Context, keys: Keys, workers: int, exchange: "GroupExchange", over: Iterable[int]) -> None:
    """Delete the tensor keys that the attempt with these `keys` may have left of the rounds in `over`. `workers`: number of workers;
    `exchange`: knows the keys of a round.
    """
    each = keys.list_by_exchange(codecs.count_exchanges(ctx.experiment.exchange))
    left = [
        key
        for round in over
        for rank in range(workers)
        for own in each
        for key in keys_of(own, exchange, round, rank, workers)
    ]
    if left:
        ctx.tensors[0].delete(*left)


def keys_of(keys: Keys, exchange: "GroupExchange", round: int, rank: int, workers: int) -> list[str]:
    """Return all keys that worker `rank` (from 0), one of `workers`, may have stored for one exchange of `round`, its results among them,
    to delete them. Keys that do not exist are among them. `keys`: of the attempt and exchange.
    """
    return exchange.list_used_keys(keys, round, rank=rank, count=workers) + exchange.list_result_keys(
        keys, round, rank=rank, count=workers
    )
