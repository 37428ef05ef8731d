"""Which programs take part in a run, and how they depend on one another."""

from crossover.architecture import Architecture, architecture_of
from crossover.experiment import Experiment


def instances_of(experiment: Experiment, architecture: Architecture) -> int:
    """How many instances a run's programs need, of which there is one per worker."""
    assert architecture.program is not None
    return architecture.program.instances(experiment).count


def goes_on_without(experiment: Experiment) -> bool:
    """Whether a program that fails leaves the others going: asynchronous peers only."""
    return experiment.module.startswith("p2p") and experiment.p2p.mode == "asynchronous"


def in_step(experiment: Experiment) -> int:
    """How many peers must all go on at the same round; 0: each where it stands, or as the tree's first step says."""
    architecture = architecture_of(experiment)
    return experiment.workers if architecture.program and not goes_on_without(experiment) else 0
