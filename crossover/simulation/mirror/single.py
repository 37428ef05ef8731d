"""One worker on a function: AllReduce's rounds without a store between them, in the order of peers/single.py."""

from crossover.simulation.kernel import SimProcess
from crossover.simulation.mirror.lambdaml import arithmetic, models, updated
from crossover.simulation.mirror.long_worker import Life


def exchange(life: Life) -> SimProcess:
    """One round: the mean of one gradient, and the step."""
    yield from life.accumulate()
    yield from arithmetic(life, "aggregate", 2 * life.world.workload.vector_bytes)
    yield from life.history()
    yield from updated(life)


MODELS = models(exchange)
