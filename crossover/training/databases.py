"""State that lies in databases instead of in checkpoints: how it begins, moves on from round to round, and is found again.

The state of a round is the model and the optimizer's vectors. Rounds never change it in place: each writes the next one, and deletes the
one before once everybody has left that behind. Holders are the workers in whose place it lies: all of them where each has a database, one
where a database is shared. `Spent` names all keys that a round wrote for a holder; before the first round there is none.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from contextlib import AbstractContextManager
from functools import partial

from crossover.algorithms.calendar import Calendar
from crossover.algorithms.optimizers import OPTIMIZERS, vectors
from crossover.algorithms.outer import OUTER, outer_update
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.protocols import StateKeys, TensorStore
from crossover.dataplane.vector import Vector, VectorKind, decode
from crossover.errors import Corrupt, Missing, StaleAttempt
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.training import agreement, attempts, gradients
from crossover.training.calendar import at, calendar, ends_epoch

Spent = Callable[[Context, Keys, int, int], list[str]]  # (context, an attempt's keys, round, holder)


def take_over(ctx: Context, before: Several[Keys], holders: Several[int], spent: Spent) -> int:
    """The round to begin at: the newest that an attempt before this one can be taken up at, 0 where there is none. Its state is then with
    every holder, and what those attempts left goes. Raises StaleAttempt where a higher attempt has begun.
    """
    decided, days = len(ctx.objects.list(ctx.keys.decisions)), calendar(ctx.facts)
    reached = [(resumable(_of(ctx, holders), each, days, decided=decided), each) for each in (ctx.keys, *before)]
    known = [(round, names) for round, names in reached if round is not None]
    if known:  # this attempt's own first: its first step may be tried again
        first, source = known[0] if known[0][1] is ctx.keys else max(known, key=lambda each: (each[0], each[1].attempt))
    else:
        first, source = _kept(ctx, holders, decided), ctx.keys
    _share(ctx, holders, first, source)
    attempts.take(ctx, before)
    for names in before:
        _delete(ctx, names, holders, spent, decided=decided + 1)
    return first


def take_back(ctx: Context, holders: Several[int], spent: Spent) -> None:
    """Of an attempt that was overtaken while it set itself up: its state, unless the next one is yet to read it."""
    if attempts.spare(ctx):
        _delete(ctx, ctx.keys, holders, spent, decided=calendar(ctx.facts).decisions)


def clear(ctx: Context, before: Several[Keys], holders: Several[int], spent: Spent) -> None:
    """What attempts left behind the end of the run."""
    for names in before:
        _delete(ctx, names, holders, spent, decided=calendar(ctx.facts).decisions)


def setting_up(ctx: Context, holders: Several[int], spent: Spent) -> AbstractContextManager[list[Keys]]:
    """As `attempts.setting_up`, where databases are all that a run leaves something in."""

    def clear_all(before: Several[Keys]) -> None:
        clear(ctx, before, holders, spent)

    return attempts.setting_up(ctx, partial(take_back, ctx, holders, spent), clear_all)


def _of(ctx: Context, holders: Several[int]) -> dict[int, TensorStore]:
    return {holder: ctx.tensors[holder] for holder in holders}


def _delete(ctx: Context, names: Keys, holders: Several[int], spent: Spent, *, decided: int) -> None:
    """What an attempt left with its holders: around the round at which they stood; that may have been any where all of them have lost the
    model, and functions that did not know of it have gone on.
    """
    days = calendar(ctx.facts)
    round = resumable(_of(ctx, holders), names, days, decided=decided)
    stood = range(_newest(days, decided) + 1) if round is None else range(round - 1, round + 3)
    for holder in holders:
        ctx.tensors[holder].delete(*(key for near in stood for key in spent(ctx, names, near, holder)))


def _share(ctx: Context, holders: Several[int], round: int, source: Keys) -> None:
    """The state of `round` that any of them holds, to every one; in round 0 the seeded model where none does. Raises Missing, also where a
    holder has lost what is its own alone.
    """
    donor = next((w for w in holders if ctx.tensors[w].exists(source.model(round, w))), None)
    if donor is None and round:
        raise Missing(source.model(round, holders[0]))
    copies = list[tuple[int, int, str, str]]()  # from whom, to whom, its key, the new one
    for worker in holders:
        target = state_keys(ctx.experiment, ctx.keys, round, worker)
        if donor is None:
            ctx.tensors[worker].create(target.model, Vector(VectorKind.MODEL, ctx.learner.initial_model()))
            continue
        given = state_keys(ctx.experiment, source, round, donor)
        own = zip(*(own_keys(ctx.experiment, each, round, worker) for each in (source, ctx.keys)), strict=True)
        shared = zip(_keys(given), _keys(target), strict=True) if round else [(given.model, target.model)]
        copies += [*((worker, worker, *keys) for keys in own), *((donor, worker, *keys) for keys in shared)]
    # Models last: where any of them stands, an attempt finds all that the others' vectors are copied from.
    for giver, worker, name, as_ in sorted(copies, key=lambda copy: copy[3].endswith("/model")):
        if ctx.tensors[worker].exists(as_):
            continue
        if "/own/" in name and not ctx.tensors[worker].exists(name):
            lost = f"worker {worker}'s database holds no more what its own optimizer keeps, which no other has"
            raise Missing(f"{ctx.run}: {lost}; start a new run")
        ctx.tensors[worker].create(as_, ctx.tensors[giver].get(name))


def _keys(state: StateKeys) -> tuple[str, ...]:
    return (*state.optimizer, state.model)  # the model last: it says that the state is whole


def _kept(ctx: Context, holders: Several[int], decided: int) -> int:
    """The newest round whose state lies whole in the bucket, put into a database; 0 where the run never got so far. Raises Missing, and
    Corrupt where none is whole.
    """
    kept, damaged = ctx.objects.list(ctx.keys.kept_states), list[Corrupt]()
    if not kept and not decided:
        return 0
    for round in sorted(
        {int(each.removeprefix(ctx.keys.kept_states).partition("/")[0]) for each in kept if each.endswith("/model")},
        reverse=True,
    ):
        held = [
            (holder, each, kept_name(each))
            for holder in holders
            for each in own_keys(ctx.experiment, ctx.keys, round, holder)
        ]
        shared = _keys(state_keys(ctx.experiment, ctx.keys, round, holders[0]))
        held += [(holders[0], target, target.rpartition("/")[2]) for target in shared]
        try:  # all of it, before any of it is anywhere
            found = [
                (holder, target, decode(ctx.objects.get(source), key=source))
                for holder, target, source in ((*each[:2], ctx.keys.kept_state(round, each[2])) for each in held)
                if source in kept  # the untrained model's optimizer has no state
            ]
        except Corrupt as error:
            damaged.append(error)
            continue
        for holder, target, vector in found:
            ctx.tensors[holder].create(target, vector)
        return round
    if damaged:
        raise damaged[0]
    raise Missing(f"{ctx.run}: no worker's database holds a model of this run any more; start a new run")


def kept_name(own: str) -> str:
    """As what the bucket keeps a vector of a worker's own, by its key: `own-2-velocity`."""
    worker, _, vector = own.split("/")[-3:]
    return f"own-{worker}-{vector}"


