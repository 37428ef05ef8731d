"""How many minibatches a worker computes side by side, as far as the YAML tells: it decides at synthesis how Maps are run."""

from crossover.experiment import Experiment
from crossover.workflow import Architecture, ForEach, trees, walk

TRAINING_SAMPLES = {"digits": 1_797, "mnist": 60_000, "cifar10": 50_000}  # as published, before a share is held out


def most_minibatches(experiment: Experiment) -> int | None:
    """The most in one round; None for a data set whose size only loading it would tell, which makes the Map distributed."""
    samples = TRAINING_SAMPLES.get(experiment.data.dataset)
    if samples is None:
        return None
    data, training = experiment.data, experiment.training
    if isinstance(data.validation, float):
        samples -= round(samples * data.validation)
    if data.limit:
        samples = min(samples, data.limit)
    most = -(-samples // experiment.workers)
    minibatches = max(1, -(-most // training.batch_size))
    return min(minibatches, training.sync_every) if isinstance(training.sync_every, int) else minibatches


def side_by_side(architecture: Architecture) -> bool:
    """Whether a Map goes over the minibatches of a round."""
    nodes = (node for tree in trees(architecture) for node in walk(tree))
    return any(isinstance(node, ForEach) and node.count == "minibatches" for node in nodes)
