"""What stands around an experiment's functions and bucket, read off its YAML and its architecture's tree: for templates, bills and commands
alike.
"""

from crossover.architecture import Architecture, architecture_of, steps, trees
from crossover.experiment import Experiment
from crossover.learning import sizes
from crossover.workflow import ForEach, walk

NETWORK, BROKER = "network", "broker"  # stacks that a project's experiments share


def talks(architecture: Architecture) -> bool:
    """Whether anybody sends messages: a step that declares it, or peers."""
    program = architecture.program
    return (program is not None and program.talks) or any("bus" in step.uses for step in steps(architecture))


def database_hosts(experiment: Experiment, architecture: Architecture) -> int:
    """How many. Exchanges may go through the bucket alone; MLLess, whose supervisor has a bus, keeps its host."""
    if architecture.tensor_hosts == "shared" and experiment.storage.channel == "s3" and not talks(architecture):
        return 0
    return {"per_worker": experiment.workers, "shared": 1, "none": 0}[architecture.tensor_hosts]


def shared_stacks(experiment: Experiment, architecture: Architecture | None = None) -> tuple[str, ...]:
    """The shared stacks that the experiment needs, in the order in which they need one another; () for one that stands alone: functions
    outside any network, and a bucket. Raises ConfigError for an architecture that does not exist.
    """
    architecture = architecture or architecture_of(experiment)
    if talks(architecture):
        return (NETWORK, BROKER)
    if architecture.program is not None or database_hosts(experiment, architecture):
        return (NETWORK,)
    return ()


def most_minibatches(experiment: Experiment) -> int | None:
    """The most in one round, or aggregators in a level; None for a data set whose size only loading it would tell, which makes the Map
    distributed.
    """
    if aggregates := architecture_of(experiment).aggregates:
        return aggregates(experiment).widest
    if experiment.exchange.what != "gradients":
        return 1  # one function takes the steps of a round
    found, every = sizes.split(experiment), experiment.exchange.every
    if found is None:
        return None
    most = -(-found[0] // experiment.workers)
    minibatches = max(1, -(-most // experiment.training.batch_size))
    return min(minibatches, every) if isinstance(every, int) else minibatches


def side_by_side(architecture: Architecture) -> bool:
    """Whether a Map goes over the minibatches of a round."""
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    return any(isinstance(node, ForEach) and node.count == "minibatches" for node in nodes)
