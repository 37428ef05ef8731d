"""Workers that live through many invocations: one long function that checkpoints before its deadline and is invoked again."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from crossover import runtime
from crossover.algorithms import codecs
from crossover.data import encoding
from crossover.data.clients import Event
from crossover.data.encoding import Vector, VectorKind
from crossover.data.keys import Keys
from crossover.data.protocols import Buffer
from crossover.errors import Corrupt, CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.training import checkpoints, gradients, progress
from crossover.training.checkpoints import Checkpoint, Journal, Position
from crossover.training.progress import calendar, event_at, minibatch_weights, worker_weights
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
    """A worker that lives through many invocations: LambdaML's synchronous worker, or MLLess's filtering one."""

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state that `state` returned. Called before the first round."""

    def round(self) -> None:
        """Run the rest of the invocation's current round. May raise NearDeadline."""

    def state(self) -> tuple[dict[str, Vector], dict[str, Any]]:
        """Return the content of a checkpoint: vectors by name, and plain facts."""

    def show_model(self) -> None:
        """Put the model that is evaluated into the learner."""

    def list_stored(self, round: int) -> list[str]:
        """Return the keys under which this worker may have stored something for a round."""


def run_invocation(ctx: Context, event: Event, begin: Callable[["Invocation"], Worker]) -> Event:
    """Run one invocation of a worker and return the event to continue with. `ctx`, `event`: of the invocation; `begin`: makes the worker.

    Lambda delivers an event at least once. If a duplicate of this invocation is ahead, the keys that this one waits for
    may be gone. Neither knows whose answer counts, so this one continues from the duplicate's checkpoint.

    A retried invocation that finds a checkpoint beyond its event returns at once: the step is then entered anew with
    all its retries. So the retries limit the failures without progress in between, not the failures of a whole run.
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
    """State of one invocation of a long worker: its position in the run, its deadline, checkpoints and decisions. The
    `Worker` moves the position.
    """

    def __init__(self, ctx: Context, event: Event) -> None:
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
        """Round at which the invocation is now."""
        return self.position.round

    @property
    def epoch(self) -> int:
        """Epoch of the round at which the invocation is now."""
        return self.days.epoch(self.position.round)

    def restore(self) -> Checkpoint:
        """Return the checkpoint to continue from: the event's, or a later one that an earlier attempt of this invocation left.

        Raises Corrupt after reporting the failure, so that nobody waits for this worker.
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
        """Run rounds until training is over or the invocation must end; return the event to continue with.

        Raises StaleAttempt if the run was resumed or concluded meanwhile, after deleting what this invocation stored.
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
        """Run rounds until training ends or the deadline is near; save, and return the event to continue with.

        An error that a retry cannot repair is reported, so that nobody waits for this worker.
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
        """Delete the recent keys and the evaluations of this attempt, and its checkpoints if no later attempt has yet to read them.

        For a superseded attempt: the next one may have cleared up before these were stored.
        """
        self._delete_stored(worker, since=self.round - 2 * self.ctx.experiment.functions.checkpoint_every)
        self.ctx.objects.delete_prefix(self.ctx.keys.evaluations)
        if progress.is_state_unneeded(self.ctx):
            self.journal.delete_all()

    def _delete_stored(self, worker: Worker, *, since: int) -> None:
        """Delete the worker's stored keys from round `since` to the current round."""
        spent = [key for round in range(max(0, since), self.round + 1) for key in worker.list_stored(round)]
        if spent:
            self.ctx.tensors[self.rank].delete(*spent)

    def save(self, worker: Worker) -> None:
        """Save a checkpoint at the current position. Raises StaleAttempt if the attempt's work is not needed any more."""
        with self.ctx.stage("checkpoint"):
            vectors, facts = worker.state()
            if self.waits.since:
                facts["waiting_since"] = self.waits.since
            self.waits.retry(lambda: self.journal.save(self.position, vectors, facts))
            if self.waits.retry(lambda: progress.is_obsolete(self.ctx)):
                raise StaleAttempt(f"worker {self.rank}, round {self.round}: its checkpoint is not needed any more")

    def _is_over(self, worker: Worker) -> bool:
        """Return whether training is over. Called at the start of a round: first saves a checkpoint if one is due, and decides if an epoch
        is over.
        """
        round = self.position.round
        if self.finished or self.position.minibatch:
            return self.finished
        if self.journal.is_due(round):
            self.save(worker)
        if round and self.days.ends_epoch(round - 1):
            self.finished = self._agree(worker, self.days.epoch(round - 1))
            self.ctx.report_usage()
        return self.finished

    def _agree(self, worker: Worker, epoch: int) -> bool:
        """Return whether the decision after `epoch` ends training. Evaluates the model and creates the decision if nobody else does."""
        key, retry = self.ctx.keys.decision(epoch), self.waits.retry
        if not retry(lambda: self.ctx.objects.exists(key)) and not self._decided_elsewhere(epoch):
            self.waits.leave_in_time(need_s=2 * self._evaluation_s)
            began_s = runtime.monotonic()
            with self.ctx.stage("evaluate"):
                worker.show_model()
                retry(lambda: progress.create_decision(self.ctx, epoch))
            self._evaluation_s = runtime.monotonic() - began_s
        self.waits.since = None
        agreed = retry(lambda: progress.decision(self.ctx, epoch))
        self._history = (epoch, [(loss, metric) for loss, metric in agreed["history"]])
        return bool(agreed["finished"])

    def _decided_elsewhere(self, epoch: int) -> bool:
        """Wait for another worker's decision after `epoch`. Return False if this worker has to evaluate, or the other does not answer.

        All would compute the same result, so the first worker here evaluates and the others wait.
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
                    patience=0.5,  # the supervisor, who waits for the decision too, must not lose its own first
                    channel="s3",
                )
        except (RunFailed, WaitTimeout):
            return False
        return True

    def history(self) -> list[tuple[float, float]]:
        """Return (validation loss, metric) of the evaluations before this round."""
        before = self.days.epochs_before(self.round)
        if self._history[0] != before:
            self._history = (before, self.waits.retry(lambda: progress.history(self.ctx, before)))
        return self._history[1]

    def compute(self, use: "Callable[[Tensor], None]") -> None:
        """Compute the gradient of the position's next minibatch and pass it to `use` as a view of the learner's buffer.

        Raises NearDeadline if this invocation has done its share, or may not have time for another minibatch.
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
        answers = gradients.noted_answers(self.ctx)
        self._losses[self.epoch][0] += self.ctx.notes["loss"] * answers
        self._losses[self.epoch][1] += answers
        self._computed += 1
        self._slowest_s = max(self._slowest_s, runtime.monotonic() - began_s)
        self.position = Position(self.round, self.position.minibatch + 1)

    def next_round(self) -> None:
        """Move the position to the start of the next round."""
        self.position = Position(self.round + 1)

    def samples(self) -> list[int]:
        """Return the sample counts of all workers' contributions to this round, by rank."""
        return worker_weights(self.ctx.facts, self.round)

    def minibatch_weights(self) -> list[int]:
        """Return the sample counts of this worker's minibatches of the round."""
        return minibatch_weights(self.ctx.facts, self.round, worker=self.rank)

    def _is_superseded(self, round: int) -> bool:
        """Return whether a duplicate of this invocation, or the whole run, is beyond `round`.

        A round's keys are missing for good once every worker is beyond it. Decisions are never deleted, so a decision of this attempt shows
        that; one of an earlier attempt does not, because this attempt has yet to come there.
        """
        if self.journal.is_superseded(round):
            return True
        epoch, ctx = self.days.epoch(round), self.ctx
        return (
            ctx.objects.exists(ctx.keys.decision(epoch))
            and progress.decision(ctx, epoch)["attempt"] == ctx.keys.attempt
        )

    def _note_losses(self) -> None:
        """Note the mean training loss of each epoch, the position reached and the attempt for the record."""
        for name in ("loss", "samples", "answers"):  # of the last minibatch; the epochs' own follow
            self.ctx.notes.pop(name, None)
        means = [[epoch, total / max(1, counted), counted] for epoch, (total, counted) in sorted(self._losses.items())]
        self.ctx.notes["losses"] = means
        self.ctx.notes |= {"until": [self.round, self.position.minibatch], "attempt": self.event["attempt"]}

    def next_event(self) -> Event:
        """Return the event to continue with. The position's checkpoint must exist."""
        self._note_losses()
        return {
            **event_at(self.ctx, self.event, self.round),
            "minibatch": self.position.minibatch,
            "epoch_finished": self.finished or self.epoch > self.event["epoch"],
            "finished": self.finished,
        }