def state_keys(experiment: Experiment, keys: Keys, round: int, worker: int) -> StateKeys:
    """Under which keys of an attempt the worker's state at the start of `round` lies; with local steps the outer optimizer's."""
    match experiment.exchange.what:
        case "gradients":
            kept = vectors(experiment.training)
        case "model":
            kept = ()
        case "delta":
            kept = OPTIMIZERS[OUTER].vectors(experiment.exchange.outer.momentum)
    return keys.state(round, worker, optimizer=kept)


def own_keys(experiment: Experiment, keys: Keys, round: int, worker: int) -> tuple[str, ...]:
    """And under which the vectors of the worker's own optimizer lie, which no other has; none before the first step."""
    if experiment.exchange.what == "gradients" or not round:
        return ()
    return tuple(keys.own_optimizer(round, worker, vector) for vector in vectors(experiment.training))


def resumable(tensors: Mapping[int, TensorStore], keys: Keys, days: Calendar, *, decided: int) -> int | None:
    """The newest round that any worker holds, or the one before, so that an unfinished decision is made again; None where no database holds
    any.

    Workers are never more than one round apart, and a round's keys go only once the next round is under way everywhere.
    """
    for round in range(_newest(days, decided), -1, -1):
        holders = [w for w in tensors if tensors[w].exists(keys.model(round, w))]
        if holders:
            before = any(tensors[w].exists(keys.model(round - 1, w)) for w in holders) if round else False
            return round - 1 if before else round
    return None


