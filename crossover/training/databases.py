"""Training state that is kept in databases instead of checkpoints: how it is created, advanced from round to round, and resumed.

The state of a round is the model and the optimizer's vectors. No round changes it in place: each writes the next state, and deletes the
previous one once every worker has finished with it. Holders are the workers under whose rank the state is stored: every worker if each has
a database, one worker if the database is shared. `Spent` returns all keys that a round wrote for a holder; before the first round there are
none.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from contextlib import AbstractContextManager
from functools import partial

from crossover.algorithms.optimizers import OPTIMIZERS, list_vectors
from crossover.algorithms.outer import OUTER, build_outer_update
from crossover.algorithms.schedule import Calendar
from crossover.errors import Corrupt, Missing, StaleAttempt
from crossover.experiment import Experiment
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind, decode
from crossover.stores.keys import Keys
from crossover.stores.protocols import StateKeys, TensorStore
from crossover.training import gradients, progress
from crossover.training.progress import build_round_event, calendar, ends_epoch
from crossover.workflow.context import Context

Spent = Callable[[Context, Keys, int, int], list[str]]  # (context, an attempt's keys, round, holder)


def adopt_state(ctx: Context, before: Several[Keys], holders: Several[int], spent: Spent) -> int:
    """Set up the state of a new attempt: copy the state of earlier attempts to every holder, mark those attempts as taken over, delete what
    they left in the databases, and return the round to start at, or 0 for a new run.

    The state is that of the newest resumable round in the databases, otherwise the newest one saved in the bucket, otherwise the seeded
    model. If this attempt has state already, because its first step is tried again, that state is used. Damaged states in the bucket are
    noted in the step's record. `ctx`: of the step that sets the attempt up; `before`: keys of the earlier attempts; `holders`: ranks of the
    databases that hold the state; `spent`: returns the keys that one round wrote for a holder.

    Raises StaleAttempt if a higher attempt has begun, Missing or Corrupt if the state is lost or damaged.
    """
    decided, days = len(ctx.objects.list(ctx.keys.decisions)), calendar(ctx.facts)
    reached = [
        (find_resumable_round(_stores_of(ctx, holders), each, days, decided=decided), each)
        for each in (ctx.keys, *before)
    ]
    known = [(round, names) for round, names in reached if round is not None]
    if known:  # this attempt's own first: its first step may be tried again
        first, source = known[0] if known[0][1] is ctx.keys else max(known, key=lambda each: (each[0], each[1].attempt))
    else:
        first, source = _restore_saved_state(ctx, holders, decided), ctx.keys
    _copy_to_holders(ctx, holders, first, source)
    progress.mark_taken_over(ctx, before)
    for names in before:
        _delete(ctx, names, holders, spent, decided=decided + 1)
    return first


def roll_back(ctx: Context, holders: Several[int], spent: Spent) -> None:
    """Delete the state of the attempt of `ctx`, which was superseded during its set-up. Does nothing if the next attempt still has to read
    that state.

    `holders`: ranks of the databases that hold the state; `spent`: returns the keys that one round wrote for a holder.
    """
    if progress.is_state_unneeded(ctx):
        _delete(ctx, ctx.keys, holders, spent, decided=calendar(ctx.facts).decisions)


def delete_attempts(ctx: Context, before: Several[Keys], holders: Several[int], spent: Spent) -> None:
    """Delete everything that the attempts with the keys `before` left in the databases, after the run has ended.

    `holders`: ranks of the databases that hold the state; `spent`: returns the keys that one round wrote for a holder.
    """
    for names in before:
        _delete(ctx, names, holders, spent, decided=calendar(ctx.facts).decisions)


def set_up_attempt(ctx: Context, holders: Several[int], spent: Spent) -> AbstractContextManager[list[Keys]]:
    """Return a context manager within which an attempt is set up, for an architecture that keeps all of a run's state in databases; it
    yields the keys of the earlier attempts.

    It is `progress.set_up_attempt`, with functions that roll back and clear the databases. `holders`: ranks of the databases; `spent`:
    returns the keys that one round wrote for a holder.
    """

    def clear_all(before: Several[Keys]) -> None:
        """Delete everything that the attempts with the keys `before` left in the databases."""
        delete_attempts(ctx, before, holders, spent)

    return progress.set_up_attempt(ctx, partial(roll_back, ctx, holders, spent), clear_all)


def _stores_of(ctx: Context, holders: Several[int]) -> dict[int, TensorStore]:
    """Return the tensor store of each rank in `holders`, by rank."""
    return {holder: ctx.tensors[holder] for holder in holders}


def _delete(ctx: Context, names: Keys, holders: Several[int], spent: Spent, *, decided: int) -> None:
    """Delete the keys of the attempt with the keys `names` in the databases of `holders`: those of the rounds from one before to two after
    the round at which it can be resumed.

    If no holder has a model of that attempt any more, its functions may have continued to any round; then the keys of all possible rounds
    are deleted. `spent`: returns the keys that one round wrote for a holder; `decided`: number of decisions that the attempt can have made
    at most.
    """
    days = calendar(ctx.facts)
    round = find_resumable_round(_stores_of(ctx, holders), names, days, decided=decided)
    stood = range(_last_possible_round(days, decided) + 1) if round is None else range(round - 1, round + 3)
    for holder in holders:
        ctx.tensors[holder].delete(*(key for near in stood for key in spent(ctx, names, near, holder)))


def _copy_to_holders(ctx: Context, holders: Several[int], round: int, source: Keys) -> None:
    """Copy the state of `round` from a holder that has it to every holder, under this attempt's keys; keys that exist stay as they are. If
    no holder has it in round 0, create the seeded model in each.

    `source`: keys of the attempt to copy from. A worker's own optimizer is copied within the worker's database. Raises Missing if no holder
    has the state of a later round, or if one has lost the vectors of its own optimizer.
    """
    donor = next((w for w in holders if ctx.tensors[w].exists(source.model(round, w))), None)
    if donor is None and round:
        raise Missing(source.model(round, holders[0]))
    copies = list[tuple[int, int, str, str]]()  # from whom, to whom, its key, the new one
    for worker in holders:
        target = state_keys(ctx.experiment, ctx.keys, round, worker)
        if donor is None:
            ctx.tensors[worker].create(target.model, Vector(VectorKind.MODEL, ctx.learner.initialise_model()))
            continue
        given = state_keys(ctx.experiment, source, round, donor)
        own = zip(*(own_keys(ctx.experiment, each, round, worker) for each in (source, ctx.keys)), strict=True)
        shared = zip(_keys(given), _keys(target), strict=True) if round else [(given.model, target.model)]
        copies += [*((worker, worker, *keys) for keys in own), *((donor, worker, *keys) for keys in shared)]
    # Models last: if any of them exists, an attempt finds everything that the others' vectors are copied from.
    for giver, worker, name, as_ in sorted(copies, key=lambda copy: copy[3].endswith("/model")):
        if ctx.tensors[worker].exists(as_):
            continue
        if "/own/" in name and not ctx.tensors[worker].exists(name):
            lost = f"worker {worker}'s database has lost the state of its own optimizer, of which there is no copy"
            raise Missing(f"{ctx.run}: {lost}; start a new run")
        ctx.tensors[worker].create(as_, ctx.tensors[giver].get(name))


def _keys(state: StateKeys) -> tuple[str, ...]:
    """Return the keys of the optimizer's vectors, then the model's key. The model is last, so that the state is complete if the model
    exists.
    """
    return (*state.optimizer, state.model)  # the model last: if it exists, the state is complete


def _restore_saved_state(ctx: Context, holders: Several[int], decided: int) -> int:
    """Copy the newest undamaged state that was saved in the bucket into the databases and return its round; return 0 if the run never saved
    one.

    The model and the shared optimizer go to the first of `holders`, each worker's own optimizer to that worker's database. Damaged newer
    states are noted in the step's record. `decided`: number of decisions so far. Raises Missing if decisions exist but no saved state,
    Corrupt if every saved state is damaged.
    """
    kept, damaged = ctx.objects.list(ctx.keys.saved_states), list[Corrupt]()
    if not kept and not decided:
        return 0
    for round in sorted(
        {int(each.removeprefix(ctx.keys.saved_states).partition("/")[0]) for each in kept if each.endswith("/model")},
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
                for holder, target, source in ((*each[:2], ctx.keys.saved_state(round, each[2])) for each in held)
                if source in kept  # the untrained model's optimizer has no state
            ]
        except Corrupt as error:
            damaged.append(error)
            continue
        if damaged:
            ctx.note(damaged="; ".join(map(str, damaged)))
        for holder, target, vector in found:
            ctx.tensors[holder].create(target, vector)
        return round
    if damaged:
        raise damaged[0]
    raise Missing(f"{ctx.run}: the workers' databases have lost this run's model; start a new run")


def kept_name(own: str) -> str:
    """Return the name under which a saved state in the bucket holds a vector of a worker's own optimizer, e.g. `own-2-velocity` for worker
    2. `own`: the vector's key in the database.
    """
    worker, _, vector = own.split("/")[-3:]
    return f"own-{worker}-{vector}"


def state_keys(experiment: Experiment, keys: Keys, round: int, worker: int) -> StateKeys:
    """Return the keys of the state at the start of `round` in the database of `worker`: the model's and the optimizer's vectors'.

    With local steps (`exchange.what` is model or delta), the optimizer is the outer one, or none. `keys`: of the attempt.
    """
    match experiment.exchange.what:
        case "gradients":
            kept = list_vectors(experiment.training)
        case "model":
            kept = ()
        case "delta":
            kept = OPTIMIZERS[OUTER].vectors(experiment.exchange.outer.momentum)
    return keys.state(round, worker, optimizer=kept)


def own_keys(experiment: Experiment, keys: Keys, round: int, worker: int) -> tuple[str, ...]:
    """Return the keys of the local optimizer's vectors that only `worker` keeps at the start of `round`. `keys`: of the attempt.

    Empty before the first step, and if the experiment exchanges gradients, because then there is no local optimizer.
    """
    if experiment.exchange.what == "gradients" or not round:
        return ()
    return tuple(keys.own_optimizer(round, worker, vector) for vector in list_vectors(experiment.training))


def find_resumable_round(tensors: Mapping[int, TensorStore], keys: Keys, days: Calendar, *, decided: int) -> int | None:
    """Return the round at which the attempt with these `keys` can be resumed, or None if none of its models is in the databases `tensors`,
    which are given by rank.

    That is the newest round of which any database holds the model, or the round before if its model is still there, so that an unfinished
    decision is made again. Workers are never more than one round apart, and a round's keys are deleted only after the next round has begun
    everywhere. `days`: the run's calendar; `decided`: number of decisions so far.
    """
    for round in range(_last_possible_round(days, decided), -1, -1):
        holders = [w for w in tensors if tensors[w].exists(keys.model(round, w))]
        if holders:
            before = any(tensors[w].exists(keys.model(round - 1, w)) for w in holders) if round else False
            return round - 1 if before else round
    return None


def _last_possible_round(days: Calendar, decided: int) -> int:
    """Return the last round that a run can have begun after `decided` decisions. `days`: the run's calendar."""
    return min((decided + 1) * days.rounds_per_epoch, days.rounds)


