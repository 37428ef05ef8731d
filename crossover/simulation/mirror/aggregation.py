"""Aggregation by shards, a tree or levels: what each step asks of the bucket, in the order of crossover/training/aggregation.py."""

from typing import cast

from crossover.algorithms.aggregators.plan import Plan
from crossover.simulation.kernel import Phase
from crossover.simulation.usage import Tally, WhereInRun
from crossover.simulation.workload import VECTOR_HEADER_BYTES, Workload
from crossover.simulation.world import Model, Script, World

MADE_PER_BYTE = 10  # bytes that making a gradient reads and writes for each of its own: five passes over 4-byte numbers


def workload(plan: Plan) -> Workload:
    """Of gradients alone: no model, no data."""
    return Workload(
        model=plan.words,
        parameters=plan.elements,
        buffers=0,
        macs=0,
        samples=(1,) * plan.widest,
        image_bytes=0,
        validation_samples=0,
    )


def plan_of(world: World) -> Plan:
    aggregates = world.architecture.aggregates
    assert aggregates is not None, "an architecture that trains has a model of its own"
    if "plan" not in world.state:
        world.state["plan"] = aggregates(world.experiment)
    return cast(Plan, world.state["plan"])


def send_gradient(world: World, place: WhereInRun) -> Script:
    plan, objects = plan_of(world), world.objects("send_gradient")
    sent = plan.gradient_bytes + plan.parts * VECTOR_HEADER_BYTES
    tally = Tally().count("objects", "put", plan.parts, out=sent).count("objects", "exists")
    made_s = world.arithmetic_s(MADE_PER_BYTE * plan.gradient_bytes, "send_gradient")
    stored_s = objects.write.seconds(sent, plan.parts) + objects.read.latency_s
    return Script((Phase("compute", compute_s=made_s), Phase("store", request_s=stored_s)), tally)


def open_level(world: World, place: WhereInRun) -> Script:
    return Script((), Tally())


def opened(world: World, place: WhereInRun) -> None:
    levels = plan_of(world).levels
    place.round += 1
    place.minibatches, place.finished = len(levels[place.round - 1]), place.round == len(levels)


def aggregate(world: World, place: WhereInRun) -> Script:
    """One input after another is read and added; then the sum is divided and written."""
    plan, objects = plan_of(world), world.objects("aggregate")
    mine = plan.levels[place.round - 1][place.minibatch]
    inputs, part = len(mine.inputs), plan.part_bytes(mine.part)
    read, written = inputs * (part + VECTOR_HEADER_BYTES), part + VECTOR_HEADER_BYTES
    tally = Tally().count("objects", "get", inputs, into=read).count("objects", "put", out=written)
    return Script(
        (
            Phase("fetch", request_s=objects.read.seconds(read, inputs)),
            Phase("aggregate", compute_s=world.arithmetic_s((inputs + 1) * part, "aggregate")),
            Phase("store", request_s=objects.write.seconds(written)),
        ),
        tally,
    )


def collect(world: World, place: WhereInRun) -> Script:
    levels = len(plan_of(world).levels)
    tally = Tally().count("objects", "put", 2)
    tally.count("objects", "list", levels).count("objects", "delete", levels)
    objects = world.objects("collect")
    asked_s = 2 * objects.write.latency_s + 2 * levels * objects.read.latency_s
    return Script((Phase("collect", request_s=asked_s),), tally)


MODELS = {
    "send_gradient": Model(script=send_gradient),
    "open_level": Model(script=open_level, changes=opened),
    "aggregate": Model(script=aggregate),
    "collect": Model(script=collect),
}
