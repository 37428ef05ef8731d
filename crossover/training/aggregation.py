"""The steps of an aggregation and the tree they form: clients send, level after level averages, what lay in between is deleted.

Everything goes through the object store, as in "Shard the Gradient, Scale the Model" (Barrak, 2026) and the two designs that it compares
with. A level's number travels as `round`, from 1 on; the aggregators of a level as `minibatch`.
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from crossover.algorithms.aggregators.plan import Aggregator, Plan
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane import documents
from crossover.dataplane.vector import Vector, VectorKind, decode, header
from crossover.errors import Corrupt
from crossover.experiment import Experiment
from crossover.workflow import DAY_S, ForEach, Node, Repeat, Sequence, Step

if TYPE_CHECKING:
    from crossover.algorithms.running_mean import RunningMean

CLIENTS = 0  # the level below the first


def steps(module: str, plan: Callable[[Experiment], Plan]) -> tuple[Step, Step, Step, Step]:
    """The four steps, in the tree's order, as functions of `module`'s own: a function's zip holds what its module can reach."""

    def step(name: str, body: Callable[[Context, Event, Plan], Event | None], *, torch: bool = False) -> Step:
        return Step(name, module, lambda ctx, event: body(ctx, event, plan(ctx.experiment)), torch=torch)

    return (
        step("send_gradient", send, torch=True),
        step("open_level", open_level),
        step("aggregate", aggregate, torch=True),
        step("collect", collect),
    )


def tree(send_gradient: Step, open_level: Step, aggregate: Step, collect: Step) -> Node:
    """Clients side by side, then level after level, the aggregators of each side by side."""
    level = Sequence(open_level, ForEach("minibatch", "minibatches", aggregate))
    return Sequence(
        ForEach("worker", "workers", send_gradient), Repeat(level, until="finished", timeout_s=DAY_S), collect
    )


def invocations(plan: Plan) -> dict[str, int]:
    """By step: how often a whole run executes it."""
    levels = len(plan.levels)
    return {"send_gradient": plan.clients, "open_level": levels, "aggregate": plan.aggregators, "collect": 1}


def send(ctx: Context, event: Event, plan: Plan) -> None:
    """A client's gradient into the store, part by part: the part alone is ever in memory."""
    from crossover.algorithms import buffers
    from crossover.algorithms.aggregators.gradients import gradient

    if _over(ctx, event):
        return
    client, keys = event["worker"], list[str]()
    for number in range(plan.parts):
        with ctx.stage("compute"):
            part = gradient(ctx.experiment.seed, client, plan.part(number))
        vector = Vector(VectorKind.GRADIENT, buffers.view(part), 1)
        keys.append(ctx.keys.partial_mean(CLIENTS, client, number))
        with ctx.stage("store"):
            ctx.objects.put_new(keys[-1], [header(vector), vector.data])
    if ctx.objects.exists(ctx.keys.outcome):  # a repeated step that comes after the end
        ctx.objects.delete(*keys)


def _over(ctx: Context, event: Event) -> bool:
    """Whether the run is resumed only to be cleared away."""
    return bool(event["attempt"]) and ctx.objects.exists(ctx.keys.outcome)


def open_level(ctx: Context, event: Event, plan: Plan) -> Event:
    """On to the next level, which may be the last."""
    level = event["round"] + 1
    return {"round": level, "minibatches": len(plan.levels[level - 1]), "finished": level == len(plan.levels)}


def aggregate(ctx: Context, event: Event, plan: Plan) -> None:
    """Read one input after another, add, divide, write: memory for the sum and one input, however many there are."""
    from crossover.algorithms import buffers

    if _over(ctx, event):
        return
    level, number = event["round"], event["minibatch"]
    mine = plan.levels[level - 1][number]
    total = _sum(ctx, plan, mine, level=level)
    with ctx.stage("aggregate"):
        data = buffers.view(total.result())
    with ctx.stage("check"):
        ctx.note(sha256=hashlib.sha256(data).hexdigest())
    vector = Vector(VectorKind.GRADIENT, data, mine.clients)
    with ctx.stage("store"):
        ctx.objects.put_new(ctx.keys.partial_mean(level, number, mine.part), [header(vector), vector.data])


def _sum(ctx: Context, plan: Plan, mine: Aggregator, *, level: int) -> "RunningMean":
    from crossover.algorithms.running_mean import RunningMean

    mean = RunningMean.of(mine.weights, elements=plan.part_elements(mine.part))
    for member, weight in zip(mine.inputs, mine.weights, strict=True):
        _add(ctx, mean, ctx.keys.partial_mean(level - 1, member, mine.part), samples=weight)
    return mean


def _add(ctx: Context, mean: "RunningMean", key: str, *, samples: int) -> None:
    """One input: its memory is free again when this returns, before the next one is asked for."""
    from crossover.algorithms import buffers

    with ctx.stage("fetch"):
        vector = decode(ctx.objects.get(key), key=key, kind=VectorKind.GRADIENT)
    if vector.samples != samples or vector.elements != mean.total.numel():
        raise Corrupt(
            f"{key}: {vector.elements} elements of {vector.samples} clients; expected {mean.total.numel()} of {samples}"
        )
    with ctx.stage("aggregate"):
        mean.add(buffers.tensor(vector.data))


def collect(ctx: Context, event: Event, plan: Plan) -> None:
    """The last level's means stay, as the outcome; what lay below them is deleted."""
    last = len(plan.levels)
    means = [ctx.keys.partial_mean(last, number, each.part) for number, each in enumerate(plan.levels[-1])]
    ctx.objects.put_new(ctx.keys.outcome, documents.sealed({"means": means, "clients": plan.clients}))
    for level in range(last):
        ctx.objects.delete_prefix(ctx.keys.partial_means(level))
    ctx.objects.put_new(ctx.keys.finished, b"")