def roll_back_if_superseded(ctx: Context, holder: int, *stored: str) -> None:
    """Raise StaleAttempt if a higher attempt has begun while a step stored the keys `stored` in the database of rank `holder`; otherwise do
    nothing.

    Before raising, the keys are deleted, unless the next attempt has yet to copy the state: then that attempt deletes them.
    """
    if progress.is_superseded(ctx):
        if progress.is_state_unneeded(ctx):
            ctx.tensors[holder].delete(*stored)
        progress.raise_if_superseded(ctx)


def roll_back_if_round_over(ctx: Context, round: int, holder: int, *stored: str, following: Several[str] = ()) -> None:
    """Delete what a step has just stored and raise StaleAttempt if the step's round is over or its attempt superseded; otherwise do
    nothing.

    The round may be over, and its keys deleted, if the invocation was delivered twice, or if its caller gave it up. `holder`: rank of the
    database; `stored`: keys that the step has stored for `round`; `following`: keys that it has stored for the next round. Other
    invocations may use the latter, so they are deleted only if that round is over, too.
    """
    if _is_round_over(ctx, round, holder):
        ctx.tensors[holder].delete(*stored, *(following if _is_round_over(ctx, round + 1, holder) else ()))
        raise StaleAttempt(
            f"{ctx.keys.model(round, holder)} is gone: round {round} is over, or the database has lost its memory"
        )
    roll_back_if_superseded(ctx, holder, *stored, *following)


