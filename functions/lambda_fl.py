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
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.experiment import Experiment
from crossover.training import aggregation
from crossover.workflow import step


@dataclass(frozen=True, kw_only=True)
class Settings:
    parameters: Annotated[int, Ge(1), Le(2**32 - 1)] = 11_181_642  # of a client's gradient: ResNet-18's, ten classes
    leaves: Annotated[int, Ge(1)] = 4


def plan(experiment: Experiment) -> Plan:
    """Two levels: the leaves share the clients; the root has all leaves."""
    settings = experiment.settings(Settings)
    return plans.tree(settings.parameters, experiment.workers, groups=[-(-experiment.workers // settings.leaves)])


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
    """The mean of some whole gradients, or of the leaves."""
    aggregation.aggregate(ctx, event, plan(ctx.experiment))


@step()
def collect(ctx: Context, event: Event) -> None:
    """The mean stays in the bucket; all that lay below it is deleted."""
    aggregation.collect(ctx, event, plan(ctx.experiment))


ARCHITECTURE = Architecture(
    "lambda_fl",
    run=aggregation.tree(send_gradient, open_level, aggregate, collect),
    aggregates=plan,
    settings=Settings,
    simulation="aggregation",
)
