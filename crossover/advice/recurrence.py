"""Monthly cost of repeated training: deployed each time, left deployed, or on a machine that runs anyway."""

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from crossover.advice.advice import Advice, Sooner, is_this_machine_best, list_missed_constraints, rivals_of
from crossover.advice.search import Finalist
from crossover.experiment import Experiment
from crossover.reports import bill, display

HOURS_BETWEEN: Mapping[str, float] = {
    "hour": 1.0,
    "day": 24.0,
    "week": 168.0,
    "month": 730.0,
}  # a month as AWS bills it


@dataclass(frozen=True)
class HourlyCost:
    """The dollars per hour of a deployed experiment, without functions: `standing_usd` between runs; `machine_usd`: the instances that
    exist only during a run, without CPU credits; `endpoint_usd`: the part of `standing_usd` that AWS bills by started hours; `checks_usd`:
    the checks whether it has expired, in none of the others.
    """

    standing_usd: float
    machine_usd: float
    endpoint_usd: float = 0.0
    checks_usd: float = 0.0


WAYS_HEAD = ["way", "a month", "ready in", "why not"]


@dataclass(frozen=True)
class MonthlyCost:
    """The monthly cost of one way to train again and again. `way`: the way, in words; `usd`: dollars per month; `parts`: what these consist
    of, in words; `ready_s`: seconds until the model is ready, start-up included; `why_not`: what speaks against it, "" for the best way;
    `in_time`: False if a run takes longer than the time between two runs; `of_winner`: whether it trains on the advice's winner; `stays`:
    whether the stack stays deployed between runs.
    """

    way: str
    usd: float
    parts: str
    ready_s: float = 0.0
    why_not: str = ""
    in_time: bool = True  # False: a run takes longer than the time between two of them
    of_winner: bool = False
    stays: bool = False

    @property
    def figures(self) -> tuple[str, str]:
        """The dollars a month and the time until the model is ready, as texts of two significant digits."""
        return display.rough_usd(self.usd), display.rough_seconds(self.ready_s)

    @property
    def words(self) -> str:
        """One line with the way, its monthly cost, its time, and what speaks against it."""
        against = f". Why not: {self.why_not}" if self.why_not else ""
        dollars, ready = self.figures
        return f"{self.way}: {dollars} a month, ready in {ready} ({self.parts}){against}"


def monthly_costs(
    found: Advice, every: str, *, hourly_cost: Callable[[Experiment], HourlyCost]
) -> tuple[MonthlyCost, ...]:
    """Return the monthly cost of each way to train repeatedly: on the winner of the advice `found`, deployed each time or left deployed; on
    the best candidate of each other kind of machine; on a machine that runs already (if a candidate uses a single one); and on this machine
    (if it was measured). The way that the advice takes comes first, then those that are in time, the cheapest of them first; empty if the
    model is trained only once.

    `every`: "hour", "day", "week", "month" or "once"; `hourly_cost`: returns the hourly dollars of a deployed experiment.
    """
    if every == "once":
        return ()
    between_s, winner = HOURS_BETWEEN[every] * 3_600, found.winner
    ways = [
        _price_new_deployments(found, winner, every, hourly_cost),
        _price_lasting_deployment(found, winner, every, hourly_cost),
    ]
    for rival in rivals_of(found):
        pair = [each(found, rival, every, hourly_cost) for each in (_price_new_deployments, _price_lasting_deployment)]
        ways.append(min(pair, key=_sort_key))
    if (machine := _cheapest_machine(found)) is not None:
        alone_usd = found.question.prices.hours_per_month * hourly_cost(_experiment_of(found, machine)).machine_usd
        idle = display.rough_seconds(machine.running.p50)
        ways.append(
            MonthlyCost(
                f"a {machine.candidate.instance} that you already have running, its price not counted",
                0.0,
                f"{display.rough_usd(alone_usd)} if you rent it all month only for this",
                machine.running.p50,
                f"needs such a machine, idle for {idle} each {every}",
                machine.running.p50 <= between_s,
            )
        )
    if found.here is not None:
        in_time = found.here.seconds <= between_s
        way = "this machine, its own price not counted"
        ways.append(MonthlyCost(way, 0.0, "nothing to pay to AWS", found.here.seconds, in_time=in_time))
    best_way = (
        ways[-1] if is_this_machine_best(found) else min((each for each in ways if each.of_winner), key=_sort_key)
    )
    return tuple(
        replace(each, why_not="" if each is best_way else _explain_against(each, best_way, every))
        for each in sorted(ways, key=lambda each: (each is not best_way, *_sort_key(each)))
    )


def _sort_key(each: MonthlyCost) -> tuple[bool, float]:
    """Return a sort key for ways: those that are in time first, the cheapest of them first."""
    return not each.in_time, each.usd


