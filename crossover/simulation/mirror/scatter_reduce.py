"""ScatterReduce: requests of a long worker to the shared store in a round, in the order of functions/scatter_reduce.py."""

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


def exchange(life: WorkerInvocation) -> SimProcess:
    """Simulate one round: D bytes out in W puts, 2 (W - 1) / W D bytes in by 2 (W - 1) gets."""
    way, world, rank = StoreConnection(life), life.world, life.place.worker
    workers, others = world.workers, world.workers - 1
    ((up, back),) = exchange_sizes(world)
    part, merged = up / workers, back / workers  # the chunks' own headers apart
    yield from check_first_round(life, way)
    yield from life.accumulate()
    yield from run_codec(life)
    yield from way.put("store", others * part, others)
    way.publish("chunks")
    yield from way.gather(
        "aggregate", "chunks", part, others, before=lambda last: last - int(last > rank) if last != rank else 0
    )
    if world.experiment.aggregation.non_finite == "drop":  # whom any worker would drop, all drop
        yield from way.put("", 4 * workers)
        way.publish("verdict")
        yield from way.gather(
            "aggregate", "verdict", 4 * workers, others, before=lambda last: max(0, (last - rank) % workers - 1)
        )
    yield from arithmetic(life, "aggregate", (workers + 1) * merged)
    yield from way.put("", merged)
    way.publish("merged")
    yield from way.gather(
        "synchronise", "merged", merged, others, before=lambda last: max(0, (last - rank) % workers - 1)
    )
    yield from finish(life, way)


MODELS = models(exchange)
