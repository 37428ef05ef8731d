"""How a run of long workers begins and ends: what AllReduce and ScatterReduce share, and MLLess builds on."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import suppress
from typing import TYPE_CHECKING

from crossover.algorithms import codecs
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.protocols import Buffer
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import Corrupt, Missing
from crossover.keys import Keys
from crossover.training import agreement, attempts, checkpoints
from crossover.training.calendar import at, calendar
from crossover.training.checkpoints import Checkpoint, Position
from crossover.workflow import DAY_S, Child, ForEach, Node, Repeat, Sequence, Step

if TYPE_CHECKING:
    from crossover.training.long_worker.group import GroupExchange


def worker_tree(train: Step, *, tolerant: bool = False) -> Node:
    """All workers side by side, each invoked again and again until training ends; an execution per epoch keeps histories short."""
    invocations = Child("epoch", Repeat(train, until="epoch_finished", timeout_s=DAY_S))
    body = Child("worker", Repeat(invocations, until="finished", timeout_s=DAY_S))
    return ForEach("worker", "workers", together=True, tolerant=tolerant, body=body)


def tree(initialise: Step, train: Step, collect: Step) -> Node:
    return Sequence(initialise, worker_tree(train), collect)


def start(ctx: Context, event: Event, exchange: "GroupExchange") -> Event:
    """The seeded model as every worker's first checkpoint, or, when a run is resumed, the last round that every worker can start from."""
    workers = event["workers"]

    def rounds(keys: Keys) -> Several[int]:
        return checkpoints.common_rounds(ctx, keys, range(workers))

    def first(keys: Keys, round: int) -> Iterator[tuple[int, bytes]]:
        for worker in range(workers):
            key = keys.checkpoint(worker, round)
            body = ctx.objects.get(key)
            checkpoints.read(body, key=key)
            yield worker, body

    def clear(before: Several[Keys]) -> None:
        for keys in before:
            _delete(ctx, keys, workers, exchange, stood(ctx, keys))
        forget(ctx)

    with attempts.setting_up(ctx, lambda: take_back(ctx), clear) as before:
        round = take_over(ctx, before, rounds, first)
        if round is None:
            write_first_checkpoints(ctx, workers)
            return at(ctx, event, 0)
        for keys in before:
            _delete(ctx, keys, workers, exchange, left_around(ctx, round))
        return at(ctx, event, round)


def take_back(ctx: Context) -> None:
    """Of an attempt that was overtaken while it set itself up: its checkpoints, unless the next one is yet to read them."""
    if attempts.spare(ctx):
        ctx.objects.delete_prefix(ctx.keys.own_checkpoints)


def left_around(ctx: Context, round: int, *, slack: int = 0) -> range:
    """The rounds of which an attempt that stood at `round` may have left something: its workers were less than two checkpoints apart."""
    span = 2 * (ctx.experiment.functions.checkpoint_every + slack) + 2
    return range(max(0, round - span), round + span)


def stood(ctx: Context, keys: Keys, *, slack: int = 0) -> list[int]:
    """The rounds of which an attempt may have left something behind the end of the run: around the last one and around its checkpoints."""
    saved = (key.rpartition("/")[2] for key in ctx.objects.list(keys.own_checkpoints))
    last = calendar(ctx.facts).rounds_until(agreement.last(ctx)["epoch"])
    rounds = {last, *(int(name.partition(".")[0]) for name in saved)}
    return sorted({near for round in rounds for near in left_around(ctx, round, slack=slack)})


def write_first_checkpoints(ctx: Context, workers: int) -> None:
    first = Checkpoint(Position(0), {"model": Vector(VectorKind.MODEL, ctx.learner.initial_model())})
    for worker in range(workers):
        ctx.objects.put_new(ctx.keys.checkpoint(worker, 0), checkpoints.encode(first))


Rounds = Callable[[Keys], Iterable[int]]  # that an attempt can be gone on from; raises Missing where there is none
First = Callable[
    [Keys, int], Iterable[tuple[int, bytes | Several[Buffer]]]
]  # each member's checkpoint of an attempt's round; raises Corrupt


def take_over(ctx: Context, before: Several[Keys], rounds: Rounds, first: First) -> int | None:
    """The round to resume at: the newest that an attempt before this one can be gone on from, and whose checkpoints are whole. As `first`
    gives them they become this attempt's first, and those of the attempts before go. None where there is none because nobody got so far.
    Raises Missing, Corrupt where no round is whole, and StaleAttempt where a higher attempt has begun; nothing is deleted then.
    """
    round = _copied(ctx, before, rounds, first)
    attempts.take(ctx, before)
    for keys in before:
        ctx.objects.delete_prefix(keys.own_checkpoints)
    return round


def _copied(ctx: Context, before: Several[Keys], rounds: Rounds, first: First) -> int | None:
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
    round, source = _whole(starts, first)
    for member, body in first(source, round):
        objects.put_new(ctx.keys.checkpoint(member, round), body)
    return round


def _whole(starts: Several[tuple[int, Keys]], first: First) -> tuple[int, Keys]:
    """The last of them whose checkpoints can all be read, before any of them is taken over. Raises the newest one's Corrupt."""
    damaged: Corrupt | None = None
    for round, source in reversed(starts):
        try:
            for _ in first(source, round):
                pass
            return round, source
        except Corrupt as error:
            damaged = damaged or error
    assert damaged is not None, "there are starts"
    raise damaged


def collect(ctx: Context, event: Event, exchange: "GroupExchange") -> None:
    """The model of the last round to the bucket, then an end to every tensor key and checkpoint of the run."""
    attempts.give_way(ctx)
    last = conclude(ctx)
    every = ctx.experiment.functions.checkpoint_every
    _delete(ctx, ctx.keys, event["workers"], exchange, range(max(0, last - 2 * every), last + 1))
    forget(ctx)
    attempts.finish(ctx)


def forget(ctx: Context) -> None:
    """Checkpoints and claims of this attempt and of those before it, which may have written since it began."""
    ctx.objects.delete_prefix(ctx.keys.own_checkpoints)
    ctx.objects.delete_prefix(ctx.keys.evaluations)
    for keys in attempts.before(ctx):
        ctx.objects.delete_prefix(keys.own_checkpoints)
        ctx.objects.delete_prefix(keys.evaluations)


def conclude(ctx: Context) -> int:
    """The model of the last agreed round, from the checkpoint of a worker that reached it; that round."""
    agreed = agreement.last(ctx)
    last = calendar(ctx.facts).rounds_until(agreed["epoch"])
    if not ctx.objects.exists(ctx.keys.outcome):
        ends = (ctx.keys.checkpoint(worker, last) for worker in range(ctx.experiment.workers))
        key = next((key for key in ends if ctx.objects.exists(key)), ctx.keys.checkpoint(0, last))
        agreement.conclude(ctx, agreed, checkpoints.read(ctx.objects.get(key), key=key).vectors["model"])
    return last


def _delete(ctx: Context, keys: Keys, workers: int, exchange: "GroupExchange", over: Iterable[int]) -> None:
    """What an attempt left of some rounds, where it stores anything."""
    each = keys.of_exchanges(codecs.exchanges(ctx.experiment.exchange))
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
    """Everything that a worker may have stored for an exchange of a round."""
    return exchange.used_up(keys, round, rank=rank, count=workers) + exchange.results(
        keys, round, rank=rank, count=workers
    )
