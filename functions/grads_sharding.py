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
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.experiment import Experiment
from crossover.training import aggregation
from crossover.workflow import step


@dataclass(frozen=True, kw_only=True)
class Settings:
    parameters: Annotated[int, Ge(1), Le(2**32 - 1)] = 11_181_642  # of a client's gradient: ResNet-18's, ten classes
    shards: Annotated[int, Ge(1), Le(1_000)] = 4  # Step Functions lists no more side by side


def plan(experiment: Experiment) -> Plan:
    """One level: aggregator i has shard i of all clients."""
    settings = experiment.settings(Settings)
    return plans.sharded(settings.parameters, experiment.workers, shards=settings.shards)


@step(torch=True)
def send_gradient(ctx: Context, event: Event) -> None:
    """A client: its gradient, made, into the bucket."""
    aggregation.send(ctx, event, plan(ctx.experiment))


@step()
def open_level(ctx: Context, event: Event) -> Event:
    """How many aggregators the next level has."""
    return aggregation.open_level(event, plan(ctx.experiment))


@step(torch=True)
def aggregate(ctx: Context, event: Event) -> None:
    """The mean of one shard over all clients."""
    aggregation.aggregate(ctx, event, plan(ctx.experiment))


@step()
def collect(ctx: Context, event: Event) -> None:
    """The mean stays in the bucket; all that lay below it is deleted."""
    aggregation.collect(ctx, event, plan(ctx.experiment))


ARCHITECTURE = Architecture(
    "grads_sharding",
    run=aggregation.tree(send_gradient, open_level, aggregate, collect),
    aggregates=plan,
    settings=Settings,
    simulation="aggregation",
)
