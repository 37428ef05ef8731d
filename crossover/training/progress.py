"""A run's progress: the calendar of rounds, attempts that may be superseded, and decisions that all workers agree on."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from crossover import runtime
from crossover.algorithms.rules import Agree
from crossover.algorithms.schedule import Calendar, find_stop_reason, weigh_contributions
from crossover.errors import CrossoverError, Missing, StaleAttempt
from crossover.experiment import Experiment
from crossover.stores import documents, keys
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, build_header
from crossover.stores.keys import Keys
from crossover.workflow.context import Context, RunConfiguration

# --- calendar ---------------------------------------------------------------------------------------------------------


def calendar(configuration: RunConfiguration) -> Calendar:
    """Return the run's calendar, which converts between epochs, rounds and minibatches."""
    return calendar_of(configuration.experiment, configuration.manifest)


def calendar_of(experiment: Experiment, manifest: Mapping[str, Any]) -> Calendar:
    """Return the calendar of an experiment, which converts between epochs, rounds and minibatches. `exchange.every` must be set.

    `manifest`: description of the prepared data; its `minibatches` is the number of minibatches of one worker in an epoch.
    """
    every, minibatches = experiment.exchange.every, manifest["minibatches"]
    assert every is not None, "the runner resolves exchange.every before a run starts"
    local = experiment.exchange.what != "gradients"
    training = experiment.training
    return Calendar(minibatches, minibatches if every == "epoch" else every, training.epochs, local, training.steps)


def build_round_event(ctx: Context, round: int) -> Event:
    """Return the event's fields for the start of `round` (from 0), as changes to merge into an event: `epoch` (from 1), `round`,
    `minibatches` (how many of the round's minibatches functions compute in parallel), `minibatch` 0 and `synchronised` False.
    """
    days = calendar(ctx.facts)
    return {
        "epoch": days.epoch(round),
        "round": round,
        "minibatches": days.count_parallel(round),
        "minibatch": 0,
        "synchronised": False,
    }


def ends_epoch(ctx: Context, event: Event) -> bool:
    """Return whether the model is evaluated and a decision made after the round in `event["round"]`: it is the last one of an epoch, or of
    the run, which `training.steps` may end within an epoch.
    """
    return calendar(ctx.facts).ends_epoch(event["round"])


def answers(configuration: RunConfiguration, round: int, *, worker: int) -> list[int]:
    """Return the number of answers (labels that count in the loss) in each of the worker's minibatches of the round, in order. It equals
    the number of samples if each sample has one answer. Nothing is computed: the counts are in the manifest of the run's configuration.
    """
    counts: list[int] = configuration.manifest["counts"][worker]
    return [counts[number] for number in calendar(configuration).list_minibatches(round)]


def minibatch_weights(configuration: RunConfiguration, round: int, *, worker: int) -> list[int]:
    """Return the weight of each of the worker's minibatches in the mean gradient of the round: its number of answers (labels), or 1 for
    each if all have none.
    """
    return weigh_contributions(answers(configuration, round, worker=worker))


def worker_weights(configuration: RunConfiguration, round: int) -> list[int]:
    """Return the weight of each worker's contribution in the mean of the round, by rank: its number of answers (labels), or 1 for each if
    all have none.
    """
    return weigh_contributions(
        [sum(answers(configuration, round, worker=worker)) for worker in range(len(configuration.manifest["counts"]))]
    )


# --- attempts ---------------------------------------------------------------------------------------------------------
# A run's attempts are ordered: resuming begins the next one, while functions of the stopped one may run on for 15 minutes.
#
# An attempt writes under names of its own (`Keys.attempt`): checkpoints, contributions, barriers. So a lower one cannot disturb it. A lower
# one's work is not needed: before another epoch, checkpoint or wait it checks whether it was superseded, and then deletes what it left.
# Markers are created and never deleted, so that no order of calls hides a higher attempt.

OUTCOME = {"attempt?": int, "epochs?": int, "reason?": str, "parameters_sha256?": str}

_TRAINS, _CLEARS = b"to train", b"to clear away"


