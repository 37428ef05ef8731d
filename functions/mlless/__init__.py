"""MLLess: workers tell one another only what is significant; a supervisor says what everybody applies, and who may go.

Gimeno Sarroca and Sanchez-Artigas, "MLLess: Achieving Cost Efficiency in Serverless Machine Learning Training" (2022), and Table 1 of
"Cost-Performance Analysis" (2025): one minibatch; its gradient kept back unless significant; significant updates to a shared Redis, their
keys to the peers through a fanout exchange; wait for the supervisor's word; fetch and aggregate; update on the worker.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from crossover.architecture import Architecture
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.protocols import Buffer
from crossover.errors import Corrupt, Missing
from crossover.keys import Keys
from crossover.training import attempts, checkpoints
from crossover.training.calendar import at
from crossover.training.checkpoints import Checkpoint, Position
from crossover.training.long_worker import life
from crossover.workflow import DAY_S, Parallel, Repeat, Sequence, step
from functions.mlless import supervisor, words
from functions.mlless.settings import MLLess, checks


@step(torch=True, uses={"tensors", "bus"})
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the exchange, and the same seeded model for every worker. A resumed run goes on where supervisor and workers can; those
    that had left are not called back.
    """
    rank, members = words.supervisor_rank(ctx), event["workers"] + 1

    def take_back() -> None:
        ctx.bus.remove(barriers=[(ctx.keys.updates, members)])
        life.take_back(ctx)

    def clear(before: list[Keys]) -> None:
        ctx.bus.remove(barriers=[(keys.updates, members) for keys in before])
        for keys in before:
            _forget(ctx, keys, life.stood(ctx, keys, slack=ctx.experiment.settings(MLLess).slack))
        life.forget(ctx)

    with attempts.setting_up(ctx, take_back, clear) as before:
        ctx.bus.remove(barriers=[(keys.updates, members) for keys in before])
        ctx.bus.declare(barriers=[(ctx.keys.updates, members)])
        round = life.take_over(ctx, before, partial(_meetings, ctx), partial(_first_checkpoints, ctx))
        if round is None:
            life.write_first_checkpoints(ctx, event["workers"])
            ctx.objects.put_new(ctx.keys.checkpoint(rank, 0), checkpoints.encode(Checkpoint(Position(0), {})))
            return at(ctx, event, 0)
        for keys in before:
            _forget(ctx, keys, life.left_around(ctx, round, slack=ctx.experiment.settings(MLLess).slack))
        return at(ctx, event, round)


@step(torch=True, uses={"tensors", "bus"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Table 1, all four stages of a worker: one long invocation."""
    from functions.mlless import worker  # brings torch, which the supervisor does without

    return worker.train(ctx, event)


@step(uses={"tensors", "bus"}, waits=True)
def supervise(ctx: Context, event: Event) -> Event:
    """Table 1, Synchronisation: which updates to expect, who is too slow, when to end."""
    return supervisor.supervise(ctx, event)


@step(uses={"tensors", "bus"})
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every key and queue of the run deleted."""
    attempts.give_way(ctx)
    last, experiment = life.conclude(ctx), ctx.experiment
    back = 2 * (experiment.functions.checkpoint_every + experiment.settings(MLLess).slack)
    _forget(ctx, ctx.keys, range(max(0, last - back), last + 1))
    life.forget(ctx)
    ctx.bus.remove(barriers=[(ctx.keys.updates, event["workers"] + 1)])
    attempts.finish(ctx)


def _meetings(ctx: Context, keys: Keys) -> dict[int, list[int]]:
    """The rounds that an attempt can be gone on from, ascending, and who goes on: of the workers that are neither dropped nor sent home by
    the supervisor's newest checkpoint, those who have one of that round. All of them, unless one died that it had yet to drop when it
    saved. Raises Missing, and Corrupt where none of the supervisor's can be read.
    """
    objects, rank = ctx.objects, words.supervisor_rank(ctx)
    saved = objects.list(keys.checkpoints_of(rank))
    if not saved:
        raise Missing(keys.checkpoints_of(rank))
    staying = words.last_known(_newest_whole(ctx, saved).facts).staying(rank)
    there = {worker: set(_starts(ctx, objects.list(keys.checkpoints_of(worker)))) for worker in staying}
    found = {round: [w for w in staying if round in there[w]] for round in sorted(_starts(ctx, saved))}
    most = max(map(len, found.values()), default=0)
    if not most:
        raise Missing(f"{keys.own_checkpoints}: a round that the supervisor and a worker can start from")
    return {round: present for round, present in found.items() if len(present) == most}


def _newest_whole(ctx: Context, saved: list[str]) -> Checkpoint:
    """Raises Corrupt, of the newest, where none is."""
    *older, key = sorted(saved)
    try:
        return checkpoints.read(ctx.objects.get(key), key=key)
    except Corrupt as damaged:
        if not older:
            raise
        try:
            return _newest_whole(ctx, older)
        except Corrupt:
            raise damaged from None


def _starts(ctx: Context, saved: list[str]) -> list[int]:
    """The rounds among checkpoints at whose start no word is on its way (`words.applied_by`)."""
    positions = (key.rpartition("/")[2].split(".") for key in saved)
    rounds = [int(round) for round, minibatch in positions if int(minibatch) == 0]
    return [round for round in rounds if round % ctx.experiment.functions.checkpoint_every == 0]


def _first_checkpoints(ctx: Context, source: Keys, round: int) -> Iterator[tuple[int, list[Buffer]]]:
    """Of every worker that goes on, its own; one who has left gets another's, in whose word it reads that it has. The supervisor's comes
    last: where it is, all are.
    """
    rank, present = words.supervisor_rank(ctx), _meetings(ctx, source).get(round, [])
    if not present:
        raise Missing(f"{source.own_checkpoints}: the round {round} that the supervisor and a worker could start from")
    gone = set(range(rank)) - set(present)
    for member in range(rank + 1):
        key = source.checkpoint(present[0] if member in gone else member, round)
        yield member, checkpoints.encode(words.without(checkpoints.read(ctx.objects.get(key), key=key), gone))


def _forget(ctx: Context, keys: Keys, over: Iterable[int]) -> None:
    workers = range(ctx.experiment.workers)
    ctx.tensors[0].delete(*(key for step in over for key in words.keys_of(keys, step, workers)))


ARCHITECTURE = Architecture(
    "mlless",
    run=Sequence(
        initialise,
        Parallel(
            Repeat(supervise, until="finished", timeout_s=DAY_S),
            life.worker_tree(train, tolerant=True),
        ),
        collect,
    ),
    tensor_hosts="shared",
    why_not="its filter chooses, element by element, what of each step is worth sending",
    settings=MLLess,
    checks=checks,
    claims={"survives_kills", "resumes", "stops", "adds_what_others_average"},
)