def _explain_against(each: MonthlyCost, best: MonthlyCost, every: str) -> str:
    """Return in words what speaks against a way in comparison with the best one; never empty. `every`: "hour", "day", "week" or "month"."""
    found = [] if each.in_time else [f"a run takes longer than the {every} between two runs"]
    found += [each.why_not] if each.why_not else []
    if each.usd > best.usd:
        found.append(f"{display.times(each.usd / best.usd)} the dollars" if best.usd else "costs dollars")
    if each.ready_s > best.ready_s:
        found.append(f"{display.times(each.ready_s / best.ready_s)} the time")
    return ", ".join(found) or "the advice is chosen by the dollars and time of one run"


def _experiment_of(found: Advice, finalist: Finalist) -> Experiment:
    """Return the experiment that the shortlisted candidate trains."""
    return found.question.task(finalist.candidate).experiment


def _describe_missed(found: Advice, finalist: Finalist) -> str:
    """Return `misses` and which of the deadline and the budget the candidate misses at the 95th percentile, such as `misses the deadline
    and the budget`; "" if it misses neither, or if the advice's winner does not keep to them itself (`met` is False).
    """
    missed = list_missed_constraints(found, finalist) if found.met else {}
    return f"misses {' and '.join(missed)}" if missed else ""


def _format_runs(found: Advice, every: str, usd: float) -> str:
    """Return the number of runs a month and the dollars of each in words, such as `730 runs of 1.2 cents each`. `every`: "hour", "day" or
    "week"; `usd`: dollars of one run.
    """
    runs = count_runs(found, every)
    return f"{f'{runs:,.0f}' if runs >= 100 else f'{runs:.1f}'} runs of {display.rough_usd(usd)} each"


def _price_new_deployments(
    found: Advice, finalist: Finalist, every: str, hourly_cost: Callable[[Experiment], HourlyCost]
) -> MonthlyCost:
    """Return the monthly cost of deploying, training and destroying each time. `finalist`: the candidate to train on; `every`: "hour",
    "day", "week" or "month"; `hourly_cost`: returns the hourly dollars of a deployed experiment.
    """
    hourly, deployed_h = hourly_cost(_experiment_of(found, finalist)), finalist.seconds.p50 / 3_600
    started_h = math.ceil(deployed_h) - math.ceil(
        finalist.running.p50 / 3_600
    )  # of the endpoint, in addition to those of the run
    once_usd = finalist.usd.p50 + hourly.endpoint_usd * started_h
    once_usd += (hourly.standing_usd - hourly.endpoint_usd) * finalist.before_s / 3_600
    return MonthlyCost(
        f"{finalist.candidate.words}, deployed and destroyed each time",
        count_runs(found, every) * once_usd,
        f"{_format_runs(found, every, once_usd)}, start-up included",
        finalist.seconds.p50,
        _describe_missed(found, finalist),
        finalist.seconds.p50 <= HOURS_BETWEEN[every] * 3_600,
        of_winner=finalist is found.winner,
    )


def _price_lasting_deployment(
    found: Advice, finalist: Finalist, every: str, hourly_cost: Callable[[Experiment], HourlyCost]
) -> MonthlyCost:
    """Return the monthly cost of a stack that stays deployed between runs. `finalist`: the candidate to train on; `every`: "hour", "day" or
    "week"; `hourly_cost`: returns the hourly dollars of a deployed experiment.
    """
    hourly = hourly_cost(_experiment_of(found, finalist))
    stays_usd = (hourly.standing_usd + hourly.checks_usd) * found.question.prices.hours_per_month
    run_h = finalist.running.p50 / 3_600  # of which the run's bill has what stays deployed, too
    counted_usd = (hourly.standing_usd - hourly.endpoint_usd) * run_h + hourly.endpoint_usd * math.ceil(run_h)
    run_usd = max(0.0, finalist.usd.p50 - counted_usd)
    around = bill.infrastructure_of(_experiment_of(found, finalist))
    ready_s = finalist.running.p50 + max(
        (each.boot_s for each in around.fleets), default=0.0
    )  # they start for each run
    return MonthlyCost(
        f"{finalist.candidate.words}, left deployed between runs ({_describe_idle(around)})",
        stays_usd + count_runs(found, every) * run_usd,
        f"{display.rough_usd(stays_usd)} even if nothing trains, and {_format_runs(found, every, run_usd)}; with "
        "lifetime.ttl_hours: 720 in its file it must be deployed again every 30 days",
        ready_s,
        _describe_missed(found, finalist),
        ready_s <= HOURS_BETWEEN[every] * 3_600,
        of_winner=finalist is found.winner,
        stays=True,
    )


