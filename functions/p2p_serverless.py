"""P2P with Lambda: the functions of a peer. Each computes the gradient of one batch; a Map starts as many as there are batches.

Barrak et al., "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine Learning" (2023), III and Figure 1: the peer's
state machine runs its batches side by side. Model and gradients go through the object store alone: these functions need no network of their
own.
"""

from crossover.algorithms.schedule import split_into_parts
from crossover.errors import Corrupt
from crossover.stores.clients import Event
from crossover.stores.encoding import Vector, VectorKind, build_header, decode
from crossover.stores.keys import Keys
from crossover.training import checkpoints, gradients, progress
from crossover.training.checkpoints import Checkpoint, Position
from crossover.training.progress import minibatch_weights
from crossover.workflow import step
from crossover.workflow.context import Context


@step(torch=True)
def compute_gradient(ctx: Context, event: Event) -> None:
    """Compute the gradient of the event's minibatch at the peer's stored model, and store it: Algorithm 1, ComputeBatchGradients. Does
    nothing if it is stored already.

    With local steps (`exchange.what` is not gradients) take all steps of the round instead, one after another. Raises StaleAttempt if the
    run is over, Missing if the peer's model is not stored.
    """
    if ctx.experiment.exchange.what != "gradients":
        _take_steps(ctx, event)
        return
    keys = _gradient_keys(ctx, event)
    if ctx.objects.exists(keys[-1]):  # written last
        return
    with ctx.stage("fetch"):
        _receive_model(ctx, event)
        batch = gradients.fetch_batch(ctx, event)
    with ctx.stage("compute"):
        gradient = gradients.compute_gradient(ctx, event, batch)
    with ctx.stage("store"):
        for key, part in zip(keys, _split(ctx, event, gradient), strict=True):
            ctx.objects.put_new(key, [build_header(part), part.data])
        progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(*keys))


@step(torch=True)
def average_part(ctx: Context, event: Event) -> None:
    """Average one part of the vector over the gradients of all the peer's minibatches, in their order, and store the result: Algorithm 1,
    AverageBatchesGradients, if functions average.

    The event's `minibatch` is the number of the part, from 0. Does nothing if there is no such part, or if its average is stored. Raises
    Missing if a gradient is not stored, Corrupt if one stands for another number of samples, StaleAttempt if the run is over.
    """
    from crossover.algorithms import buffers
    from crossover.algorithms.averaging import RunningMean

    number, shares = event["minibatch"], split_into_parts(_elements(ctx), most=event["minibatches"])
    out = ctx.keys.peer_average(event["round"], event["worker"], number)
    if number >= len(shares) or ctx.objects.exists(out):
        return
    samples = minibatch_weights(ctx.facts, event["round"], worker=event["worker"])
    mean: RunningMean | None = None
    with ctx.stage("average"):
        for minibatch, expected in enumerate(samples):
            key = ctx.keys.peer_gradient(event["round"], event["worker"], minibatch, number)
            vector = decode(ctx.objects.get(key), key=key, kind=VectorKind.GRADIENT)
            if vector.samples != expected:
                raise Corrupt(f"{key}: stands for {vector.samples} samples; the batch has {expected}")
            received = buffers.tensor(vector.data)
            mean = mean or RunningMean(samples, total=received.new_empty(received.numel()))
            mean.add(received)
        assert mean is not None
        average = Vector(VectorKind.GRADIENT, buffers.view(mean.result()), sum(samples))
    with ctx.stage("store"):
        ctx.objects.put_new(out, [build_header(average), average.data])
        progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(out))


def _take_steps(ctx: Context, event: Event) -> None:
    """Take all local steps of the event's round from the peer's stored state, and store the state after them as a checkpoint. Does nothing
    if that is stored already. Raises Missing if the peer's state is not stored, Corrupt if it is damaged, StaleAttempt if the run is over.
    """
    round, worker = event["round"], event["worker"]
    key, out = ctx.keys.peer_model(round, worker), ctx.keys.peer_gradient(round, worker, 0)
    if ctx.objects.exists(out):
        return
    with ctx.stage("fetch"):
        before = checkpoints.read(ctx.objects.get(key), key=key)
        _receive(ctx, before.vectors["model"], key=key)
    own = gradients.take_local_steps(ctx, event, checkpoints.copy_optimizer(before))
    with ctx.stage("store"):
        after = Checkpoint(Position(round, event["minibatches"]), checkpoints.build_vectors(ctx, own))
        ctx.objects.put_new(out, checkpoints.encode(after))
        progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(out))


def _gradient_keys(ctx: Context, event: Event) -> list[str]:
    """Return the keys under which the gradient of the event's minibatch is stored: one, or if functions average, one for each part."""
    keys: Keys = ctx.keys
    place = event["round"], event["worker"], event["minibatch"]
    if ctx.experiment.p2p.average_in == "peer":
        return [keys.peer_gradient(*place)]
    return [
        keys.peer_gradient(*place, part)
        for part in range(len(split_into_parts(_elements(ctx), most=event["minibatches"])))
    ]


def _split(ctx: Context, event: Event, gradient: Vector) -> list[Vector]:
    """Return `gradient` as a list of one vector, or if functions average, cut into one vector for each part, in order. The parts are views
    of its memory.
    """
    if ctx.experiment.p2p.average_in == "peer":
        return [gradient]
    shares = split_into_parts(_elements(ctx), most=event["minibatches"])
    return [Vector(VectorKind.GRADIENT, gradient.data[4 * s.start : 4 * s.stop], gradient.samples) for s in shares]


def _receive_model(ctx: Context, event: Event) -> None:
    """Fetch the peer's model of the event's round into the learner. Raises Corrupt if it has another size than the learner's. Raises
    Missing if it is not stored.
    """
    key = ctx.keys.peer_model(event["round"], event["worker"])
    _receive(ctx, decode(ctx.objects.get(key), key=key, kind=VectorKind.MODEL), key=key)


def _receive(ctx: Context, model: Vector, *, key: str) -> None:
    """Copy `model` into the learner. Raises Corrupt, naming `key`, if it has another size than the learner's model."""
    if model.data.nbytes != ctx.learner.model.nbytes:
        raise Corrupt(f"{key}: {model.data.nbytes} bytes; this run's model has {ctx.learner.model.nbytes}")
    ctx.learner.model[:] = model.data


def _elements(ctx: Context) -> int:
    """Return the number of elements of the run's model vector: parameters and buffers."""
    return ctx.facts.parameters + ctx.facts.buffers
