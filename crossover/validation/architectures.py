"""The architecture that an experiment names: found by its module's name, so that a new one needs no entry anywhere."""

from crossover import workflow
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.validation.documents import did_you_mean


def find(experiment: Experiment) -> workflow.Architecture:
    """The Architecture of `functions/` or `peers/`. Raises ConfigError naming those that exist."""
    try:
        return workflow.load(experiment.architecture)
    except ConfigError as error:
        near = did_you_mean(experiment.module, workflow.architectures())
        raise ConfigError(f"{error}{near}") from None