def _describe_idle(around: bill.Infrastructure) -> str:
    """Return in words which machines of a deployed experiment run between two runs. `around`: its infrastructure."""
    hosts = any(each.purpose == bill.DATABASE for each in around.fleets)
    running = [*(["database hosts"] if hosts else []), *(["broker"] if around.broker_instance_type else [])]
    return f"its {' and '.join(running)} run on meanwhile" if running else "no instance runs meanwhile"


def count_runs(found: Advice, every: str) -> float:
    """Return the mean number of runs a month, which may be a fraction. `every`: "hour", "day", "week" or "month"; KeyError for "once"."""
    return found.question.prices.hours_per_month / HOURS_BETWEEN[every]


def find_winner(monthly: Sequence[MonthlyCost]) -> MonthlyCost | None:
    """Return the best way to train repeatedly on the advice's winner; None if it is trained only once. `monthly`: from `monthly_costs`."""
    return min((each for each in monthly if each.of_winner), key=_sort_key, default=None)


LITTLE_USD = 1.0  # a month, or a run if there is one: less than a minute of somebody who waits for the model
LITTLE_SHARE = 0.2  # of the winner's dollars, which is little at any price
MUCH_SOONER = 0.5  # of the winner's time


def find_sooner(found: Advice, every: str, *, hourly_cost: Callable[[Experiment], HourlyCost]) -> Sooner | None:
    """Return the cheapest of the written candidates that takes at most MUCH_SOONER of the winner's time and at most LITTLE_USD, or
    LITTLE_SHARE of the winner's dollars, more; None if there is none, or if the advice is this machine. It keeps to deadline and budget if
    the winner does, and needs no quota that the winner needs not.

    `every`: "hour", "day", "week", "month" or "once"; `hourly_cost`: returns the hourly dollars of a deployed experiment.
    """
    if is_this_machine_best(found):
        return None

    def compute_usd(each: Finalist) -> float:
        """Return the candidate's dollars of a run if the model is trained once, otherwise of a month, deployed in the cheaper way."""
        if every == "once":
            return each.usd.p50
        ways = (price(found, each, every, hourly_cost) for price in (_price_new_deployments, _price_lasting_deployment))
        return min(ways, key=_sort_key).usd

    winner = found.winner
    most_s, winner_usd = MUCH_SOONER * winner.seconds.p50, compute_usd(winner)
    most_usd = max(LITTLE_USD, LITTLE_SHARE * winner_usd)
    held = [
        Sooner(each, compute_usd(each) - winner_usd)
        for each in found.told
        if each.seconds.p50 <= most_s
        and not (found.met and list_missed_constraints(found, each))
        and found.needs_quota(each) <= found.needs_quota(winner)
    ]
    return min((each for each in held if each.more_usd <= most_usd), key=lambda each: each.more_usd, default=None)


CRON = {
    "hour": "0 * * * *",
    "day": "0 3 * * *",
    "week": "0 3 * * 1",
    "month": "0 3 1 * *",
}  # minute, hour, day, month, weekday


class Schedule(NamedTuple):
    """Instructions for starting the runs again and again. `words`: what to do with the line; `line`: a line for cron; both "" if there
    is nothing to start.
    """

    words: str
    line: str


def describe_schedule(found: Advice, every: str, monthly: Sequence[MonthlyCost], *, here: str, file: Path) -> Schedule:
    """Return how to start the runs: a line for cron on this machine, as Crossover sets up no schedule on AWS; empty if the model is trained
    only once. `here`: YAML file that was asked about with its --set options, quoted (`command_words`); `file`: the winner's YAML file;
    `every`: time between two runs, a key of CRON unless it is trained once; `monthly`: monthly costs, empty if it is trained once.
    """
    if (way := find_winner(monthly)) is None:
        return Schedule("", "")
    program = Path(sys.executable).with_name("crossover")
    own, named = shlex.quote(str(program) if program.exists() else "crossover"), shlex.quote(str(file))
    first = ""
    if is_this_machine_best(found):
        command = f"{own} run {here} --on inline"
    elif way.stays:
        first = f"deploy it first, and again every 30 days: `crossover deploy {named}`; "
        command = f"{own} run {named} --on aws"
    else:
        command = f"{own} deploy {named} --yes && {own} run {named} --on aws; {own} destroy {named} --yes"
    return Schedule(
        f"{first}to start it every {every}, add this line with `crontab -e` on a machine that stays on, and have the new data in place "
        "before it runs (Crossover sets up no schedule on AWS and exports no data):",
        f"{CRON[every]} cd {shlex.quote(str(Path.cwd()))} && {{ {command}; }}",
    )


def _cheapest_machine(found: Advice) -> Finalist | None:
    """Return the shortlisted candidate with the fewest median dollars among those that run on a single EC2 instance, with a GPU or without;
    None if there is none. Neither deadline nor budget is checked.
    """
    alone = [each for each in found.finalists if each.candidate.instance and each.candidate.workers == 1]
    return min(alone, key=lambda each: each.usd.p50, default=None)
