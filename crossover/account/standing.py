"""What an experiment costs by the hour while it stands, and has cost since it was deployed: from config/pricing.yaml, not from a bill."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossover.account.resources import stacks
from crossover.account.resources.stacks import StandingStack
from crossover.architecture.infrastructure import NETWORK, shared_stacks
from crossover.costs import billing, infrastructure, prices
from crossover.costs.billing import Line
from crossover.errors import UserError
from crossover.experiment import Experiment

HOUR_S = 3_600.0
LOOKS_AN_HOUR, STATES_A_LOOK = 4, 12  # of an expiry that looks at one experiment: cdk/expiry.py, whose tests count them


def lines(experiment: Experiment, *, running: bool = False) -> list[Line]:
    """One hour of everything that is billed for being there; `running`: with the fleet that only a run starts. Raises ConfigError."""
    listed, wanted = prices.load(), infrastructure.of(experiment)
    found: list[Line] = []
    for fleet in wanted.fleets:
        if fleet.purpose != infrastructure.DATABASE and not running:
            continue
        found += billing.fleet(listed, fleet, seconds=HOUR_S)
    found += [line for stack in shared_stacks(experiment) for line in shared_lines(experiment, stack)]
    if wanted.secrets:
        found += billing.secrets(listed, wanted.secrets, seconds=HOUR_S, calls=0)
    return [line for line in found if line.usd > 0]


def looks_usd() -> float:
    """An hour of the expiry's looks at one experiment: so little that it is told beside the lines."""
    return LOOKS_AN_HOUR * STATES_A_LOOK * prices.load().of("stepfunctions.transition").usd


def shared_lines(experiment: Experiment, stack: str) -> list[Line]:
    """The same of one shared stack. The network's endpoint stands there, whether these functions use it or not."""
    listed, wanted = prices.load(), infrastructure.of(experiment)
    if stack == NETWORK:
        return [billing.interface_endpoints(listed, 1, seconds=HOUR_S)]
    return [billing.broker(listed, kind, seconds=HOUR_S)] if (kind := wanted.broker_instance_type) else []


def usd(found: Iterable[Line]) -> float:
    return sum(line.usd for line in found)


def since(session: Any, experiment: Experiment, *, now: datetime) -> str:
    """Dollars an hour, and so far: each part of it from when its stack was made."""
    stack = stacks.look(session, f"{experiment.project}-{experiment.name}")
    if stack is None:
        return "costs nothing: the experiment is not deployed"
    shared = shared_stacks(experiment)
    included = f", shared {' and '.join(shared)} included" if shared else ""
    return (
        f"costs ${usd(lines(experiment)):.2f} an hour standing{included}; about "
        f"${so_far(experiment, stack, now=now):.2f} since it was first deployed, runs apart (prices of {prices.load().as_of})"
    )


def so_far(experiment: Experiment, stack: StandingStack, *, now: datetime) -> float:
    """Dollars that it has cost to stand there since it was made; deploying again does not begin anew."""
    return usd(lines(experiment)) * max(0.0, (now - stack.created).total_seconds() / HOUR_S)


def left_of_budget(experiment: Experiment, stack: StandingStack, *, now: datetime, config: Path) -> float:
    """Dollars that a run may cost. Raises UserError where standing there has used them up."""
    budget, spent = experiment.lifetime.budget_usd or 0.0, so_far(experiment, stack, now=now)
    if spent >= budget:
        raise UserError(
            f"lifetime.budget_usd: {budget:g} is spent: the experiment has cost about ${spent:.2f} since it was deployed; "
            f"crossover destroy {config} ends that, or set a larger one"
        )
    return budget - spent


def check_prices(session: Any, experiment: Experiment) -> None:
    """Raises UserError where a budget would brake by the prices of another region."""
    listed, region = prices.load(), session.client("sts").meta.region_name
    if experiment.lifetime.budget_usd is not None and region != listed.region:
        raise UserError(
            f"lifetime.budget_usd: config/pricing.yaml has the prices of {listed.region} ({listed.as_of}), and this is {region}: the "
            f"budget would brake too late or too early; crossover prices refresh --region {region} writes today's"
        )


def check_budget(session: Any, experiment: Experiment, *, config: Path) -> None:
    """Before a deployment. Raises UserError where the budget is spent, or does not last for the first hour."""
    budget = experiment.lifetime.budget_usd
    if budget is None:
        return
    check_prices(session, experiment)
    if stack := stacks.look(session, f"{experiment.project}-{experiment.name}"):
        left_of_budget(experiment, stack, now=datetime.now(UTC), config=config)
    elif (hour := usd(lines(experiment))) >= budget:
        raise UserError(
            f"lifetime.budget_usd: {budget:g} is less than the first hour costs, ${hour:.2f} before any run; set a larger one "
            f"(crossover plan {config} shows what costs)"
        )
