"""Local steps where functions compute (`exchange.what: model` or `delta`): one function takes all of a round, one after another, since each
begins where the one before ended. What would run side by side with gradients is serial here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.vector import Vector, exchanged
from crossover.training import agreement, gradients
from crossover.training.calendar import calendar, round_samples

if TYPE_CHECKING:
    from torch import Tensor


def take(ctx: Context, event: Event, optimizer: "Sequence[Tensor]") -> "tuple[Tensor, ...]":
    """From the learner's model on, which moves with it; `optimizer`: the worker's own vectors, and those after the steps."""
    from crossover.algorithms import buffers
    from crossover.algorithms.optimizers.step import step

    round, model = event["round"], buffers.tensor(ctx.learner.model)
    history, own = agreement.known(ctx, round), tuple(optimizer)
    losses, samples, answers = 0.0, 0, 0.0
    for minibatch in range(calendar(ctx.facts).minibatches_in(round)):
        place = {**event, "minibatch": minibatch}
        with ctx.stage("fetch"):
            batch = gradients.fetch_batch(ctx, place)
        with ctx.stage("compute"):
            gradient = buffers.tensor(gradients.compute(ctx, place, batch).data)
            update = gradients.update(ctx, round, history=history, minibatch=minibatch)
            moved, own = step(model, gradient, own, update)
            model.copy_(moved)
        counted = gradients.noted_answers(ctx)
        losses, samples, answers = losses + ctx.notes["loss"] * counted, samples + batch.samples, answers + counted
    gradients.note(ctx, losses / max(1, answers), samples=samples, answers=answers)
    return own


def contribution(ctx: Context, event: Event, begun: "Tensor") -> Vector:
    """What the learner's model has come to since `begun`, as the worker shows it to the others."""
    from crossover.algorithms import buffers
    from crossover.algorithms.outer import moved

    what, own = ctx.experiment.exchange.what, buffers.tensor(ctx.learner.model)
    shown = moved(begun, own, buffers=ctx.facts.buffers) if what == "delta" else own
    return Vector(exchanged(what), buffers.view(shown), round_samples(ctx.facts, event["round"])[event["worker"]])
