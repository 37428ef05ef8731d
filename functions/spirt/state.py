"""SPIRT's barrier and the keys its rounds leave; the state in its databases is handled by crossover/training/databases.py."""

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.runtime import Pauses
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.training import databases, gradients, progress
from crossover.training.databases import own_keys, state_keys
from crossover.training.progress import build_round_event, calendar
from crossover.workflow.context import Context


def await_members(ctx: Context, event: Event, *, within_s: float) -> frozenset[int]:
    """Return the ranks of the workers that have reported for the event's round at the barrier on the message bus.

    Polls until all have reported, but at most for `within_s` seconds. Then it returns those that have.
    """
    pause = Pauses(0.005, 0.1, within_s=within_s)
    while True:
        present = ctx.bus.list_arrived(ctx.keys.barrier, round=event["round"], reader=event["worker"])
        if len(present) >= event["workers"] or not pause(calm_s=within_s):
            return present


def list_round_keys(ctx: Context, names: Keys, round: int, worker: int) -> list[str]:
    """Return all keys that `round` may have left in the database of `worker`: model, optimizer, gradients, averages and aggregate; none for
    a negative round. `names`: keys of an attempt.
    """
    if round < 0:
        return []
    state, peers = state_keys(ctx.experiment, names, round, worker), range(ctx.experiment.workers)
    count = calendar(ctx.facts).count_parallel(round)
    return [
        state.model,
        *state.optimizer,
        *own_keys(ctx.experiment, names, round, worker),
        *(names.gradient(round, worker, minibatch) for minibatch in range(count)),
        names.average(round, worker),
        *(names.average(round, worker, copy_of=peer) for peer in peers if peer != worker),
        names.aggregate(round, worker),
    ]


def start(ctx: Context, event: Event) -> Event:
    """Set up the run: create its barrier, and the seeded model in every worker's database, or restore the newest round that every worker
    can resume. Return the changes of the event for the round to start at, such as `epoch`, `round` and `minibatches`.

    What earlier attempts left is deleted. Raises what `databases.adopt_state` and `progress.set_up_attempt` raise, such as StaleAttempt,
    Missing and Corrupt.
    """
    workers, barrier = range(event["workers"]), [(ctx.keys.barrier, event["workers"])]

    def roll_back() -> None:
        """Delete the barrier and, unless the next attempt still needs it, the state of this attempt."""
        ctx.bus.remove(barriers=barrier)
        databases.roll_back(ctx, workers, list_round_keys)

    def clear(before: list[Keys]) -> None:
        """Delete the barriers and states that the attempts with the keys `before` left after the run ended."""
        ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
        databases.delete_attempts(ctx, before, workers, list_round_keys)

    with progress.set_up_attempt(ctx, roll_back, clear) as before:
        ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
        ctx.bus.declare(barriers=barrier)
        return build_round_event(ctx, databases.adopt_state(ctx, before, workers, list_round_keys))


def run_local_steps(ctx: Context, event: Event, *, out: str) -> None:
    """Take all local steps of the event's round in one function, which moves the learner's model, and store the worker's contribution under
    the key `out` in its database.

    The vectors of the worker's local optimizer are stored first, under the keys of the next round. Vectors that are stored already stay.
    Raises Missing if the round's model or optimizer vectors are not stored; StaleAttempt if the round is over or the attempt superseded.
    Before StaleAttempt, the stored keys are deleted, as `databases.roll_back_if_round_over` says.
    """
    from crossover.algorithms import buffers

    round, worker, tensors = event["round"], event["worker"], ctx.tensors[event["worker"]]
    with ctx.stage("fetch"):
        tensors.get(ctx.keys.model(round, worker), kind=VectorKind.MODEL, out=ctx.learner.model)
        held = [tensors.get(key) for key in own_keys(ctx.experiment, ctx.keys, round, worker)]
        begun = buffers.tensor(ctx.learner.model).clone()
    after = gradients.take_local_steps(ctx, event, [buffers.tensor(vector.data) for vector in held])
    with ctx.stage("store"):
        kind = VectorKind(OPTIMIZERS[ctx.experiment.training.optimizer].kind)
        keys = own_keys(ctx.experiment, ctx.keys, round + 1, worker)
        for key, vector in zip(keys, after, strict=True):
            tensors.create(key, Vector(kind, buffers.view(vector)))
        tensors.create(out, gradients.build_contribution(ctx, event, begun))
        databases.roll_back_if_round_over(ctx, round, worker, out, following=keys)
