"""How many minibatches a worker computes side by side, as far as the YAML tells: it decides at synthesis how Maps are run."""

from crossover.experiment import Experiment
from crossover.learning import sizes
from crossover.workflow import Architecture, ForEach, trees, walk


def most_minibatches(experiment: Experiment) -> int | None:
    """The most in one round; None for a data set whose size only loading it would tell, which makes the Map distributed."""
    found, training = sizes.split(experiment), experiment.training
    if found is None:
        return None
    most = -(-found[0] // experiment.workers)
    minibatches = max(1, -(-most // training.batch_size))
    return min(minibatches, training.sync_every) if isinstance(training.sync_every, int) else minibatches


def side_by_side(architecture: Architecture) -> bool:
    """Whether a Map goes over the minibatches of a round."""
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    return any(isinstance(node, ForEach) and node.count == "minibatches" for node in nodes)
