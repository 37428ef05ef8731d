"""One worker in a function: the rounds of AllReduce without a store between workers, in the order of peers/single.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import build_models, simulate_arithmetic, update_parameters
from crossover.simulation.mirror.long_worker import WorkerInvocation


def simulate_round(worker_call: WorkerInvocation) -> SimProcess:
    """Simulate one round of a single worker, as a simpy process: its gradients, their mean, a read of earlier results if one is due, and
    the optimizer's step. It uses no tensor store. Raises Leave if the invocation must end first.
    """
    yield from worker_call.accumulate()
    yield from simulate_arithmetic(worker_call, "aggregate", 2 * worker_call.world.workload.vector_bytes)
    yield from worker_call.read_history()
    yield from update_parameters(worker_call)


MODELS = build_models(simulate_round)
