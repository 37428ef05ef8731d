"""How sure a projection is: the same run again and again, each time with other stragglers and in another session.

A session is what all functions of one run share: the hour, the hosts, how busy the stores are. The same cell measured in two sessions
differed by a factor of 1.5, which no average over requests makes smaller. Repetition n of a seed is the same draw for every experiment, so
two of them are compared within one session.

What a band does not hold: prices, figures that a calibration assumes, and whether the services are as it says in the middle.
"""

import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from math import exp, floor, inf, nan
from statistics import NormalDist
from typing import Any, NamedTuple

from crossover.costs.prices import Prices
from crossover.experiment import Experiment
from crossover.simulation.calibration import Calibration, Service
from crossover.simulation.simulate import LABEL, Simulated, simulate
from crossover.simulation.workload import Workload

REPETITIONS = 30
SURE = 0.95  # the share of paired draws from which on one is said to be cheaper, or sooner
PER_JOB = 5  # draws that a process takes at once


class Draw(NamedTuple):
    """One repetition. `session`: by how many sigmas its session's requests are slower than the middle one's."""

    seed: int
    session: float


class Band(NamedTuple):
    """Percentiles over the repetitions."""

    p5: float
    p50: float
    p95: float

    def as_json(self) -> dict[str, Any]:
        return {"label": LABEL, **self._asdict()}


class Task(NamedTuple):
    """What `simulate` takes."""

    experiment: Experiment
    calibration: Calibration
    workload: Workload
    price_list: Prices


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one repetition came to. `problems`: why AWS would not have run it so; its figures then end where AWS would have ended it."""

    seconds: float
    epoch_s: float
    usd: float
    paper_method_usd: float
    moved_bytes: float
    problems: tuple[str, ...] = ()
    finished: bool = True

    @classmethod
    def of(cls, run: Simulated) -> "Outcome":
        return cls(
            seconds=run.seconds,
            epoch_s=run.epoch_s,
            usd=run.usd,
            paper_method_usd=run.paper_method_usd,
            moved_bytes=float(run.moved_bytes),
            problems=run.problems,
            finished=run.finished,
        )


Outcomes = Sequence[Outcome]


def draws(seed: int, count: int = REPETITIONS) -> tuple[Draw, ...]:
    """The repetitions of a seed. Their sessions are the middles of `count` equally likely parts of the normal distribution, in an order of
    the seed's: drawn freely, the p5 and p95 of thirty would be off by 0.4 sigma.
    """
    rng = random.Random(f"repetitions {seed}")
    sessions = [NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)]
    rng.shuffle(sessions)
    return tuple(Draw(rng.getrandbits(32), session) for session in sessions)


def in_session(calibration: Calibration, session: float) -> Calibration:
    """`calibration` as it is where requests take `session` sigmas longer than in the middle: every service's, latency and transfer alike.

    Computing keeps its speed: in the two sessions of the measured cell its seconds were the same. So do cold starts and state machines, of
    which no session is known, and the hosts' own links, which instance types have by contract.
    """
    factor = exp(calibration.session_sigma * session)
    services: dict[str, Any] = {each.name: getattr(calibration, each.name) for each in fields(calibration)}
    slowed: dict[str, Any] = {
        name: found.slowed(factor) for name, found in services.items() if isinstance(found, Service)
    }
    return replace(calibration, **slowed)


def repeated(tasks: Sequence[Task], drawn: Sequence[Draw], *, processes: int = 1) -> list[tuple[Outcome, ...]]:
    """Each task's outcomes, one per draw in their order. The number of processes changes nothing but the time that it takes."""
    starts = range(0, len(drawn), PER_JOB)
    jobs = [(task, drawn[start : start + PER_JOB]) for task in tasks for start in starts]
    if processes > 1 and len(jobs) > 1:
        # Not by fork: whoever calls may have threads.
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            done = list(pool.map(_job, jobs))
    else:
        done = [_job(job) for job in jobs]
    each = len(starts)
    return [tuple(o for part in done[n * each : (n + 1) * each] for o in part) for n in range(len(tasks))]


def _job(job: tuple[Task, Sequence[Draw]]) -> list[Outcome]:
    task, drawn = job
    return [Outcome.of(simulate_drawn(task, draw)) for draw in drawn]


def simulate_drawn(task: Task, draw: Draw) -> Simulated:
    """The run in one session, with one draw of stragglers."""
    return simulate(
        replace(task.experiment, seed=draw.seed),
        in_session(task.calibration, draw.session),
        workload=task.workload,
        price_list=task.price_list,
    )


# --- what repetitions say ---------------------------------------------------------------------------------------------


def band(values: Sequence[float]) -> Band:
    """Percentiles 5, 50 and 95; NaN of nothing. Between two values by Hazen's rule, which takes each for the middle of its part."""
    return Band(*(_percentile(sorted(values), share) for share in (0.05, 0.5, 0.95)))


def _percentile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return nan
    at = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    low = ordered[floor(at)]
    return low + (at - floor(at)) * (ordered[min(floor(at) + 1, len(ordered) - 1)] - low)


def ahead(ours: Sequence[float], theirs: Sequence[float]) -> int:
    """In how many of the paired draws ours is the smaller."""
    return sum(mine < other for mine, other in zip(ours, theirs, strict=True))


def is_sure(count: int, of: int) -> bool:
    """Whether so many paired draws suffice to say who is ahead."""
    return count >= SURE * of


def figures(outcomes: Outcomes, name: str) -> list[float]:
    """One figure by draw, to be compared; infinite where AWS would not have run it, so that it is never ahead."""
    return [inf if each.problems else getattr(each, name) for each in outcomes]


def possible(outcomes: Outcomes) -> list[Outcome]:
    """Those that AWS would have run."""
    return [each for each in outcomes if not each.problems]


def problems(outcomes: Outcomes) -> tuple[str, ...]:
    """Why AWS would not run it so, and in how many repetitions where not in all: of the one in the middle of those."""
    failed = sorted((each for each in outcomes if each.problems), key=lambda each: each.seconds)
    if not failed:
        return ()
    often = "" if len(failed) == len(outcomes) else f"in {len(failed)} of {len(outcomes)} repetitions: "
    return tuple(f"{often}{problem}" for problem in failed[len(failed) // 2].problems)
