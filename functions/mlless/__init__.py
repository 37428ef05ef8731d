"""MLLess: workers send one another only significant updates; a supervisor decides which updates all apply, and which workers may leave.

Gimeno Sarroca and Sanchez-Artigas, "MLLess: Achieving Cost Efficiency in Serverless Machine Learning Training" (2022), and Table 1 of
"Cost-Performance Analysis" (2025): compute one minibatch; keep its gradient back unless it is significant; store significant updates in a
shared Redis, and send their keys to the peers through a fanout exchange; wait for the supervisor's message; fetch and aggregate; update on
the worker.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from crossover.errors import Missing
from crossover.stores.clients import Event
from crossover.stores.keys import Keys
from crossover.stores.protocols import Buffer
from crossover.training import checkpoints, long_worker, progress
from crossover.training.checkpoints import Checkpoint, Position
from crossover.training.progress import build_round_event
from crossover.workflow import DAY_S, Parallel, Repeat, Sequence, step
from crossover.workflow.architecture import Architecture
from crossover.workflow.context import Context
from functions.mlless import supervisor, words
from functions.mlless.settings import MLLess, checks


@step(torch=True, uses={"tensors", "bus"})
def initialise(ctx: Context, event: Event) -> Event:
    """Create the run's exchange on the message bus, and the first checkpoint of every worker and of the supervisor, with the same seeded
    model. Return the changes of the event for the round to start at, such as `epoch`, `round` and `minibatches`.

    If the run is resumed, the checkpoints are copied from the newest round that the supervisor and the workers can all start from. Workers
    that had left are not called back.

    Raises StaleAttempt if a higher attempt has begun or the run has been concluded, Missing or Corrupt if the run has decisions but no
    usable checkpoint.
    """
    rank, members = words.supervisor_rank(ctx), event["workers"] + 1

    def roll_back() -> None:
        """Delete the exchange of this attempt and, unless the next attempt still needs them, its checkpoints."""
        ctx.bus.remove(barriers=[(ctx.keys.updates, members)])
        long_worker.roll_back(ctx)

    def clear(before: list[Keys]) -> None:
        """Delete the exchanges, database keys and checkpoints that the attempts with the keys `before` left after the run ended, and this
        attempt's checkpoints.
        """
        ctx.bus.remove(barriers=[(keys.updates, members) for keys in before])
        for keys in before:
            _delete_keys(ctx, keys, long_worker.rounds_to_clear(ctx, keys, slack=ctx.experiment.settings(MLLess).slack))
        long_worker.delete_checkpoints(ctx)

    with progress.set_up_attempt(ctx, roll_back, clear) as before:
        ctx.bus.remove(barriers=[(keys.updates, members) for keys in before])
        ctx.bus.declare(barriers=[(ctx.keys.updates, members)])
        reached = {keys: long_worker.find_last_rounds(ctx.objects.list(keys.own_checkpoints)) for keys in before}
        round = long_worker.adopt_checkpoints(
            ctx, before, partial(_find_resumable_rounds, ctx), partial(_list_first_checkpoints, ctx)
        )
        if round is None:
            long_worker.write_first_checkpoints(ctx, event["workers"])
            ctx.objects.put_new(ctx.keys.checkpoint(rank, 0), checkpoints.encode(Checkpoint(Position(0), {})))
            return build_round_event(ctx, 0)
        for keys, last in reached.items():
            _delete_keys(ctx, keys, _list_left_rounds(ctx, round, last.values()))
        return build_round_event(ctx, round)


@step(torch=True, uses={"tensors", "bus"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Run a worker's steps in one long invocation (Table 1's four stages); return the changes of the event for the worker's next
    invocation, `finished` among them.
    """
    from functions.mlless import worker  # brings torch, which the supervisor does without

    return worker.train(ctx, event)


@step(uses={"tensors", "bus"}, waits=True)
def supervise(ctx: Context, event: Event) -> Event:
    """Run the supervisor in one long invocation: decide on each step which updates all workers apply, who has to leave, and when training
    ends (Table 1, Synchronisation). Return the changes of the event for its next invocation, `finished` among them.
    """
    return supervisor.supervise(ctx, event)


