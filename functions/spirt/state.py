"""The state of SPIRT, which lies in the workers' databases: how it begins, moves on from round to round, and ends.

A worker's state of a round is its model and the optimizer's vectors. Rounds never change it in place: each writes the next one, and deletes
the one before once every worker has left that behind.
"""

import time

from crossover.context import Context
from crossover.dataplane.protocols import StateKeys, TensorCompute
from crossover.dataplane.vector import Kind, Vector, decode
from crossover.errors import Missing
from crossover.event import Event
from crossover.keys import Keys
from crossover.training import agreement, attempts, gradients
from crossover.training.calendar import Calendar, at, calendar, ends_epoch
from crossover.training.databases import resumable, state_keys


def await_members(ctx: Context, event: Event, *, patience_s: float) -> frozenset[int]:
    """Who has arrived at the event's round; looks again until all have or `patience_s` is over."""
    end_s, pause_s = time.monotonic() + patience_s, 0.005
    while True:
        present = ctx.bus.arrived(ctx.keys.barrier, round=event["round"], reader=event["worker"])
        if len(present) >= event["workers"] or time.monotonic() + pause_s > end_s:
            return present
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)


def update(ctx: Context, compute: TensorCompute, event: Event, *, gradient: str) -> None:
    """The worker's state of the next round from this one's and the combined gradient, in one command."""
    round, worker = event["round"], event["worker"]
    old, new = (state_keys(ctx.experiment, ctx.keys, each, worker) for each in (round, round + 1))
    step = gradients.update(ctx, round, history=agreement.history(ctx, event["epoch"] - 1))
    compute.update(old, gradient, out=new, update=step)


def settle(ctx: Context, worker: int, *stored: str) -> None:
    """After a step has stored something: raises StaleAttempt, and takes it back, where the run was resumed meanwhile."""
    if attempts.overtaken(ctx):
        ctx.tensors[worker].delete(*stored)
        attempts.give_way(ctx)


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


def decide(ctx: Context, event: Event, *, model: str) -> None:
    """Agreement after an epoch, by the model in the worker's store."""
    epoch = event["epoch"]
    if ctx.objects.exists(ctx.keys.decision(epoch)):
        return
    with ctx.stage("evaluate"):
        ctx.tensors[event["worker"]].get(model, kind=Kind.MODEL, out=ctx.learner.model)
        agreement.agree(ctx, epoch)


def advance(ctx: Context, event: Event) -> Event:
    """On to the next round: what the event's next state says."""
    if not ends_epoch(ctx, event):
        return {**at(ctx, event, event["round"] + 1), "epoch_finished": False}
    finished = agreement.decision(ctx, event["epoch"])["finished"]
    return {**at(ctx, event, event["round"] + 1), "epoch_finished": True, "finished": finished}


def start(ctx: Context, event: Event) -> Event:
    """The seeded model in every worker's store, or, when a run is resumed, the last round that every worker can take up. What attempts
    before this one left goes.
    """
    workers, days = range(event["workers"]), calendar(ctx.facts)

    def take_back() -> None:
        ctx.bus.remove(barriers=[(ctx.keys.barrier, len(workers))])
        if attempts.spare(ctx):
            _delete(ctx, ctx.keys, days, workers, decided=days.epochs)

    with attempts.setting_up(ctx, take_back):
        return at(ctx, event, _set_up(ctx, workers, days))


def _set_up(ctx: Context, workers: range, days: Calendar) -> int:
    """The round to begin at."""
    before = attempts.begin(ctx)
    ctx.bus.remove(barriers=[(names.barrier, len(workers)) for names in before])
    ctx.bus.declare(barriers=[(ctx.keys.barrier, len(workers))])
    decided = len(ctx.objects.list(ctx.keys.decisions))
    reached = [(resumable(ctx.tensors, each, days, decided=decided), each) for each in (ctx.keys, *before)]
    known = [(round, names) for round, names in reached if round is not None]
    if known:  # this attempt's own first: its first step may be tried again
        first, source = known[0] if known[0][1] is ctx.keys else max(known, key=lambda each: (each[0], each[1].attempt))
    else:
        first, source = _kept(ctx, decided), ctx.keys
    _share(ctx, workers, first, source)
    attempts.take(ctx, before)
    for names in before:
        _delete(ctx, names, days, workers, decided=decided + 1)
    return first


def _delete(ctx: Context, names: Keys, days: Calendar, workers: range, *, decided: int) -> None:
    """What an attempt left in its workers' stores: around the round at which they stood."""
    round = resumable(ctx.tensors, names, days, decided=decided)
    if round is None:
        return
    for worker in workers:
        left = [key for near in range(round - 1, round + 3) for key in spent(ctx, names, near, worker)]
        ctx.tensors[worker].delete(*left)


def _share(ctx: Context, workers: range, round: int, source: Keys) -> None:
    """The state of `round` that any worker holds, to every worker; the seeded model where nobody holds one."""
    donor = next((w for w in workers if ctx.tensors[w].exists(source.model(round, w))), None)
    for worker in workers:
        target = state_keys(ctx.experiment, ctx.keys, round, worker)
        if donor is None:
            ctx.tensors[worker].create(target.model, Vector(Kind.MODEL, ctx.learner.initial_model()))
            continue
        given = state_keys(ctx.experiment, source, round, donor)
        pairs = zip(_keys(given), _keys(target), strict=True)
        for name, own in pairs if round else [(given.model, target.model)]:
            if not ctx.tensors[worker].exists(own):
                ctx.tensors[worker].create(own, ctx.tensors[donor].get(name))


def _keys(state: StateKeys) -> tuple[str, ...]:
    return (*state.optimizer, state.model)  # the model last: it says that the state is whole


def _kept(ctx: Context, decided: int) -> int:
    """The round whose state lies in the bucket, put into worker 0's database; 0 where the run never got so far. Raises Missing."""
    kept = ctx.objects.list(ctx.keys.kept_states)
    if not kept and not decided:
        return 0
    if not kept:
        raise Missing(f"{ctx.run}: no worker's database holds a model of this run any more; start a new run")
    round = int(kept[0].removeprefix(ctx.keys.kept_states).partition("/")[0])
    for target in _keys(state_keys(ctx.experiment, ctx.keys, round, 0)):
        source = ctx.keys.kept_state(round, target.rpartition("/")[2])
        if source in kept:  # the untrained model's optimizer has no state
            ctx.tensors[0].create(target, decode(ctx.objects.get(source), key=source))
    return round


def collect(ctx: Context, event: Event) -> None:
    """The model of the last round to the bucket, then an end to every tensor key of the run."""
    agreed = agreement.decision(ctx, len(ctx.objects.list(ctx.keys.decisions)))
    last = agreed["epoch"] * calendar(ctx.facts).rounds_per_epoch
    if not ctx.objects.exists(ctx.keys.outcome):
        agreement.conclude(ctx, agreed, ctx.tensors[0].get(ctx.keys.model(last, 0), kind=Kind.MODEL))
    for worker in range(event["workers"]):
        ctx.tensors[worker].delete(*(key for round in (last - 1, last) for key in spent(ctx, ctx.keys, round, worker)))
