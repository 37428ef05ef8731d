"""How long a first deployment takes, stack by stack: estimates until a real account has shown them (docs/aws.md)."""

from crossover.architecture.infrastructure import shared_stacks
from crossover.experiment import Experiment
from crossover.training.baselines import companions

EXPECTED_MINUTES = {"network": 4, "broker": 18, "experiment": 6}
ALONE_MINUTES = 2  # of an experiment without network, hosts and fleets


def expected_minutes(experiment: Experiment) -> dict[str, int]:
    """By stack, in the order of deployment; baselines come before their experiment."""
    found: dict[str, int] = {}
    for each in (*companions(experiment), experiment):
        shared = shared_stacks(each)
        found |= {f"{each.project}-{part}": EXPECTED_MINUTES[part] for part in shared}
        found[f"{each.project}-{each.name}"] = EXPECTED_MINUTES["experiment"] if shared else ALONE_MINUTES
    return found
