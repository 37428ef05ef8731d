"""ScatterReduce: what a long worker asks of the shared store in a round, in the order of functions/scatter_reduce.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import Way, arithmetic, compressing, finish, models, once, travels
from crossover.simulation.mirror.long_worker import Life


def exchange(life: Life) -> SimProcess:
    """One round: D out in W puts, 2 (W - 1) / W D in by 2 (W - 1) gets."""
    way, world, rank = Way(life), life.world, life.place.worker
    workers, others = world.workers, world.workers - 1
    ((up, back),) = travels(world)
    part, merged = up / workers, back / workers  # the chunks' own headers apart
    yield from once(life, way)
    yield from life.accumulate()
    yield from compressing(life)
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
