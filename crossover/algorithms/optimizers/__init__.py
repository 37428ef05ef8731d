"""The optimizers that training.optimizer may name: one file each, and one line here, by which it is found."""

from crossover.algorithms.optimizers.adam import ADAM as ADAM
from crossover.algorithms.optimizers.adam import ADAMW as ADAMW
from crossover.algorithms.optimizers.optimizer import Optimizer
from crossover.algorithms.optimizers.sgd import SGD as SGD
from crossover.experiment import Training

OPTIMIZERS = {each.name: each for each in tuple(vars().values()) if isinstance(each, Optimizer)}


def vectors(training: Training) -> tuple[str, ...]:
    """What the experiment's optimizer keeps between steps."""
    return OPTIMIZERS[training.optimizer].vectors(training.momentum)
