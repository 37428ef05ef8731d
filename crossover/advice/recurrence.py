"""Monthly cost of repeated training: deployed each time, left deployed, or on a machine that runs anyway."""

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossover.advice.advice import Advice, is_this_machine_best
from crossover.advice.search import Finalist
from crossover.experiment import Experiment
from crossover.reports import display

HOURS_BETWEEN: Mapping[str, float] = {"hour": 1.0, "day": 24.0, "week": 168.0}


@dataclass(frozen=True)
class HourlyCost:
    """The dollars per hour of a deployed experiment: `standing_usd` between runs and `running_usd` during a run, both without functions;
    `endpoint_usd`: the part of `standing_usd` that AWS bills by started hours; `checks_usd`: the checks whether it has expired, in neither.
    """

    standing_usd: float
    running_usd: float
    endpoint_usd: float = 0.0
    checks_usd: float = 0.0


@dataclass(frozen=True)
class MonthlyCost:
    """The monthly cost of one way to train again and again. `way`: the way, in words; `usd`: dollars per month; `parts`: what these consist
    of, in words; `in_time`: False if a run takes longer than the time between two runs; `of_winner`: whether it trains on the advice's
    winner; `stays`: whether the stack stays deployed between runs.
    """

    way: str
    usd: float
    parts: str
    in_time: bool = True  # False: a run takes longer than the time between two of them
    of_winner: bool = False
    stays: bool = False

    @property
    def words(self) -> str:
        """One line with the way and its monthly cost, and with a note if a run takes too long for the interval."""
        late = "" if self.in_time else "; a run takes longer than the time between two of them"
        return f"{self.way}: {display.rough_usd(self.usd)} a month ({self.parts}{late})"


def monthly_costs(
    found: Advice, every: str, *, hourly_cost: Callable[[Experiment], HourlyCost]
) -> tuple[MonthlyCost, ...]:
    """Return the monthly cost of each way to train the winner of the advice `found` repeatedly: deployed each time, left deployed, on a
    machine that runs anyway (if a candidate uses a single one), or on this machine (if it was measured). Ways that are in time come first,
    the cheapest of them first; empty if the model is trained only once.

    `every`: "hour", "day", "week" or "once"; `hourly_cost`: returns the hourly dollars of a deployed experiment.
    """
    if every == "once":
        return ()
    listed = found.question.prices
    hours_per_month, between_s = listed.hours_per_month, HOURS_BETWEEN[every] * 3_600
    winner, runs = found.winner, count_runs(found, every)
    hourly = hourly_cost(found.question.task(winner.candidate).experiment)
    deployed_h = winner.seconds.p50 / 3_600
    once_usd = winner.usd.p50 + hourly.standing_usd * winner.before_s / 3_600
    once_usd += hourly.endpoint_usd * (math.ceil(deployed_h) - deployed_h)
    stays_usd = (hourly.standing_usd + hourly.checks_usd) * hours_per_month
    run_usd, count = winner.usd.p50, f"{runs:,.0f} runs" if runs >= 10 else f"{runs:.1f} runs"
    ways = [
        MonthlyCost(
            f"{winner.candidate.words}, deployed and destroyed each time",
            runs * once_usd,
            f"{count} of {display.rough_usd(once_usd)}, start-up of {display.rough_seconds(winner.before_s)} each time",
            winner.seconds.p50 <= between_s,
            of_winner=True,
        ),
        MonthlyCost(
            f"{winner.candidate.words}, left deployed",
            stays_usd + runs * run_usd,
            f"{display.rough_usd(stays_usd)} to stay deployed, {count} of {display.rough_usd(run_usd)}; deploy it again before "
            "lifetime.ttl_hours, at most 720, have passed",
            winner.running.p50 <= between_s,
            of_winner=True,
            stays=True,
        ),
    ]
    if (machine := _cheapest_machine(found)) is not None:
        of_machine = hourly_cost(found.question.task(machine.candidate).experiment)
        alone_usd = hours_per_month * (of_machine.running_usd - of_machine.standing_usd)
        ways.append(
            MonthlyCost(
                f"a {machine.candidate.instance} that runs anyway",
                0.0,
                f"nothing more, if it is idle for {display.rough_seconds(machine.running.p50)} each {every}; "
                f"{display.rough_usd(alone_usd)} if it runs for this alone",
                machine.running.p50 <= between_s,
            )
        )
    if found.here is not None:
        ways.append(MonthlyCost("this machine", 0.0, "nothing more", found.here.seconds <= between_s))
    return tuple(sorted(ways, key=lambda each: (not each.in_time, each.usd)))


def count_runs(found: Advice, every: str) -> float:
    """Return the number of runs a month. `every`: "hour", "day" or "week"."""
    return found.question.prices.hours_per_month / HOURS_BETWEEN[every]


def find_winner(monthly: Sequence[MonthlyCost]) -> MonthlyCost | None:
    """Return the best way to train repeatedly on the advice's winner; None if it is trained only once. `monthly`: from `monthly_costs`."""
    return next((each for each in monthly if each.of_winner), None)


CRON = {"hour": "0 * * * *", "day": "0 3 * * *", "week": "0 3 * * 1"}  # minute, hour, day, month, weekday


def describe_schedule(found: Advice, every: str, monthly: Sequence[MonthlyCost], *, here: Path, file: Path) -> str:
    """Return a line that says how to start the runs: a line for cron on this machine, as Crossover sets up no schedule on AWS; "" if the
    model is trained only once. `here`: YAML file that was asked about; `file`: the winner's YAML file.
    """
    if (way := find_winner(monthly)) is None:
        return ""
    program = Path(sys.executable).with_name("crossover")
    own, named = shlex.quote(str(program) if program.exists() else "crossover"), shlex.quote(str(file))
    if is_this_machine_best(found):
        command = f"{own} run {shlex.quote(str(here))} --on inline"
    elif way.stays:
        command = f"{own} run {named} --on aws"
    else:
        command = f"{own} deploy {named} --yes && {own} run {named} --on aws; {own} destroy {named} --yes"
    return (
        f"to start it every {every}, add this line with `crontab -e` on a machine that stays on (no EventBridge schedule is provided): "
        f"{CRON[every]} cd {shlex.quote(str(Path.cwd()))} && {{ {command}; }}"
    )


def _cheapest_machine(found: Advice) -> Finalist | None:
    """Return the cheapest shortlisted candidate that runs on a single EC2 instance, None if there is none."""
    alone = [each for each in found.finalists if each.candidate.instance and each.candidate.workers == 1]
    return min(alone, key=lambda each: each.usd.p50, default=None)