# --- life -------------------------------------------------------------------------------------------------------------
# How a run of long workers begins and ends: what AllReduce and ScatterReduce share, and MLLess builds on.


def worker_tree(train: Step, *, tolerant: bool = False) -> Node:
    """Return the state tree in which all workers run side by side, each invoked again and again until training ends.

    Each epoch is an execution of its own, which keeps histories short. `tolerant`: whether the others continue if a worker fails.
    """
    invocations = Child("epoch", Repeat(train, until="epoch_finished", timeout_s=DAY_S))
    body = Child("worker", Repeat(invocations, until="finished", timeout_s=DAY_S))
    return ForEach("worker", "workers", together=True, tolerant=tolerant, body=body)


def tree(initialise: Step, train: Step, collect: Step) -> Node:
    """Return the tree of a run: initialise, train all workers, collect."""
    return InOrder(initialise, worker_tree(train), collect)


def start(ctx: Context, event: Event, exchange: "GroupExchange") -> Event:
    """Create every worker's first checkpoint in the bucket of `ctx`, or resume from the last round that every worker
    can start from; return the event's changes.

    The first checkpoint holds the seeded model. `exchange`: knows which keys earlier attempts may have left.
    """
    workers = event["workers"]

    def rounds(keys: Keys) -> Several[int]:
        """Return the rounds that all workers of an attempt can start from."""
        return checkpoints.common_rounds(ctx, keys, range(workers))

    def first(keys: Keys, round: int) -> Iterator[tuple[int, bytes]]:
        """Yield each worker and its checkpoint's bytes. Raises Corrupt."""
        for worker in range(workers):
            key = keys.checkpoint(worker, round)
            body = ctx.objects.get(key)
            checkpoints.read(body, key=key)
            yield worker, body

    def clear(before: Several[Keys]) -> None:
        """Delete everything that the attempts left."""
        for keys in before:
            _delete(ctx, keys, workers, exchange, rounds_to_clear(ctx, keys))
        delete_checkpoints(ctx)

    with progress.set_up_attempt(ctx, lambda: roll_back(ctx), clear) as before:
        round = adopt_checkpoints(ctx, before, rounds, first)
        if round is None:
            write_first_checkpoints(ctx, workers)
            return event_at(ctx, event, 0)
        for keys in before:
            _delete(ctx, keys, workers, exchange, rounds_around(ctx, round))
        return event_at(ctx, event, round)