def begin_attempt(ctx: Context) -> list[Keys]:
    """Register this attempt as the run's current one, mark the earlier attempts as superseded, and return the earlier attempts' keys,
    newest first. A repeated call does the same.

    Raises StaleAttempt if a higher attempt has begun, or if this one has already concluded the run: an invocation may be delivered again
    after the end.
    """
    objects, keys = ctx.objects, ctx.keys
    if not objects.put_new(keys.attempt_marker(keys.attempt), b"") and has_concluded_run(ctx):
        raise StaleAttempt(f"attempt {keys.attempt} of {keys.run} has concluded the run")
    begun = _list_begun_attempts(ctx)
    if begun[0] > keys.attempt:
        raise StaleAttempt(f"attempt {keys.attempt} of {keys.run}: attempt {begun[0]} has begun")
    lower = [Keys(ctx.run, attempt) for attempt in begun[1:]]
    for each in lower:
        objects.put_new(each.superseded_marker, b"")
    return lower


@contextmanager
def set_up_attempt(
    ctx: Context, roll_back: Callable[[], object], clear: Callable[[list[Keys]], object]
) -> Iterator[list[Keys]]:
    """Return a context manager whose `with` block sets up an attempt of the run of `ctx`, e.g. copies the earlier state; it yields the keys
    of the earlier attempts, newest first.

    `roll_back`: deletes what this attempt has created; called before StaleAttempt, or another CrossoverError of a superseded attempt, is
    raised, and its own CrossoverErrors are ignored. `clear`: deletes what the attempts with the given keys left. Errors of the block are
    raised.

    Raises StaleAttempt if a higher attempt has begun, or if this one has already concluded the run. If an earlier attempt has concluded it,
    nothing is left to train: then `clear` is called for all attempts including this one, the run is marked as finished, and StaleAttempt is
    raised.
    """
    try:
        before = begin_attempt(ctx)
        if before and _should_only_clear(ctx):
            _only_clear(ctx, before, clear)
        try:
            yield before
        except (
            Missing
        ):  # an attempt before this one may conclude the run meanwhile, and delete what this one was about to take over
            if not before or not _should_only_clear(ctx):
                raise
            _only_clear(ctx, before, clear)
        if before and ctx.objects.create(ctx.keys.purpose, _TRAINS) != _TRAINS:
            _only_clear(ctx, before, clear)
        raise_if_superseded(ctx)
        if has_concluded_run(ctx):
            raise StaleAttempt(f"attempt {ctx.keys.attempt} of {ctx.run} has concluded the run")
    except CrossoverError as error:  # the keys of a superseded attempt may be deleted meanwhile, and it is not retried
        with suppress(CrossoverError):
            if isinstance(error, StaleAttempt) or is_superseded(ctx):
                roll_back()
        raise


def _only_clear(ctx: Context, before: list[Keys], clear: Callable[[list[Keys]], object]) -> NoReturn:
    """Mark the earlier attempts as taken over, call `clear` with the keys of this attempt and then of `before`, mark the run as finished,
    and raise StaleAttempt. If a higher attempt has begun, raise StaleAttempt at once, without clearing. `before`: keys of the earlier
    attempts.
    """
    mark_taken_over(ctx, before)
    clear([ctx.keys, *before])
    mark_finished(ctx)
    raise StaleAttempt(f"{ctx.run} was concluded before attempt {ctx.keys.attempt}, which has deleted the rest")


def _should_only_clear(ctx: Context) -> bool:
    """Return whether the run has its outcome, from an earlier attempt, so that this attempt only has to delete. If so, store that as this
    attempt's purpose.

    False if this attempt has already been set up to train: its workers may be running. Several invocations of its first step may ask at
    the same time; the purpose that is stored first counts for all.
    """
    objects, keys = ctx.objects, ctx.keys
    return objects.exists(keys.outcome) and objects.create(keys.purpose, _CLEARS) == _CLEARS


def mark_finished(ctx: Context) -> None:
    """Mark the run as finished, which means that everything it left in the stores is deleted. Called last.

    Does nothing if a higher attempt has begun: it either trains on, or deletes what is left itself.
    """
    if not is_superseded(ctx):
        ctx.objects.put_new(ctx.keys.finished_marker, b"")


def mark_taken_over(ctx: Context, lower: Sequence[Keys]) -> None:
    """Mark the earlier attempts as taken over: their state has been copied, so what they left may be deleted. `lower`: keys of the earlier
    attempts.

    Raises StaleAttempt if a higher attempt has begun, because that one may still need their state.
    """
    raise_if_superseded(ctx)
    for each in lower:
        ctx.objects.put_new(each.takeover_marker, b"")


def is_state_unneeded(ctx: Context) -> bool:
    """Return whether the state of the attempt of `ctx` may be deleted: it has concluded the run, or a later attempt has taken its state
    over.

    Before that, a superseded attempt must keep its state for the next one, which then deletes it. Raises Corrupt if the run's outcome is
    damaged.
    """
    return has_concluded_run(ctx) or ctx.objects.exists(ctx.keys.takeover_marker)