def _is_round_over(ctx: Context, round: int, holder: int) -> bool:
    """Return whether `round`, which had begun, is over: the database of rank `holder` has no model of it any more. The model is deleted
    together with the round's other keys.
    """
    return not ctx.tensors[holder].exists(ctx.keys.model(round, holder))


def update(ctx: Context, event: Event, *, holder: int, gradient: str) -> None:
    """Compute the state of the next round from this round's state and the combined contributions, and store it in the database of rank
    `holder` under the next round's keys. The database computes it, or the function if `database.compute` is fetch. If the next round's keys
    exist already, they stay as they are.

    `event`: names the round; `gradient`: key of the combined contributions: a gradient, a model or a delta, by `exchange.what`. Raises
    Missing if the round's state or the contributions are not stored, unless the next state is.
    """
    round = event["round"]
    old, new = (state_keys(ctx.experiment, ctx.keys, each, holder) for each in (round, round + 1))
    exchange = ctx.experiment.exchange
    match exchange.what:
        case "gradients":
            step = gradients.build_update(ctx, round, history=progress.read_history_before(ctx, round))
        case "model":
            ctx.compute[holder].mean([gradient], out=new.model)  # of one: a copy
            return
        case "delta":
            step = build_outer_update(exchange.outer, number=round, buffers=ctx.facts.buffers)
    ctx.compute[holder].update(old, gradient, out=new, update=step)


