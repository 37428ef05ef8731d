"""The steps that AllReduce and ScatterReduce share: how a run of long workers begins, goes on and ends."""

from collections.abc import Sequence as Several
from typing import TYPE_CHECKING

from crossover import rounds
from crossover.context import Context
from crossover.dataplane.vector import Kind, Vector
from crossover.keys import Keys
from crossover.long_workers import checkpoints, supervision
from crossover.long_workers.checkpoints import Checkpoint, Position
from crossover.workflow import DAY_S, Child, Event, ForEach, Node, Repeat, Sequence, Step

if TYPE_CHECKING:
    from crossover.long_workers.peers import Exchange


def worker_tree(train: Step, *, tolerant: bool = False) -> Node:
    """All workers side by side, each invoked again and again until training ends; an execution per epoch keeps
    histories short.
    """
    invocations = Child("epoch", Repeat(train, until="epoch_finished", timeout_s=DAY_S))
    body = Child("worker", Repeat(invocations, until="finished", timeout_s=DAY_S))
    return ForEach("worker", "workers", together=True, tolerant=tolerant, body=body)


def tree(initialise: Step, train: Step, collect: Step) -> Node:
    return Sequence(initialise, worker_tree(train), collect)


def start(ctx: Context, event: Event, exchange: "Exchange") -> Event:
    """The seeded model as every worker's first checkpoint, or, when a run is resumed, the last round that every
    worker can start from.
    """
    if not event["attempt"]:
        write_first_checkpoints(ctx, event["workers"])
        return rounds.at(ctx, event, 0)
    round = rewind(ctx, range(event["workers"]))
    ahead = 2 * ctx.experiment.functions.checkpoint_every + 2  # workers are less than two checkpoints apart
    _delete(ctx, event["workers"], exchange, range(round, round + ahead))
    return rounds.at(ctx, event, round)


def write_first_checkpoints(ctx: Context, workers: int) -> None:
    first = Checkpoint(Position(0), {"model": Vector(Kind.MODEL, ctx.learner.initial_model())})
    for worker in range(workers):
        ctx.objects.put_new(ctx.keys.checkpoint(worker, 0), checkpoints.encode(first))


def rewind(ctx: Context, members: Several[int]) -> int:
    """The round to resume at; what was saved beyond it goes, so that all start there."""
    round = checkpoints.latest_common_round(ctx, members)
    for member in members:
        beyond = [
            key for key in ctx.objects.list(ctx.keys.checkpoints_of(member)) if key > ctx.keys.checkpoint(member, round)
        ]
        if beyond:
            ctx.objects.delete(*beyond)
    return round


def train(ctx: Context, event: Event, exchange: "Exchange") -> Event:
    """One invocation of one worker."""
    from crossover.long_workers import synchronous  # brings torch, which the other steps do without

    return synchronous.train(ctx, event, exchange)


def collect(ctx: Context, event: Event, exchange: "Exchange") -> None:
    """The model of the last round to the bucket, then an end to every tensor key and checkpoint of the run."""
    last = conclude(ctx)
    every = ctx.experiment.functions.checkpoint_every
    _delete(ctx, event["workers"], exchange, range(max(0, last - 2 * every), last + 1))
    ctx.objects.delete_prefix(ctx.keys.checkpoints)


def conclude(ctx: Context) -> int:
    """The model of the last agreed round, from the checkpoint of a worker that reached it; that round."""
    agreed = rounds.decision(ctx, len(ctx.objects.list(ctx.keys.decisions)))
    last: int = agreed["epoch"] * rounds.calendar(ctx.facts).rounds_per_epoch
    if not ctx.objects.exists(ctx.keys.outcome):
        ends = (ctx.keys.checkpoint(worker, last) for worker in range(ctx.experiment.workers))
        key = next((key for key in ends if ctx.objects.exists(key)), ctx.keys.checkpoint(0, last))
        rounds.conclude(ctx, agreed, checkpoints.read(ctx.objects.get(key), key=key).vectors["model"])
    ctx.objects.delete_prefix(ctx.keys.evaluations)
    return last


def _delete(ctx: Context, workers: int, exchange: "Exchange", over: range) -> None:
    keys = [
        key for round in over for rank in range(workers) for key in keys_of(ctx.keys, exchange, round, rank, workers)
    ]
    ctx.tensors[0].delete(*keys)


def keys_of(keys: Keys, exchange: "Exchange", round: int, rank: int, workers: int) -> list[str]:
    """Everything that a worker may have stored for a round."""
    return exchange.used_up(keys, round, rank=rank, count=workers) + exchange.results(
        keys, round, rank=rank, count=workers
    )


# --- with a supervisor ------------------------------------------------------------------------------------------------


def start_supervised(ctx: Context, event: Event) -> Event:
    """As `start`, for MLLess: the supervisor is a member more, and workers that left are not called back."""
    supervisor = supervision.supervisor(ctx)
    if not event["attempt"]:
        write_first_checkpoints(ctx, event["workers"])
        ctx.objects.put_new(ctx.keys.checkpoint(supervisor, 0), checkpoints.encode(Checkpoint(Position(0), {})))
        return rounds.at(ctx, event, 0)
    round = rewind(ctx, [*_staying(ctx, supervisor), supervisor])
    ahead = 2 * ctx.experiment.functions.checkpoint_every + ctx.experiment.mlless.slack + 2
    _forget(ctx, range(round, round + ahead))
    return rounds.at(ctx, event, round)


def _staying(ctx: Context, supervisor: int) -> list[int]:
    """The workers that the supervisor's newest checkpoint knows as neither dropped nor sent home."""
    key = max(ctx.objects.list(ctx.keys.checkpoints_of(supervisor)))
    facts = checkpoints.read(ctx.objects.get(key), key=key).facts
    word = supervision.word(facts["word"]) if "word" in facts else supervision.START
    return [w for w in range(supervisor) if w not in word.dropped and w not in word.leaves]


def forget_supervised(ctx: Context, last: int) -> None:
    """Every tensor key and checkpoint that the run has left."""
    back = 2 * (ctx.experiment.functions.checkpoint_every + ctx.experiment.mlless.slack)
    _forget(ctx, range(max(0, last - back), last + 1))
    ctx.objects.delete_prefix(ctx.keys.checkpoints)


def _forget(ctx: Context, over: range) -> None:
    workers = range(ctx.experiment.workers)
    ctx.tensors[0].delete(*(key for step in over for key in supervision.keys_of(ctx, step, workers)))
