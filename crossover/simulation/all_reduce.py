"""AllReduce: what a long worker asks of the shared store in a round, in the order of functions/all_reduce.py."""

from crossover.simulation.kernel import Process
from crossover.simulation.lambdaml import Way, arithmetic, finish, models, once
from crossover.simulation.long_worker import Life

MASTER = 0


def exchange(life: Life) -> Process:
    """One round: D out and D in; the master 2 D out and (W - 1) D in."""
    way, world, rank = Way(life), life.world, life.place.worker
    size, others = world.workload.vector_bytes, world.workers - 1
    yield from once(life, way)
    yield from life.accumulate()
    yield from way.put("store", size)
    way.publish("average")
    if rank == MASTER:
        yield from way.gather("aggregate", "average", size, others, before=lambda last: max(0, last - 1))
        yield from arithmetic(life, "aggregate", (others + 2) * size)
        yield from way.put("", size)
        merged = world.gate("merged", life.standing.round, needed=1)
        if not merged.open:
            merged.arrive(world.env)
    else:
        merged = world.gate("merged", life.standing.round, needed=1)
        waited = yield from life.until(merged)
        life.tally.count(way.channel, "get", life.looks(waited, way.channel))
        yield from way.get("synchronise", size)
        life.invocation.stages["synchronise"][0] += waited
    yield from finish(life, way)


MODELS = models(exchange)
