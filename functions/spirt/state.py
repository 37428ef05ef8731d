"""What SPIRT's peers wait for and leave behind; the state in their databases is crossover/training/databases.py's."""

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
from crossover.keys import Keys
from crossover.runtime.pauses import Pauses
from crossover.training import attempts, databases, own_steps
from crossover.training.calendar import at, calendar
from crossover.training.databases import own_keys, state_keys


def await_members(ctx: Context, event: Event, *, patience_s: float) -> frozenset[int]:
    """Who has arrived at the event's round; looks again until all have or `patience_s` is over."""
    pause = Pauses(0.005, 0.1, within_s=patience_s)
    while True:
        present = ctx.bus.arrived(ctx.keys.barrier, round=event["round"], reader=event["worker"])
        if len(present) >= event["workers"] or not pause(calm_s=patience_s):
            return present


def spent(ctx: Context, names: Keys, round: int, worker: int) -> list[str]:
    """The tensor keys that `round` wrote for `worker`."""
    if round < 0:
        return []
    state, peers = state_keys(ctx.experiment, names, round, worker), range(ctx.experiment.workers)
    count = calendar(ctx.facts).side_by_side(round)
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
    """The barrier, and the seeded model in every worker's store; when a run is resumed, the last round that every worker can take up."""
    workers, barrier = range(event["workers"]), [(ctx.keys.barrier, event["workers"])]

    def take_back() -> None:
        ctx.bus.remove(barriers=barrier)
        databases.take_back(ctx, workers, spent)

    def clear(before: list[Keys]) -> None:
        ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
        databases.clear(ctx, before, workers, spent)

    with attempts.setting_up(ctx, take_back, clear) as before:
        ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
        ctx.bus.declare(barriers=barrier)
        return at(ctx, event, databases.take_over(ctx, before, workers, spent))


def take_own_steps(ctx: Context, event: Event, *, out: str) -> None:
    """The round's local steps, by one function: where the worker's model has come to, under `out`; its own optimizer's vectors as the next
    round begins with them, before that.
    """
    from crossover.algorithms import buffers

    round, worker, tensors = event["round"], event["worker"], ctx.tensors[event["worker"]]
    with ctx.stage("fetch"):
        tensors.get(ctx.keys.model(round, worker), kind=VectorKind.MODEL, out=ctx.learner.model)
        held = [tensors.get(key) for key in own_keys(ctx.experiment, ctx.keys, round, worker)]
        begun = buffers.tensor(ctx.learner.model).clone()
    after = own_steps.take(ctx, event, [buffers.tensor(vector.data) for vector in held])
    with ctx.stage("store"):
        kind = VectorKind(OPTIMIZERS[ctx.experiment.training.optimizer].kind)
        keys = own_keys(ctx.experiment, ctx.keys, round + 1, worker)
        for key, vector in zip(keys, after, strict=True):
            tensors.create(key, Vector(kind, buffers.view(vector)))
        tensors.create(out, own_steps.contribution(ctx, event, begun))
        databases.settle_in(ctx, round, worker, out, following=keys)
