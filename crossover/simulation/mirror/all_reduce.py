"""AllReduce: requests of a long worker to the shared store in a round, in the order of functions/all_reduce.py."""

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

MASTER = 0


def simulate_round(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate one AllReduce round of one worker, as a simpy process. With D bytes per gradient and W workers, a worker writes D and reads
    D bytes; the master writes 2 D and reads (W - 1) D. Compressed contributions are smaller. Raises Leave if the invocation must end first.
    """
    store = StoreConnection(worker_call)
    yield from check_first_round(worker_call, store)
    yield from worker_call.accumulate()
    yield from run_codec(worker_call)
    for number, (up, back) in enumerate(exchange_sizes(worker_call.world)):
        yield from _simulate_exchange(worker_call, store, f" {number}" if number else "", up, back)
    yield from finish_round(worker_call, store)


def _simulate_exchange(
    worker_call: WorkerInvocation, store: StoreConnection, which: str, up: int, back: int
) -> SimProcess:
    """Simulate one exchange of a round, as a simpy process: every worker stores its contribution, the master averages them, and the others
    read the result. `which`: suffix of the names under which vectors are published; `up`: bytes that every worker stores; `back`: bytes of
    the result.
    """
    world, rank, others = worker_call.world, worker_call.place.worker, worker_call.world.workers - 1
    yield from store.put("store", up)
    yield from store.publish(f"average{which}")
    if rank == MASTER:
        yield from store.gather("aggregate", f"average{which}", up, others, before=lambda last: max(0, last - 1))
        yield from simulate_arithmetic(worker_call, "aggregate", (others + 2) * back)
        yield from store.put("", back)
        merged = world.gate(f"merged{which}", worker_call.progress.round, needed=1)
        yield from worker_call.catch_up()
        if not merged.is_open:
            merged.arrive(world.env)
    else:
        merged = world.gate(f"merged{which}", worker_call.progress.round, needed=1)
        waited = yield from worker_call.wait_for(merged)
        worker_call.tally.count(store.channel, "get", worker_call.count_polls(waited, store.channel))
        yield from store.get("synchronise", back)
        worker_call.invocation.stages["synchronise"][0] += waited


MODELS = build_models(simulate_round)
