"""MLLess: workers tell one another only what is significant; a supervisor says what everybody applies, and who may go.

Gimeno Sarroca and Sanchez-Artigas, "MLLess: Achieving Cost Efficiency in Serverless Machine Learning Training" (2022), and Table 1 of
"Cost-Performance Analysis" (2025): one minibatch; its gradient kept back unless significant; significant updates to a shared Redis, their
keys to the peers through a fanout exchange; wait for the supervisor's word; fetch and aggregate; update on the worker.
"""

from crossover.architecture import Architecture
from crossover.context import Context
from crossover.errors import Missing
from crossover.event import Event
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
    """Once per run: the exchange, and the same seeded model for every worker. A resumed run goes on where all can: as of any long worker,
    with the supervisor as a member more; workers that left are not called back.
    """
    rank, members = words.supervisor_rank(ctx), event["workers"] + 1

    def take_back() -> None:
        ctx.bus.remove(barriers=[(ctx.keys.updates, members)])
        life.take_back(ctx)

    with attempts.setting_up(ctx, take_back):
        before = attempts.begin(ctx)
        ctx.bus.remove(barriers=[(keys.updates, members) for keys in before])
        ctx.bus.declare(barriers=[(ctx.keys.updates, members)])
        round = life.take_over(ctx, before, lambda keys: [*_staying(ctx, keys, rank), rank])
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


def _staying(ctx: Context, keys: Keys, rank: int) -> list[int]:
    """The workers that the supervisor's newest checkpoint of an attempt knows as neither dropped nor sent home. Raises Missing."""
    saved = ctx.objects.list(keys.checkpoints_of(rank))
    if not saved:
        raise Missing(keys.checkpoints_of(rank))
    key = max(saved)
    facts = checkpoints.read(ctx.objects.get(key), key=key).facts
    return words.last_known(facts).staying(rank)


def _forget(ctx: Context, keys: Keys, over: range) -> None:
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
    settings=MLLess,
    checks=checks,
    claims={"survives_kills", "resumes", "stops"},
)
