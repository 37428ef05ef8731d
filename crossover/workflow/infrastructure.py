"""The infrastructure around an experiment's functions and bucket, derived from its YAML and its architecture's tree: for templates,
bills and commands.
"""

from crossover.experiment import Experiment
from crossover.learning import sizes
from crossover.workflow import ForEach, Repeat, Step, walk
from crossover.workflow.architecture import Architecture, architecture_of, steps, trees

NETWORK, BROKER = "network", "broker"  # stacks that a project's experiments share


def uses_bus(architecture: Architecture) -> bool:
    """Return whether the architecture needs the message bus: one of its steps declares it, or its program does."""
    program = architecture.program
    return (program is not None and program.uses_bus) or any("bus" in step.uses for step in steps(architecture))


def database_hosts(experiment: Experiment, architecture: Architecture) -> int:
    """Return the number of database hosts that the experiment needs: one per worker, one, or none, by the architecture.

    A shared host is not needed if vectors go through the bucket (`storage.channel: s3`). MLLess, which also uses the bus, keeps its host.
    """
    if architecture.tensor_hosts == "shared" and experiment.storage.channel == "s3" and not uses_bus(architecture):
        return 0
    return {"per_worker": experiment.workers, "shared": 1, "none": 0}[architecture.tensor_hosts]


def shared_stacks(experiment: Experiment, architecture: Architecture | None = None) -> tuple[str, ...]:
    """Return the names of the shared stacks (network, broker) that the experiment needs, in the order of deployment; () if it needs none.

    `architecture`: if None, that of the experiment. Raises ConfigError for an architecture that does not exist.
    """
    architecture = architecture or architecture_of(experiment)
    if uses_bus(architecture):
        return (NETWORK, BROKER)
    if architecture.program is not None or database_hosts(experiment, architecture):
        return (NETWORK,)
    return ()


def most_minibatches(experiment: Experiment) -> int | None:
    """Return the largest number of minibatches that one worker computes side by side in a round, or None if that is known only after
    loading the data set.

    It is 1 with local steps. None makes the state machine's Map distributed. Raises ConfigError if the split of the data leaves one part
    empty.
    """
    if experiment.exchange.what != "gradients":
        return 1  # one function takes the steps of a round
    found, every = sizes.count_split(experiment), experiment.exchange.every
    if found is None:
        return None
    most = -(-found[0] // experiment.workers)
    minibatches = max(1, -(-most // experiment.training.batch_size))
    return min(minibatches, every) if isinstance(every, int) else minibatches


def has_minibatch_map(architecture: Architecture) -> bool:
    """Return whether the architecture computes the minibatches of a round side by side, with a ForEach over them in one of its trees."""
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    return any(isinstance(node, ForEach) and node.count == "minibatches" for node in nodes)


def has_invocation_loop(architecture: Architecture) -> bool:
    """Return whether the architecture has long workers: a step that is invoked again and again, each time from the last checkpoint on."""
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    return any(isinstance(node, Repeat) and not node.every_s and isinstance(node.body, Step) for node in nodes)