@step(uses={"tensors", "bus"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model and the run's outcome in the bucket, and delete every key, checkpoint and queue of the run. Raises
    StaleAttempt if a higher attempt has begun, Missing or Corrupt if the outcome must be stored and the last round's checkpoint is gone or
    damaged.
    """
    progress.raise_if_superseded(ctx)
    last, experiment = long_worker.store_last_model(ctx), ctx.experiment
    back = 2 * (experiment.functions.checkpoint_every + experiment.settings(MLLess).slack)
    saved = ctx.objects.list(ctx.keys.own_checkpoints)
    # A worker that was dropped may have stored its last step again after the supervisor deleted it.
    first = min([last, *long_worker.find_last_rounds(saved).values()])
    _delete_keys(ctx, ctx.keys, range(max(0, first - back), last + 1))
    long_worker.delete_checkpoints(ctx, own=saved)
    ctx.bus.remove(barriers=[(ctx.keys.updates, event["workers"] + 1)])
    progress.mark_finished(ctx)


def _find_resumable_rounds(ctx: Context, keys: Keys) -> dict[int, list[int]]:
    """Return the rounds that the attempt with these `keys` can be resumed from, ascending, as {round: ranks of the workers that have a
    checkpoint of it}.

    Workers that have left or were dropped by the supervisor's newest checkpoint are ignored. Only the rounds with the largest number of
    workers are returned. Raises Missing if there are none, Corrupt if none of the supervisor's checkpoints can be read.
    """
    objects, rank = ctx.objects, words.supervisor_rank(ctx)
    saved = objects.list(keys.checkpoints_of(rank))
    if not saved:
        raise Missing(keys.checkpoints_of(rank))
    staying = words.read_saved_word(ctx, saved).list_staying(rank)
    there = {worker: set(_list_round_starts(ctx, objects.list(keys.checkpoints_of(worker)))) for worker in staying}
    found = {round: [w for w in staying if round in there[w]] for round in sorted(_list_round_starts(ctx, saved))}
    most = max(map(len, found.values()), default=0)
    if not most:
        raise Missing(f"{keys.own_checkpoints}: a round that the supervisor and a worker can start from")
    return {round: present for round, present in found.items() if len(present) == most}


def _list_left_rounds(ctx: Context, round: int, reached: Collection[int]) -> list[int]:
    """Return the rounds of which an earlier attempt may have left keys, ascending, if the run is resumed at `round`. `reached`: round of
    each member's newest checkpoint of that attempt; empty if they are deleted already, which gives all rounds.

    A worker that was dropped may be many rounds behind, and may have stored its last step after the supervisor deleted it.
    """
    slack = ctx.experiment.settings(MLLess).slack
    near = {each for last in (round, *reached) for each in long_worker.rounds_around(ctx, last, slack=slack)}
    return sorted(near if reached else range(max(near) + 1))


def _list_round_starts(ctx: Context, saved: list[str]) -> list[int]:
    """Return the rounds at whose start a regular checkpoint was saved, in the order of `saved`, the checkpoints' keys. Such a checkpoint
    has minibatch 0 and a round that is a multiple of `functions.checkpoint_every`. At such a start no word (the supervisor's decision) is
    still to be applied.
    """
    positions = (key.rpartition("/")[2].split(".") for key in saved)
    rounds = [int(round) for round, minibatch in positions if int(minibatch) == 0]
    return [round for round in rounds if round % ctx.experiment.functions.checkpoint_every == 0]


def _list_first_checkpoints(ctx: Context, source: Keys, round: int) -> Iterator[tuple[int, list[Buffer]]]:
    """Yield (rank, buffers of its checkpoint of `round`) for each worker and then the supervisor, with the absent workers marked as
    dropped. The supervisor's comes last: if it exists, all do.

    A worker that has no checkpoint of the round gets another worker's, which tells it that it was dropped. `source`: keys of the attempt to
    copy from. Raises Missing, at the first element, if no worker has one; Corrupt if one is damaged.
    """
    rank, present = words.supervisor_rank(ctx), _find_resumable_rounds(ctx, source).get(round, [])
    if not present:
        raise Missing(
            f"{source.own_checkpoints}: round {round}, from which the supervisor and at least one worker could start"
        )
    gone = set(range(rank)) - set(present)
    for member in range(rank + 1):
        key = source.checkpoint(present[0] if member in gone else member, round)
        yield member, checkpoints.encode(words.mark_dropped(checkpoints.read(ctx.objects.get(key), key=key), gone))


def _delete_keys(ctx: Context, keys: Keys, over: Iterable[int]) -> None:
    """Delete the words, updates and reports that the steps with the numbers in `over` left in the database, for the attempt with these
    `keys`.
    """
    workers = range(ctx.experiment.workers)
    ctx.tensors[0].delete(*(key for step in over for key in words.keys_of(keys, step, workers)))


ARCHITECTURE = Architecture(
    "mlless",
    run=Sequence(
        initialise,
        Parallel(
            Repeat(supervise, until="finished", timeout_s=DAY_S),
            long_worker.worker_tree(train, tolerant=True),
        ),
        collect,
    ),
    tensor_hosts="shared",
    why_not="its filter chooses, element by element, what of each step is worth sending",
    settings=MLLess,
    checks=checks,
    claims={"survives_kills", "resumes", "stops", "adds_what_others_average"},
)
