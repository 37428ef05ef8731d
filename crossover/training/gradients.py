"""Computation of one worker's gradients and local steps, and the baselines' experiments."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from crossover.algorithms.optimizers import Update
from crossover.algorithms.schedule import learning_rate
from crossover.experiment import Aggregation, Exchange, Experiment, Faults
from crossover.learning import sizes
from crossover.learning.staging import count_minibatches
from crossover.stores import keys
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind, exchanged_kind
from crossover.training import progress
from crossover.training.progress import calendar, minibatch_weights, worker_weights
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.learning.batches import Batch


# --- gradients --------------------------------------------------------------------------------------------------------


def fetch_batch(ctx: Context, event: Event) -> "Batch":
    """Return the minibatch that `event` names (worker, round, minibatch), read from the worker's bucket, with the number of answers
    (labels that count in the loss) from the manifest. Raises Missing if it is not staged, Corrupt if it is damaged.
    """
    from crossover.learning.batches import decode_batch

    worker = event["worker"]
    _, number = calendar(ctx.facts).locate_minibatch(event["round"], event["minibatch"])
    key = keys.minibatch(ctx.facts.data, worker, number)
    batch = decode_batch(ctx.data[worker].get(key), key=key)
    return replace(batch, answers=ctx.facts.manifest["counts"][worker][number])


def compute_gradient(ctx: Context, event: Event, batch: "Batch") -> Vector:
    """Compute the gradient of `batch` at the learner's model, and return it with its weight in the round's mean. Its data is a view of the
    learner's buffer. Notes the loss in the record of `ctx`.

    `event`: gives round, worker and minibatch, from which the epoch and the seed of dropout follow. If the experiment makes this worker
    faulty, the gradient is altered by its attack.
    """
    run_minibatch(ctx, event, batch)
    faults, data = ctx.experiment.faults, ctx.learner.gradient
    if event["worker"] in faults.workers and faults.attack not in ("none", "label_flip"):
        from crossover.algorithms import buffers, robust
        from crossover.algorithms.compression import make_generator

        # One direction per round: noise drawn anew for each minibatch would average away before the peers see it.
        random = make_generator("attack", ctx.experiment.seed, event["round"], event["worker"])
        data = buffers.view(
            robust.attack_vector(
                buffers.tensor(data),
                attack=faults.attack,
                scale=faults.scale,
                generator=random,
                buffers=ctx.facts.buffers,
            )
        )
    weighs = minibatch_weights(ctx.facts, event["round"], worker=event["worker"])[event["minibatch"]]
    return Vector(VectorKind.GRADIENT, data, samples=weighs)


def run_minibatch(ctx: Context, event: Event, batch: "Batch") -> None:
    """Let the learner compute the gradient of `batch`, which it keeps, and note the loss in the record of `ctx`.

    `event`: gives round, worker and minibatch, from which the epoch and the seed of dropout follow.
    """
    where = {name: event[name] for name in ("round", "worker", "minibatch")}
    epoch, _ = calendar(ctx.facts).locate_minibatch(event["round"], event["minibatch"])
    loss = ctx.learner.compute_gradient(batch, epoch=epoch, **where)
    note_loss(ctx, loss, samples=batch.samples, answers=batch.samples if batch.answers is None else batch.answers)


def note_loss(ctx: Context, loss: float, *, samples: int, answers: float) -> None:
    """Note the mean loss and the number of samples in the invocation's record, by `ctx`, instead of those noted before.

    `samples`: number of samples; `answers`: number of labels that the loss is the mean of; noted only if it differs from `samples`.
    """
    ctx.notes.pop("answers", None)
    ctx.note(loss=loss, samples=samples, **({} if answers == samples else {"answers": answers}))


def get_noted_answers(ctx: Context) -> float:
    """Return the number of answers (labels) that the loss last noted in `ctx` is the mean of."""
    return float(ctx.notes.get("answers", ctx.notes["samples"]))


def build_update(
    ctx: Context,
    round: int,
    *,
    history: list[tuple[float, float]],
    minibatch: int | None = None,
) -> Update:
    """Return the parameters of an optimizer step, such as its learning rate; the step itself is not taken.

    `round`: round, from 0, that the step ends; `history`: (validation loss, metric) of the earlier epochs; `minibatch`: None, or for a
    local step the index, from 0 within the round, of the minibatch after which the step is taken. A local step has the learning rate of a
    run that exchanges after every minibatch.
    """
    training, days = ctx.experiment.training, calendar(ctx.facts)
    if minibatch is None:
        number, steps, behind = round, days.rounds, days.sync_every
    else:
        number, steps, behind = days.minibatches_before(round) + minibatch, days.minibatches * days.epochs, 1
    return Update.from_training(
        training,
        number=number,
        rate=learning_rate(training, round=number, rounds=steps, history=history),
        buffers=ctx.facts.buffers,
        sync_every=behind,
        undecayed=ctx.facts.undecayed,
    )


# --- baselines --------------------------------------------------------------------------------------------------------
# What `baseline` asks for beside an experiment: the same model, data and seed on as many GPUs, or by one worker.


def build_baselines(experiment: Experiment) -> tuple[Experiment, ...]:
    """Return the experiments to compare `experiment` with: those that its field `baseline` names, in that order; () if it names none.
    Their names are its own with `-gpu` or `-single` appended.
    """
    return tuple(
        build_gpu_baseline(experiment, f"{experiment.name}-gpu")
        if name == "gpu"
        else build_single_baseline(experiment, f"{experiment.name}-single")
        for name in experiment.baselines
    )


def build_gpu_baseline(experiment: Experiment, name: str) -> Experiment:
    """Return the GPU baseline of `experiment`, called `name`: the same model, data and seed on as many GPUs as it has workers, which
    exchange uncompressed gradients after each minibatch, as published. Its faults and aggregation rule stay. `experiment` itself is not
    changed.
    """
    return replace(experiment, name=name, architecture="gpu", baseline="none", exchange=Exchange())


def build_single_baseline(experiment: Experiment, name: str) -> Experiment:
    """Return the single-worker baseline of `experiment`, called `name`: one worker without faults, compression and robust aggregation,
    whose update takes as many minibatches as all workers' updates together, at most an epoch's. `experiment` itself is not changed.

    If `exchange.every` is not set, or models or deltas are exchanged, each worker counts with 1 minibatch. The channel is Redis. The
    function gets the memory that `experiment` sets for functions with torch by default. Raises ConfigError if the split of the data leaves
    one part empty.
    """
    e = experiment
    every = e.exchange.every or 1
    if e.exchange.what != "gradients":
        every = 1  # a step for each minibatch, whenever models are exchanged
    return replace(
        e,
        name=name,
        architecture="single",
        baseline="none",
        workers=1,
        aggregation=Aggregation(),
        faults=Faults(),
        storage=replace(e.storage, channel="redis"),
        exchange=Exchange(
            every=every if every == "epoch" else min(e.workers * every, _minibatches(e) or e.workers * every)
        ),
        functions=replace(e.functions, memory_mb={"default": e.functions.memory_of("", torch=True)}),
    )


def _minibatches(experiment: Experiment) -> int | None:
    """Return the number of minibatches in an epoch if one worker has all data; a last, smaller one counts unless `data.drop_last` is set.
    None if the number is known only once the data is loaded, if the batch is larger than the data, or if the number would be 0. Raises
    ConfigError if the split leaves the training or validation part empty.
    """
    known, drop_last = sizes.count_split(experiment), experiment.data.drop_last
    return known and count_minibatches(known[0], 1, experiment.training.batch_size, drop_last=drop_last)


# --- own steps --------------------------------------------------------------------------------------------------------
# Local steps if functions compute (`exchange.what: model` or `delta`): one function takes all of a round, one after another, since each
# begins where the one before ended. With gradients, functions run in parallel; here one runs after another.


def take_local_steps(ctx: Context, event: Event, optimizer: "Sequence[Tensor]") -> "tuple[Tensor, ...]":
    """Take all local steps of the event's round: they move the learner's model. Return the optimizer's vectors after the steps.

    `optimizer`: the worker's own optimizer vectors before the steps, () if there are none. The mean loss is noted in the record of `ctx`.
    """
    from crossover.algorithms import buffers
    from crossover.algorithms.updates import step

    round, model = event["round"], buffers.tensor(ctx.learner.model)
    history, own = progress.read_history_before(ctx, round), tuple(optimizer)
    losses, samples, answers = 0.0, 0, 0.0
    for minibatch in range(calendar(ctx.facts).minibatches_in(round)):
        place = {**event, "minibatch": minibatch}
        with ctx.stage("fetch"):
            batch = fetch_batch(ctx, place)
        with ctx.stage("compute"):
            gradient = buffers.tensor(compute_gradient(ctx, place, batch).data)
            update = build_update(ctx, round, history=history, minibatch=minibatch)
            moved, own = step(model, gradient, own, update)
            model.copy_(moved)
        counted = get_noted_answers(ctx)
        losses, samples, answers = losses + ctx.notes["loss"] * counted, samples + batch.samples, answers + counted
    note_loss(ctx, losses / max(1, answers), samples=samples, answers=answers)
    return own


def build_contribution(ctx: Context, event: Event, begun: "Tensor") -> Vector:
    """Return the vector that the event's worker sends after its local steps, with its weight as `samples`: the learner's model (a view of
    its memory) if `exchange.what` is model, otherwise `begun` minus the model, in which BatchNorm statistics are the model's own.

    `begun`: the model at the start of the round.
    """
    from crossover.algorithms import buffers
    from crossover.algorithms.outer import compute_delta

    what, own = ctx.experiment.exchange.what, buffers.tensor(ctx.learner.model)
    shown = compute_delta(begun, own, buffers=ctx.facts.buffers) if what == "delta" else own
    return Vector(exchanged_kind(what), buffers.view(shown), worker_weights(ctx.facts, event["round"])[event["worker"]])
