"""AllReduce: what a long worker asks of the shared store in a round, in the order of functions/all_reduce.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import Way, arithmetic, compressing, finish, models, once, travels
from crossover.simulation.mirror.long_worker import Life

MASTER = 0


def exchange(life: Life) -> SimProcess:
    """One round: D out and D in; the master 2 D out and (W - 1) D in; less where contributions are compressed."""
    way = Way(life)
    yield from once(life, way)
    yield from life.accumulate()
    yield from compressing(life)
    for number, (up, back) in enumerate(travels(life.world)):
        yield from _one(life, way, f" {number}" if number else "", up, back)
    yield from finish(life, way)


def _one(life: Life, way: Way, which: str, up: int, back: int) -> SimProcess:
    """One of a round's exchanges: `up` bytes from every worker, `back` to all but the master."""
    world, rank, others = life.world, life.place.worker, life.world.workers - 1
    yield from way.put("store", up)
    way.publish(f"average{which}")
    if rank == MASTER:
        yield from way.gather("aggregate", f"average{which}", up, others, before=lambda last: max(0, last - 1))
        yield from arithmetic(life, "aggregate", (others + 2) * back)
        yield from way.put("", back)
        merged = world.gate(f"merged{which}", life.standing.round, needed=1)
        if not merged.open:
            merged.arrive(world.env)
    else:
        merged = world.gate(f"merged{which}", life.standing.round, needed=1)
        waited = yield from life.until(merged)
        life.tally.count(way.channel, "get", life.looks(waited, way.channel))
        yield from way.get("synchronise", back)
        life.invocation.stages["synchronise"][0] += waited


MODELS = models(exchange)
