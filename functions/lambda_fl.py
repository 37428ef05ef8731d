"""Lambda-FL: a tree of two levels. Leaves average some clients' whole gradients each, and a root averages the leaves.

Jayaram et al., "lambda-FL: Serverless Aggregation for Federated Learning" (2022), as Barrak measured it beside his own design
(2026, arXiv 2604.22072): four leaves of five clients, and a root. Every function holds two whole gradients.
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
class LambdaFlSettings:
    parameters: Annotated[int, Ge(1), Le(2**32 - 1)] = 11_181_642  # of a client's gradient: ResNet-18's, ten classes
    leaves: Annotated[int, Ge(1)] = 4


def plan(experiment: Experiment) -> Plan:
    """Two levels: the leaves share the clients; the root has all leaves."""
    settings = experiment.settings(LambdaFlSettings)
    return plans.tree(settings.parameters, experiment.workers, groups=[-(-experiment.workers // settings.leaves)])


send_gradient, open_level, aggregate, collect = aggregation.steps(__name__, plan)
ARCHITECTURE = Architecture(
    "lambda_fl",
    run=aggregation.tree(send_gradient, open_level, aggregate, collect),
    aggregates=plan,
    settings=LambdaFlSettings,
    simulation="aggregation",
)
