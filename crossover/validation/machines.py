"""What Step Functions cannot do for a tree: lists too long, histories too short."""

from collections.abc import Iterator

from crossover.architecture import Architecture, trees
from crossover.architecture.infrastructure import most_minibatches, side_by_side
from crossover.asl.limits import ARRAY_LIMIT, HISTORY_LIMIT
from crossover.experiment import Experiment
from crossover.workflow import Repeat, Step, walk

_EVENTS = 7  # of an invocation and the question whether another one follows
_OTHER_EVENTS = 1_000


def minibatches_fit_a_list(e: Experiment, architecture: Architecture) -> Iterator[str]:
    most = most_minibatches(e)
    if most is None or most <= ARRAY_LIMIT or not side_by_side(architecture):
        return
    yield too_many(e, most)


def too_many(e: Experiment, minibatches: int) -> str:
    """What is told of a round in which a worker has so many of them."""
    fewest = -(-minibatches * e.training.batch_size // ARRAY_LIMIT)
    return (
        f"training.batch_size: {e.training.batch_size} gives a worker {minibatches:,} minibatches in a round, and Step Functions lists at "
        f"most {ARRAY_LIMIT:,} side by side; expected at least {fewest}, more workers, or exchange.every of at most {ARRAY_LIMIT}"
    )


def invocations_fit_a_history(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Steps that go on in the next invocation until a flag is set, each until shortly before its time limit."""
    loops = [
        node for tree in trees(architecture) for node in walk(tree) if isinstance(node, Repeat) and not node.every_s
    ]
    if not any(isinstance(node.body, Step) for node in loops):
        return
    turn_s = 0.9 * e.functions.timeout_s
    turns = (HISTORY_LIMIT - _OTHER_EVENTS) / _EVENTS
    most_hours = turns * turn_s / 3_600
    if e.lifetime.maximum_run_hours <= most_hours:
        return
    timeout_s = -(-e.lifetime.maximum_run_hours * 3_600 // (0.9 * turns))
    other = f", or functions.timeout_s of at least {timeout_s:.0f}" if timeout_s <= 900 else ""
    yield (
        f"lifetime.maximum_run_hours: {e.lifetime.maximum_run_hours:g} hours of invocations of {e.functions.timeout_s} s leave more than "
        f"the {HISTORY_LIMIT:,} events that Step Functions keeps of one execution; expected at most {most_hours:.1f}{other}"
    )
