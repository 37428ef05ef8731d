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
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.experiment import Experiment
from crossover.training import aggregation
from crossover.workflow import step


@dataclass(frozen=True, kw_only=True)
class Settings:
    parameters: Annotated[int, Ge(1), Le(2**32 - 1)] = 11_181_642  # of a client's gradient: ResNet-18's, ten classes
    fan_in: Annotated[int, Ge(2)] = 3  # inputs of a leaf and of a middle aggregator


def plan(experiment: Experiment) -> Plan:
    """Three levels: groups of `fan_in`, groups of those, and all that are left."""
    settings = experiment.settings(Settings)
    return plans.tree(settings.parameters, experiment.workers, groups=[settings.fan_in] * 2)


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
    """The mean of a few whole gradients."""
    aggregation.aggregate(ctx, event, plan(ctx.experiment))


@step()
def collect(ctx: Context, event: Event) -> None:
    """The mean stays in the bucket; all that lay below it is deleted."""
    aggregation.collect(ctx, event, plan(ctx.experiment))


ARCHITECTURE = Architecture(
    "lifl",
    run=aggregation.tree(send_gradient, open_level, aggregate, collect),
    aggregates=plan,
    settings=Settings,
    simulation="aggregation",
)