def roll_back(ctx: Context) -> None:
    """Delete the checkpoints of an attempt that was superseded during its set-up, unless the next attempt has yet to read them."""
    if progress.is_state_unneeded(ctx):
        ctx.objects.delete_prefix(ctx.keys.own_checkpoints)


def rounds_around(ctx: Context, round: int, *, slack: int = 0) -> range:
    """Return the rounds of which an attempt that stopped at `round` may have left keys: its workers were less than two
    checkpoints apart. `ctx`: gives the interval of checkpoints.

    `slack`: number of rounds that a worker may be behind, in addition.
    """
    span = 2 * (ctx.experiment.functions.checkpoint_every + slack) + 2
    return range(max(0, round - span), round + span)


def rounds_to_clear(ctx: Context, keys: Keys, *, slack: int = 0) -> list[int]:
    """Return the rounds of which the attempt with `keys` may have left keys after the end of the run of `ctx`: those
    around the last round and its checkpoints.

    `slack`: as in `rounds_around`.
    """
    saved = (key.rpartition("/")[2] for key in ctx.objects.list(keys.own_checkpoints))
    last = calendar(ctx.facts).rounds_until(progress.newest_decision(ctx)["epoch"])
    rounds = {last, *(int(name.partition(".")[0]) for name in saved)}
    return sorted({near for round in rounds for near in rounds_around(ctx, round, slack=slack)})


