"""LIFL: three levels of whole gradients. Leaves, middle aggregators and a top one, of a few inputs each.

Qi et al., "LIFL: A Lightweight, Event-driven Serverless Platform for Federated Learning" (MLSys 2024), as Barrak measured its hierarchy
through S3 (2026, arXiv 2604.22072): of 20 clients seven leaves of three, three middle ones, one top. LIFL's shared memory on one node is
not part of it.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from crossover.algorithms.aggregators import plan as plans
from crossover.algorithms.aggregators.plan import Plan
from crossover.architecture import Architecture
from crossover.experiment import Experiment
from crossover.training import aggregation


@dataclass(frozen=True, kw_only=True)
class LiflSettings:
    parameters: Annotated[int, Ge(1), Le(2**32 - 1)] = 11_181_642  # of a client's gradient: ResNet-18's, ten classes
    fan_in: Annotated[int, Ge(2)] = 3  # inputs of a leaf and of a middle aggregator


def plan(experiment: Experiment) -> Plan:
    """Three levels: groups of `fan_in`, groups of those, and all that are left."""
    settings = experiment.settings(LiflSettings)
    return plans.tree(settings.parameters, experiment.workers, groups=[settings.fan_in] * 2)


send_gradient, open_level, aggregate, collect = aggregation.steps(__name__, plan)
ARCHITECTURE = Architecture(
    "lifl",
    run=aggregation.tree(send_gradient, open_level, aggregate, collect),
    aggregates=plan,
    settings=LiflSettings,
    simulation="aggregation",
)
