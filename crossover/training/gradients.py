"""What every architecture does alike: the gradient of one minibatch, and the update that ends a round. torch stays behind the learner."""

from dataclasses import replace
from typing import TYPE_CHECKING

from crossover import keys
from crossover.algorithms.schedule import learning_rate
from crossover.algorithms.update import Update
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
from crossover.training.calendar import calendar, minibatch_samples

if TYPE_CHECKING:
    from crossover.learning.batch import Batch


def fetch_batch(ctx: Context, event: Event) -> "Batch":
    """The event's minibatch from the worker's own bucket, and what it weighs."""
    from crossover.learning.batch import decode

    worker = event["worker"]
    _, number = calendar(ctx.facts).place(event["round"], event["minibatch"])
    key = keys.minibatch(ctx.facts.data, worker, number)
    batch = decode(ctx.data[worker].get(key), key=key)
    return replace(batch, answers=ctx.facts.manifest["counts"][worker][number])


def compute(ctx: Context, event: Event, batch: "Batch") -> Vector:
    """The minibatch's gradient with its statistics, at the learner's model; a view of the learner's buffer. A
    faulty worker attacks here.
    """
    where = {name: event[name] for name in ("round", "worker", "minibatch")}
    epoch, _ = calendar(ctx.facts).place(event["round"], event["minibatch"])
    loss = ctx.learner.compute_gradient(batch, epoch=epoch, **where)
    note(ctx, loss, samples=batch.samples, answers=batch.samples if batch.answers is None else batch.answers)
    faults, data = ctx.experiment.faults, ctx.learner.gradient
    if event["worker"] in faults.workers and faults.attack not in ("none", "label_flip"):
        from crossover.algorithms import attacks, buffers
        from crossover.algorithms.randomness import generator

        # One direction per round: noise drawn anew for each minibatch would average away before the peers see it.
        random = generator("attack", ctx.experiment.seed, event["round"], event["worker"])
        data = buffers.view(
            attacks.attacked(
                buffers.tensor(data),
                attack=faults.attack,
                scale=faults.scale,
                generator=random,
                buffers=ctx.facts.buffers,
            )
        )
    weighs = minibatch_samples(ctx.facts, event["round"], worker=event["worker"])[event["minibatch"]]
    return Vector(VectorKind.GRADIENT, data, samples=weighs)


def note(ctx: Context, loss: float, *, samples: int, answers: float) -> None:
    """For the record: a mean loss, over how many samples, and over how many answers where these are not as many."""
    ctx.notes.pop("answers", None)
    ctx.note(loss=loss, samples=samples, **({} if answers == samples else {"answers": answers}))


def noted_answers(ctx: Context) -> float:
    """Over how many answers the loss is the mean that was noted last."""
    return float(ctx.notes.get("answers", ctx.notes["samples"]))


def update(
    ctx: Context,
    round: int,
    *,
    history: list[tuple[float, float]],
    minibatch: int | None = None,
) -> Update:
    """The optimizer's step that ends `round`; `history`: validation loss and metric of the epochs before. Where a worker takes steps of its
    own within the round, the one after its `minibatch`, at the rate that a run has there which exchanges after each.
    """
    training, days = ctx.experiment.training, calendar(ctx.facts)
    if minibatch is None:
        number, steps, behind = round, days.rounds, days.sync_every
    else:
        number, steps, behind = days.minibatches_before(round) + minibatch, days.minibatches * days.epochs, 1
    return Update.of(
        training,
        number=number,
        rate=learning_rate(training, round=number, rounds=steps, history=history),
        buffers=ctx.facts.buffers,
        sync_every=behind,
        undecayed=ctx.facts.undecayed,
    )