def _newest(days: Calendar, decided: int) -> int:
    """The last round that a run can have begun which has agreed on what follows `decided` epochs."""
    return min((decided + 1) * days.rounds_per_epoch, days.rounds)


def settle(ctx: Context, holder: int, *stored: str) -> None:
    """After a step has stored something: raises StaleAttempt where the run was resumed meanwhile, and takes it back, unless the next
    attempt is yet to take it over: that one clears away what it finds then.
    """
    if attempts.overtaken(ctx):
        if attempts.spare(ctx):
            ctx.tensors[holder].delete(*stored)
        attempts.give_way(ctx)


def settle_in(ctx: Context, round: int, holder: int, *stored: str, following: Several[str] = ()) -> None:
    """As `settle`, after a step that stores something of the `round` without reading the round's keys once more. By then the round may be
    over and its keys deleted: the invocation came a second time, or its caller had given it up. So it takes back what it stored, and raises
    StaleAttempt. What it stored of the `following` round others may go by, whoever was the first to: that goes where that one is over too.
    """
    if _over(ctx, round, holder):
        ctx.tensors[holder].delete(*stored, *(following if _over(ctx, round + 1, holder) else ()))
        raise StaleAttempt(
            f"{ctx.keys.model(round, holder)} is gone: round {round} is over, or the database has lost its memory"
        )
    settle(ctx, holder, *stored, *following)


def _over(ctx: Context, round: int, holder: int) -> bool:
    """Of a round that had begun: its model goes in the same command as its other keys."""
    return not ctx.tensors[holder].exists(ctx.keys.model(round, holder))


def update(ctx: Context, event: Event, *, holder: int, gradient: str) -> None:
    """The holder's state of the next round from this one's and the combined gradient, in one command."""
    round = event["round"]
    old, new = (state_keys(ctx.experiment, ctx.keys, each, holder) for each in (round, round + 1))
    exchange = ctx.experiment.exchange
    match exchange.what:
        case "gradients":
            step = gradients.update(ctx, round, history=agreement.known(ctx, round))
        case "model":
            ctx.compute[holder].mean([gradient], out=new.model)  # of one: a copy
            return
        case "delta":
            step = outer_update(exchange.outer, number=round, buffers=ctx.facts.buffers)
    ctx.compute[holder].update(old, gradient, out=new, update=step)


def decide(ctx: Context, event: Event, *, holder: int) -> None:
    """Agreement after an epoch, by the holder's model of the next round."""
    epoch = event["epoch"]
    if ctx.objects.exists(ctx.keys.decision(epoch)):
        return
    with ctx.stage("evaluate"):
        ctx.tensors[holder].get(
            ctx.keys.model(event["round"] + 1, holder), kind=VectorKind.MODEL, out=ctx.learner.model
        )
        agreement.agree(ctx, epoch)


def advance(ctx: Context, event: Event) -> Event:
    """On to the next round: what the event's next state says."""
    if not ends_epoch(ctx, event):
        return {**at(ctx, event, event["round"] + 1), "epoch_finished": False}
    finished = agreement.decision(ctx, event["epoch"])["finished"]
    return {**at(ctx, event, event["round"] + 1), "epoch_finished": True, "finished": finished}


def conclude(ctx: Context, holders: Several[int], spent: Spent) -> None:
    """The model of the last round to the bucket, then an end to every tensor key of the run."""
    agreed = agreement.last(ctx)
    last = calendar(ctx.facts).rounds_until(agreed["epoch"])
    if not ctx.objects.exists(ctx.keys.outcome):
        model = ctx.tensors[holders[0]].get(ctx.keys.model(last, holders[0]), kind=VectorKind.MODEL)
        agreement.conclude(ctx, agreed, model)
    for holder in holders:
        ctx.tensors[holder].delete(*(key for round in (last - 1, last) for key in spent(ctx, ctx.keys, round, holder)))
    attempts.finish(ctx)
