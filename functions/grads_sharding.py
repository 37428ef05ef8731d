"""GradsSharding: every client's gradient is cut into shards, and an aggregator averages one shard of all clients.

Barrak, "Shard the Gradient, Scale the Model: Serverless Federated Aggregation via Gradient Partitioning" (2026, arXiv 2604.22072): one
level, so nobody waits for anybody, and a function holds two shards, however large the model.
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
class GradsShardingSettings:
    parameters: Annotated[int, Ge(1), Le(2**32 - 1)] = 11_181_642  # of a client's gradient: ResNet-18's, ten classes
    shards: Annotated[int, Ge(1), Le(1_000)] = 4  # Step Functions lists no more side by side


def plan(experiment: Experiment) -> Plan:
    """One level: aggregator i has shard i of all clients."""
    settings = experiment.settings(GradsShardingSettings)
    return plans.sharded(settings.parameters, experiment.workers, shards=settings.shards)


send_gradient, open_level, aggregate, collect = aggregation.steps(__name__, plan)
ARCHITECTURE = Architecture(
    "grads_sharding",
    run=aggregation.tree(send_gradient, open_level, aggregate, collect),
    aggregates=plan,
    settings=GradsShardingSettings,
    simulation="aggregation",
)
