"""What SPIRT's peers wait for and leave behind; the state in their databases is crossover/training/databases.py's."""

from crossover.context import Context
from crossover.event import Event
from crossover.keys import Keys
from crossover.training import attempts, databases
from crossover.training.calendar import at, calendar
from crossover.training.databases import state_keys
from crossover.waiting import Pauses


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
    count = calendar(ctx.facts).minibatches_in(round)
    return [
        state.model,
        *state.optimizer,
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

    with attempts.setting_up(ctx, take_back):
        before = attempts.begin(ctx)
        ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
        ctx.bus.declare(barriers=barrier)
        return at(ctx, event, databases.take_over(ctx, before, workers, spent))