def write_first_checkpoints(ctx: Context, workers: int) -> None:
    """Create every worker's checkpoint of round 0 with the seeded model."""
    first = Checkpoint(Position(0), {"model": Vector(VectorKind.MODEL, ctx.learner.initial_model())})
    for worker in range(workers):
        ctx.objects.put_new(ctx.keys.checkpoint(worker, 0), checkpoints.encode(first))


Rounds = Callable[
    [Keys], Iterable[int]
]  # returns those that an attempt can be resumed from; raises Missing if there are none
First = Callable[
    [Keys, int], Iterable[tuple[int, bytes | Several[Buffer]]]
]  # each member's checkpoint of an attempt's round; raises Corrupt


def adopt_checkpoints(ctx: Context, before: Several[Keys], rounds: Rounds, first: First) -> int | None:
    """Take over the checkpoints of an earlier attempt and return the round to resume at, or None if no attempt got so far.

    That is the newest round with undamaged checkpoints. They are copied as the first checkpoints of this attempt, which
    `ctx` belongs to, and those of the earlier attempts are deleted. `before`: keys of the earlier attempts; `rounds`:
    returns the rounds that an attempt can be resumed from; `first`: yields each member's checkpoint of one of them.
    Raises Missing, or Corrupt if every round is damaged, and StaleAttempt if a higher attempt has begun; nothing is
    deleted then.
    """
    round = _copy_checkpoints(ctx, before, rounds, first)
    progress.mark_taken_over(ctx, before)
    for keys in before:
        ctx.objects.delete_prefix(keys.own_checkpoints)
    return round


def _copy_checkpoints(ctx: Context, before: Several[Keys], rounds: Rounds, first: First) -> int | None:
    """Copy the checkpoints of the newest undamaged round to this attempt; return that round, or None if there are no checkpoints."""
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
    """Return the newest of `starts` whose checkpoints can all be read. Nothing is copied yet; the step's record names damaged rounds.

    `starts`: (round, keys of its attempt), ascending. Raises the newest round's Corrupt if all are damaged.
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
    """Store the last round's model and the outcome in the bucket of `ctx`, then delete every tensor key and checkpoint of the run.

    `event`: gives the number of workers; `exchange`: knows the keys of a round.
    """
    progress.raise_if_superseded(ctx)
    last = store_last_model(ctx)
    every = ctx.experiment.functions.checkpoint_every
    _delete(ctx, ctx.keys, event["workers"], exchange, range(max(0, last - 2 * every), last + 1))
    delete_checkpoints(ctx)
    progress.mark_finished(ctx)


def delete_checkpoints(ctx: Context) -> None:
    """Delete the checkpoints and evaluation claims of this attempt and of earlier ones, which may have written since it began."""
    ctx.objects.delete_prefix(ctx.keys.own_checkpoints)
    ctx.objects.delete_prefix(ctx.keys.evaluations)
    for keys in progress.earlier_attempts(ctx):
        ctx.objects.delete_prefix(keys.own_checkpoints)
        ctx.objects.delete_prefix(keys.evaluations)


def store_last_model(ctx: Context) -> int:
    """Store the outcome with the model of a worker that reached the last agreed round; return that round."""
    agreed = progress.newest_decision(ctx)
    last = calendar(ctx.facts).rounds_until(agreed["epoch"])
    if not ctx.objects.exists(ctx.keys.outcome):
        ends = (ctx.keys.checkpoint(worker, last) for worker in range(ctx.experiment.workers))
        key = next((key for key in ends if ctx.objects.exists(key)), ctx.keys.checkpoint(0, last))
        progress.store_outcome(ctx, agreed, checkpoints.read(ctx.objects.get(key), key=key).vectors["model"])
    return last


def _delete(ctx: Context, keys: Keys, workers: int, exchange: "GroupExchange", over: Iterable[int]) -> None:
    """Delete the tensor keys that an attempt left of the rounds in `over`, if the architecture stores any."""
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
    """Return all keys that the worker `rank`, one of `workers`, may have stored for the exchange of `round`."""
    return exchange.used_up(keys, round, rank=rank, count=workers) + exchange.results(
        keys, round, rank=rank, count=workers
    )
