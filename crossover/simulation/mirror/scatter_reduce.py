"""ScatterReduce: requests of a long worker to the shared store in a round, in the order of functions/scatter_reduce.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import (
    StoreConnection,
    build_models,
    check_first_round,
    exchange_sizes,
    finish_round,
    run_codec,
    simulate_arithmetic,
)
from crossover.simulation.mirror.long_worker import WorkerInvocation


def simulate_round(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate one ScatterReduce round of one worker, as a simpy process. With D bytes per gradient and W workers, a worker writes D bytes
    in W requests and reads 2 (W - 1) / W D bytes in 2 (W - 1) requests. If vectors that are not finite are dropped, each worker also writes
    its verdict, 4 W bytes, and reads those of the others. Compressed contributions are smaller. Raises Leave if the invocation must end
    first.
    """
    store, world, rank = StoreConnection(worker_call), worker_call.world, worker_call.place.worker
    workers, others = world.workers, world.workers - 1
    ((up, back),) = exchange_sizes(world)
    part, merged = up / workers, back / workers  # without the headers of chunks
    yield from check_first_round(worker_call, store)
    yield from worker_call.accumulate()
    yield from run_codec(worker_call)
    yield from store.put("store", others * part, others)
    yield from store.publish("chunks")
    yield from store.gather(
        "aggregate", "chunks", part, others, before=lambda last: last - int(last > rank) if last != rank else 0
    )
    if world.experiment.aggregation.non_finite == "drop":  # every worker drops those that any worker would drop
        yield from store.put("", 4 * workers)
        yield from store.publish("verdict")
        yield from store.gather(
            "aggregate", "verdict", 4 * workers, others, before=lambda last: max(0, (last - rank) % workers - 1)
        )
    yield from simulate_arithmetic(worker_call, "aggregate", (workers + 1) * merged)
    yield from store.put("", merged)
    yield from store.publish("merged")
    yield from store.gather(
        "synchronise", "merged", merged, others, before=lambda last: max(0, (last - rank) % workers - 1)
    )
    yield from finish_round(worker_call, store)


MODELS = build_models(simulate_round)
