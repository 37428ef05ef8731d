"""AllReduce: requests of a long worker to the shared store in a round, in the order of functions/all_reduce.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import (
    StoreConnection,
    arithmetic,
    check_first_round,
    exchange_sizes,
    finish,
    models,
    run_codec,
)
from crossover.simulation.mirror.long_worker import WorkerInvocation

MASTER = 0


def exchange(life: WorkerInvocation) -> SimProcess:
    """Simulate one round: D bytes out and D in; for the master 2 D out and (W - 1) D in; less if contributions are compressed."""
    way = StoreConnection(life)
    yield from check_first_round(life, way)
    yield from life.accumulate()
    yield from run_codec(life)
    for number, (up, back) in enumerate(exchange_sizes(life.world)):
        yield from _one(life, way, f" {number}" if number else "", up, back)
    yield from finish(life, way)


def _one(life: WorkerInvocation, way: StoreConnection, which: str, up: int, back: int) -> SimProcess:
    """Simulate one of a round's exchanges. `which`: suffix of its gates; `up`: bytes from every worker; `back`: bytes to all but the
    master.
    """
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
        waited = yield from life.wait_for(merged)
        life.tally.count(way.channel, "get", life.count_polls(waited, way.channel))
        yield from way.get("synchronise", back)
        life.invocation.stages["synchronise"][0] += waited


MODELS = models(exchange)