def earlier_attempts(ctx: Context) -> list[Keys]:
    """Return the keys of all attempts of the run before the one of `ctx`, newest first. Lists the bucket, so it is for set-up and the end,
    not for training.
    """
    return [Keys(ctx.run, attempt) for attempt in _list_begun_attempts(ctx) if attempt < ctx.keys.attempt]


def _list_begun_attempts(ctx: Context) -> list[int]:
    """Return the numbers of all attempts of the run that have begun, highest first. Lists the bucket."""
    return sorted((int(key.rpartition("/")[2]) for key in ctx.objects.list(ctx.keys.attempt_markers)), reverse=True)


def is_superseded(ctx: Context) -> bool:
    """Return whether a higher attempt of the run than that of `ctx` has begun."""
    return ctx.objects.exists(ctx.keys.superseded_marker)


def has_concluded_run(ctx: Context) -> bool:
    """Return whether the attempt of `ctx` itself wrote the run's outcome. False if there is no outcome, or if another attempt wrote it.

    Raises Corrupt if the outcome is damaged.
    """
    objects, key = ctx.objects, ctx.keys.outcome
    return bool(
        objects.exists(key) and documents.read_document(objects, key, OUTCOME).get("attempt") == ctx.keys.attempt
    )


def roll_back_if_over(ctx: Context, roll_back: Callable[[], object]) -> None:
    """Call `roll_back` and raise StaleAttempt if the run is over, that is, if a peer deletes or has deleted its keys; otherwise do nothing.

    A peer or its function calls this after it has written something. `roll_back`: deletes what was written. The peer that deletes the run's
    keys marks the run as over before, so in any order of events one of the two deletes what was written.
    """
    if ctx.objects.exists(ctx.keys.clearing_marker):
        roll_back()
        raise StaleAttempt(f"{ctx.run}: the run is over")


def is_obsolete(ctx: Context) -> bool:
    """Return whether the attempt of `ctx` should stop training, because a higher attempt has begun or because it has concluded the run.
    Raises Corrupt if the run's outcome is damaged.
    """
    return is_superseded(ctx) or has_concluded_run(ctx)


def raise_if_superseded(ctx: Context) -> None:
    """Raise StaleAttempt if a higher attempt of the run than that of `ctx` has begun."""
    if is_superseded(ctx):
        raise StaleAttempt(f"attempt {ctx.keys.attempt} of {ctx.keys.run} was superseded: the run was resumed")


# --- agreement --------------------------------------------------------------------------------------------------------
# What all workers must hold the same view of: what follows an epoch, whose contributions a round leaves out, how the run ended.
#
# Whoever comes first creates the object, and all others read what was created.

DECISION = {
    "epoch": int,
    "val_loss": float,
    "val_metric": float,
    "history": [[float, float]],
    "finished": bool,
    "reason": str,
    "at": float,
}
DROPPED = {"round": int, "workers": [int]}


def read_decision(ctx: Context, epoch: int) -> dict[str, Any]:
    """Return the stored decision after `epoch` (from 1), which all workers follow: a dictionary with `epoch`, `val_loss`, `val_metric`,
    `history` ([loss, metric] of each evaluation), `finished` (whether training ends), `reason`, `at` (unix seconds), `by` (rank of the
    worker whose model was evaluated), `attempt`, and with a budget the spending. For epoch 0 it is an initial one with an empty history,
    without loss, metric, `by` and `attempt`. Raises Missing if it does not exist yet, Corrupt if it is damaged.
    """
    if epoch == 0:
        return {"epoch": 0, "history": [], "finished": False, "reason": "", "at": ctx.facts.created_at}
    return documents.read_document(ctx.objects, ctx.keys.decision(epoch), DECISION)


def read_history(ctx: Context, epoch: int) -> list[tuple[float, float]]:
    """Return (validation loss, validation metric) of each evaluation up to the one after `epoch`, oldest first, as the stored decision on
    that epoch has them; [] for epoch 0. Raises Missing if there is no such decision, Corrupt if it is damaged.
    """
    if epoch == 0:
        return []
    return [(loss, metric) for loss, metric in read_decision(ctx, epoch)["history"]]