def evaluate_and_decide(ctx: Context, event: Event, *, holder: int) -> None:
    """Load the next round's model from the database of rank `holder` into the learner, evaluate it on the validation set, and store the
    decision after the event's epoch: whether training stops. Does nothing if that decision exists. Raises Missing if the database has no
    such model.
    """
    epoch = event["epoch"]
    if ctx.objects.exists(ctx.keys.decision(epoch)):
        return
    with ctx.stage("evaluate"):
        ctx.tensors[holder].get(
            ctx.keys.model(event["round"] + 1, holder), kind=VectorKind.MODEL, out=ctx.learner.model
        )
        progress.create_decision(ctx, epoch)


def build_next_event(ctx: Context, event: Event) -> Event:
    """Return the event's fields for the start of the next round, as changes to merge into the event: those of `build_round_event`, and
    `epoch_finished`, whether the event's round ends an epoch.

    If it does, they include `finished`, whether the decision on that epoch ends training; raises Missing if there is no decision yet.
    """
    if not ends_epoch(ctx, event):
        return {**build_round_event(ctx, event["round"] + 1), "epoch_finished": False}
    finished = progress.read_decision(ctx, event["epoch"])["finished"]
    return {**build_round_event(ctx, event["round"] + 1), "epoch_finished": True, "finished": finished}


def finish_run(ctx: Context, holders: Several[int], spent: Spent) -> None:
    """Store the last round's model and the outcome in the bucket of `ctx` unless an outcome is stored, delete the run's remaining keys in
    the databases, and mark the run as finished. The newest decision says which round was the last; the keys of this round and of the one
    before are deleted.

    `holders`: ranks of the databases that hold the state; `spent`: returns the keys that one round wrote for a holder. Raises Missing if
    the outcome has to be stored and the first holder's database has lost the model.
    """
    agreed = progress.read_newest_decision(ctx)
    last = calendar(ctx.facts).rounds_until(agreed["epoch"])
    if not ctx.objects.exists(ctx.keys.outcome):
        model = ctx.tensors[holders[0]].get(ctx.keys.model(last, holders[0]), kind=VectorKind.MODEL)
        progress.store_outcome(ctx, agreed, model)
    for holder in holders:
        ctx.tensors[holder].delete(*(key for round in (last - 1, last) for key in spent(ctx, ctx.keys, round, holder)))
    progress.mark_finished(ctx)
