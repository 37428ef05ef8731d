"""One worker in a function: the rounds of AllReduce without a store between workers, in the order of peers/single.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import arithmetic, models, update_parameters
from crossover.simulation.mirror.long_worker import WorkerInvocation


def exchange(life: WorkerInvocation) -> SimProcess:
    """Simulate one round: the mean of one gradient, and the optimizer's step."""
    yield from life.accumulate()
    yield from arithmetic(life, "aggregate", 2 * life.world.workload.vector_bytes)
    yield from life.read_history()
    yield from update_parameters(life)


MODELS = models(exchange)
