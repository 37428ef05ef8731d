"""Costs of a deployed experiment by the hour, and since its deployment: computed from config/pricing.yaml, not read from a bill."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.reports import bill, prices
from crossover.reports.bill import Line
from crossover.running import account
from crossover.running.account import DeployedStack
from crossover.workflow.infrastructure import NETWORK, shared_stacks

HOUR_S = 3_600.0
POLLS_AN_HOUR, STATES_A_POLL = (
    4,
    12,
)  # of the clean-up for one experiment, cdk/expiry_machine.py, whose tests count them


def list_hourly_costs(experiment: Experiment, *, running: bool = False) -> list[Line]:
    """Return a line for each part of the experiment's deployment that is billed by the hour, with its cost of one hour in dollars: fleets,
    then shared stacks, then secrets. Lines of 0 dollars are left out. `running`: whether to include instances that exist only during a run.
    Raises ConfigError if the architecture does not exist or a price is missing.
    """
    listed, wanted = prices.load(), bill.infrastructure_of(experiment)
    found: list[Line] = []
    for fleet in wanted.fleets:
        if fleet.purpose != bill.DATABASE and not running:
            continue
        found += bill.fleet_lines(listed, fleet, seconds=HOUR_S)
    found += [line for stack in shared_stacks(experiment) for line in list_shared_costs(experiment, stack)]
    if wanted.secrets:
        found += bill.secrets_lines(listed, wanted.secrets, seconds=HOUR_S, calls=0)
    return [line for line in found if line.usd > 0]


def usd_of_expiry_polls() -> float:
    """Return the dollars per hour for the state machine that checks whether one experiment's stack has expired. They are so low that
    `list_hourly_costs` leaves them out.
    """
    return POLLS_AN_HOUR * STATES_A_POLL * prices.load().of("stepfunctions.transition").usd


def list_shared_costs(experiment: Experiment, stack: str) -> list[Line]:
    """Return a line with the cost of one hour of the shared stack `stack`, network or broker; none for a broker that the experiment does
    not need. The network's endpoint is billed even if the experiment's functions do not use it.
    """
    listed, wanted = prices.load(), bill.infrastructure_of(experiment)
    if stack == NETWORK:
        return [bill.endpoints_line(listed, 1, seconds=HOUR_S)]
    return [bill.broker_line(listed, kind, seconds=HOUR_S)] if (kind := wanted.broker_instance_type) else []


def sum_usd(found: Iterable[Line]) -> float:
    """Return the sum of the cost lines `found`, in dollars."""
    return sum(line.usd for line in found)


def describe_costs(session: Any, experiment: Experiment, *, now: datetime) -> str:
    """Return a sentence with the dollars that the deployed experiment costs per hour, and has cost until `now` since its stack was created;
    or that it is not deployed.

    `session`: finds the stack.
    """
    stack = account.find_stack(session, f"{experiment.project}-{experiment.name}")
    if stack is None:
        return "costs nothing: the experiment is not deployed"
    shared = shared_stacks(experiment)
    included = f", shared {' and '.join(shared)} included" if shared else ""
    return (
        f"costs ${sum_usd(list_hourly_costs(experiment)):.2f} an hour while deployed{included}; about "
        f"${usd_since_deployment(experiment, stack, now=now):.2f} since it was first deployed, without runs ({prices.load().basis})"
    )


def usd_since_deployment(experiment: Experiment, stack: DeployedStack, *, now: datetime) -> float:
    """Return the dollars that the deployment of the experiment has cost from the creation of `stack` to `now`, without its runs. An update
    of the stack does not change the start.
    """
    return sum_usd(list_hourly_costs(experiment)) * max(0.0, (now - stack.created).total_seconds() / HOUR_S)


def find_budget_left(experiment: Experiment, stack: DeployedStack, *, now: datetime, config: Path | str) -> float:
    """Return the dollars that a run of the experiment may still cost: its budget less the cost of the deployment from the creation of
    `stack` to `now`.

    Raises UserError if the deployment itself has used up the budget. `config`: the configuration's path, shown in the message. An
    experiment without a budget counts as one whose budget is 0: call this only if it has one.
    """
    budget, spent = experiment.lifetime.budget_usd or 0.0, usd_since_deployment(experiment, stack, now=now)
    if spent >= budget:
        raise UserError(
            f"lifetime.budget_usd: {budget:g} is spent: the experiment has cost about ${spent:.2f} since it was deployed; "
            f"crossover destroy {config} ends these costs, or set a larger budget"
        )
    return budget - spent


def check_prices(session: Any, experiment: Experiment) -> None:
    """Raise UserError if the experiment has a budget and config/pricing.yaml has the prices of another region than the session's."""
    listed, region = prices.load(), session.client("sts").meta.region_name
    if experiment.lifetime.budget_usd is not None and region != listed.region:
        raise UserError(
            f"lifetime.budget_usd: config/pricing.yaml has the prices of {listed.region} ({listed.as_of}), and this is {region}: the "
            f"budget would end runs too late or too early; crossover prices refresh --region {region} writes today's"
        )


def check_budget(session: Any, experiment: Experiment, *, config: Path | str) -> None:
    """Raise UserError if the experiment's budget is already spent on its deployment, does not cover the first hour of a new deployment, or
    cannot be checked because the prices are of another region. Does nothing without a budget.

    `session`: finds the stack; `config`: the configuration's path, shown in the message.
    """
    budget = experiment.lifetime.budget_usd
    if budget is None:
        return
    check_prices(session, experiment)
    if stack := account.find_stack(session, f"{experiment.project}-{experiment.name}"):
        find_budget_left(experiment, stack, now=datetime.now(UTC), config=config)
    elif (hour := sum_usd(list_hourly_costs(experiment))) >= budget:
        raise UserError(
            f"lifetime.budget_usd: {budget:g} is less than the first hour costs, ${hour:.2f} before any run; set a larger budget "
            f"(crossover plan {config} shows the costs)"
        )