def read_history_before(ctx: Context, round: int) -> list[tuple[float, float]]:
    """Return (validation loss, validation metric) of each evaluation that took place before `round`, oldest first. Raises Missing if the
    decision on them is not stored.
    """
    return read_history(ctx, calendar(ctx.facts).epochs_before(round))


def read_newest_decision(ctx: Context) -> dict[str, Any]:
    """Return the run's newest decision, as `read_decision` returns it; the initial one if there is none yet. Lists the bucket, so it is for
    the end of a run, not for training. Raises Corrupt if the decision is damaged.
    """
    return read_decision(ctx, calendar(ctx.facts).epoch_of_decision(len(ctx.objects.list(ctx.keys.decisions))))


def create_decision(ctx: Context, epoch: int, *, by: int = 0) -> None:
    """Evaluate the learner's model on the validation set and store the decision after `epoch`: history, whether training stops, and why. If
    a decision exists already, that one stays, but the model is evaluated in any case. Raises Refused if no validation label counts.

    The history has the loss and the metric of each decision up to this one. `epoch`: one with a decision, or the last of the run; `by`:
    rank of the worker whose model is evaluated. With a budget, the decision also records the spending, and may stop training.
    """
    result = evaluate(ctx)
    span = calendar(ctx.facts).span
    before = (epoch - 1) // span * span
    seen = [*read_history(ctx, before), (result.loss, result.metric)]
    reason = find_stop_reason(ctx.experiment.training, seen, epochs=epoch)
    agreed = {
        "epoch": epoch,
        "val_loss": result.loss,
        "val_metric": result.metric,
        "history": seen,
        "finished": bool(reason),
        "reason": reason,
        "by": by,
        "attempt": ctx.keys.attempt,
        "at": runtime.time(),
    }
    if ctx.experiment.lifetime.budget_usd is not None and ctx.facts.money:
        from crossover.reports import spending  # imports the prices: only if needed

        agreed |= spending.decide_spending(ctx, read_decision(ctx, before))
        if not reason and agreed["over_budget"]:
            agreed |= {"finished": True, "reason": f"budget: {agreed['over_budget']}"}
    ctx.objects.create(ctx.keys.decision(epoch), documents.seal(agreed))


def evaluate(ctx: Context) -> Any:
    """Evaluate the learner's present model on the whole validation set, read from the bucket, and return its Evaluation (`loss`, `metric`,
    `samples`). Nothing is stored. Raises Refused if no label counts.
    """
    from crossover.learning.batches import decode_batch

    facts = ctx.facts
    chunks = (keys.validation_chunk(facts.data, chunk) for chunk in range(facts.manifest["validation_chunks"]))
    return ctx.learner.evaluate(decode_batch(ctx.data[0].get(key), key=key) for key in chunks)


def drop_agreement(ctx: Context, round: int) -> Agree:
    """Return a function by which a worker agrees with all others on whose contributions to leave out of `round`.

    The function takes the ranks that this worker would drop and returns the ranks that all drop. The first list stored counts, so a retry
    repeats the same result; an empty list is returned at once, even if another is stored. It raises the errors of the store, and Corrupt if
    the stored list is damaged.
    """

    def agree(bad: list[int]) -> list[int]:
        """Return the ranks that all workers drop: the list that is stored for the round, or `bad`, which is stored now if there is none.
        `bad`: the ranks that this worker would drop; if empty, it is returned without a request. Raises Corrupt if the stored list is
        damaged.
        """
        if not bad:
            return bad
        key = ctx.keys.dropped_workers(round)
        told = documents.seal({"round": round, "epoch": calendar(ctx.facts).epoch(round), "workers": bad})
        agreed: list[int] = documents.unseal(ctx.objects.create(key, told), DROPPED, key=key)["workers"]
        return agreed

    return agree


def store_outcome(ctx: Context, agreed: dict[str, Any], model: Vector) -> None:
    """Store the trained `model` and the run's outcome in the bucket of `ctx`. If an outcome exists already, that one stays.

    `agreed`: the last epoch's decision, from which the outcome takes metric, loss, epochs and reason.
    """
    sha256 = hashlib.sha256(model.data).hexdigest()
    ctx.objects.put(ctx.keys.final_model(sha256), [build_header(model), model.data])
    outcome = {
        "val_metric": agreed["val_metric"],
        "val_loss": agreed["val_loss"],
        "epochs": agreed["epoch"],
        "reason": agreed["reason"],
        "parameters_sha256": sha256,
        "attempt": ctx.keys.attempt,
    }
    ctx.objects.create(ctx.keys.outcome, documents.seal(outcome))
