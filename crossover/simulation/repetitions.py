"""How sure a projection is: the same run again and again, each time with other stragglers and in another session.

A session is what all functions of one run share: the hour, the hosts, how busy the stores are. The same cell measured in two sessions
differed by a factor of 1.5, which no average over requests makes smaller. Repetition n of a seed is the same draw for every experiment, so
two of them are compared within one session.

What a band does not hold: prices, figures that a calibration assumes, and whether the services are as it says in the middle.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields, replace
from math import exp, inf
from statistics import NormalDist
from typing import Any, NamedTuple

from crossover.architecture import architecture_of
from crossover.costs import cost, infrastructure, prices
from crossover.costs.prices import Prices
from crossover.experiment import Experiment
from crossover.reports.bands import Band, band
from crossover.runtime.process_pools import pool
from crossover.simulation.calibration import Calibration
from crossover.simulation.services import Service
from crossover.simulation.simulate import LABEL, Simulated, simulate, sizes_of
from crossover.simulation.workload import Workload, calendar

REPETITIONS = 30
SIMULATED_EPOCHS = 2  # of a projection's repetition
# A normal distribution's p5, quartiles and p95: the printed p95 is not less than its own.
LEVELS = (-1.645, -0.67, 0.0, 0.67, 1.645)
PER_JOB = 5  # draws that a process takes at once
WORTH_S = 3.0  # of processor time left: from here on more processes are worth their start
LIMITS = "not in the band: prices, assumed figures, and whether the services are as the calibration says in the middle"


class Draw(NamedTuple):
    """One repetition. `session`: by how many sigmas its session's requests are slower than the middle one's; `level`: its computing than
    is thought.
    """

    seed: int
    session: float
    level: float = 0.0


class RepeatedRun(NamedTuple):
    """What `simulate` takes. `epochs`: that a repetition simulates at most; those after the first are alike."""

    experiment: Experiment
    calibration: Calibration
    workload: Workload
    price_list: Prices
    epochs: int = 20


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one repetition came to. `problems`: why AWS would not have run it so; its figures then end where AWS would have ended it."""

    seconds: float
    epoch_s: float
    usd: float
    paper_method_usd: float
    moved_bytes: float
    problems: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Simulated) -> "Outcome":
        return cls(
            seconds=run.seconds,
            epoch_s=run.epoch_s,
            usd=run.usd,
            paper_method_usd=run.paper_method_usd,
            moved_bytes=float(run.moved_bytes),
            problems=run.problems,
            outside=run.outside,
        )


Outcomes = Sequence[Outcome]


def draws(seed: int, count: int = REPETITIONS) -> tuple[Draw, ...]:
    """The repetitions of a seed. Their sessions are the middles of `count` equally likely parts of the normal distribution, in an order of
    the seed's: drawn freely, the p5 and p95 of thirty would be off by 0.4 sigma. A fifth of them at each of LEVELS.
    """
    rng = random.Random(f"repetitions {seed}")
    sessions = [NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)]
    rng.shuffle(sessions)
    return tuple(Draw(rng.getrandbits(32), session, LEVELS[n % len(LEVELS)]) for n, session in enumerate(sessions))


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


def repeated(
    tasks: Sequence[RepeatedRun],
    drawn: Sequence[Draw],
    *,
    processes: int | None = None,
    worth_s: float = WORTH_S,
    working: Executor | None = None,
) -> list[tuple[Outcome, ...]]:
    """Each task's outcomes, one per draw in their order. `processes` (by default one per core) change nothing but the time that it takes;
    they are started where more than `worth_s` seconds of work are left after the first job, unless there are some `working` already.
    """
    starts, processes = range(0, len(drawn), PER_JOB), processes or os.cpu_count() or 1
    groups = _alike_but_in_epochs(tasks)
    jobs = [([tasks[n] for n in group], drawn[start : start + PER_JOB]) for group in groups for start in starts]
    began_s = time.process_time()
    done = [_job(job) for job in jobs[: working is None]]
    left = jobs[len(done) :]
    if working is not None:
        done += working.map(_job, left)
    elif processes > 1 and len(left) * (time.process_time() - began_s) > worth_s:
        with pool(processes) as begun:
            done += begun.map(_job, left)
    else:
        done += map(_job, left)
    found: list[list[Outcome]] = [[] for _ in tasks]
    for group, parts in zip((group for group in groups for _ in starts), done, strict=True):
        for n, outcomes in zip(group, parts, strict=True):
            found[n] += outcomes
    return [tuple(outcomes) for outcomes in found]


def _alike_but_in_epochs(tasks: Sequence[RepeatedRun]) -> list[list[int]]:
    """Tasks by number: those of a group simulate the same epochs, and lengthen them differently."""
    groups: dict[str, list[int]] = {}
    for n, task in enumerate(tasks):
        training = replace(task.experiment.training, epochs=1)
        key = (replace(task.experiment, training=training), task.workload, id(task.calibration))
        groups.setdefault(repr(key), []).append(n)
    return list(groups.values())


def _job(job: tuple[Sequence[RepeatedRun], Sequence[Draw]]) -> list[list[Outcome]]:
    """Of each task, its outcomes. Tasks of a job differ in their epochs alone, so what is simulated for one does for all."""
    tasks, drawn = job
    known: dict[tuple[Draw, int], Simulated] = {}

    def once(task: RepeatedRun, draw: Draw, epochs: int) -> Simulated:
        if (draw, epochs) not in known:
            known[draw, epochs] = _drawn(task, draw, epochs)
        return known[draw, epochs]

    return [[outcome(task, draw, once) for draw in drawn] for task in tasks]


def as_drawn(calibration: Calibration, draw: Draw) -> Calibration:
    """In the draw's session, with what it says of more than two threads, and as fast at computing as its level says."""
    least, most = calibration.parallel_least, calibration.parallel_most
    sure, on_gpu = calibration.level_sigma, max(calibration.level_sigma, calibration.gpu_sigma)
    calibration = calibration.paced(exp(sure * draw.level), exp(on_gpu * draw.level)) if on_gpu else calibration
    beyond = least + (most - least) * random.Random(f"threads {draw.seed}").random()
    return replace(in_session(calibration, draw.session), parallel_beyond=beyond)


def _drawn(task: RepeatedRun, draw: Draw, epochs: int) -> Simulated:
    training = task.experiment.training.of_epochs(epochs)
    return simulate(
        replace(task.experiment, seed=draw.seed, training=training),
        as_drawn(task.calibration, draw),
        workload=task.workload,
        price_list=task.price_list,
    )


def simulated_epochs(most: int, span: int) -> int:
    """Of a run of more epochs, how many a repetition simulates: rounds of `span` epochs are whole, and two of them at least."""
    return max(2, most // span) * span if span > 1 else most


def outcome(
    task: RepeatedRun, draw: Draw, simulated: Callable[[RepeatedRun, Draw, int], Simulated] = _drawn
) -> Outcome:
    """What one repetition comes to. A run of many epochs is simulated for some, and lengthened by the mean of those after its first: what
    stragglers do in them stands for all the others too, so the band errs on the wide side.
    """
    epochs = task.experiment.training.epochs
    architecture = architecture_of(task.experiment)
    days = calendar(architecture.resolve(task.experiment), task.workload)
    some = simulated_epochs(task.epochs, days.span)
    run = simulated(task, draw, min(epochs, some))
    if epochs <= some or not run.finished or not architecture.trains:
        return Outcome.of(run)
    whole = epochs if days.steps is None else days.rounds / days.rounds_per_epoch
    return _lengthened(run, simulated(task, draw, days.span), whole, task.price_list)


def _lengthened(run: Simulated, first: Simulated, epochs: float, price_list: Prices) -> Outcome:
    """`run` with its mean epoch after `first`, its first alone (or as many as a round goes through), as often as `epochs` asks for. What is
    used grows; the bill is of the whole, since hosts cost at least a minute.
    """
    simulated = run.experiment.training.epochs
    more = (epochs - simulated) / (simulated - first.experiment.training.epochs)

    def longer(whole: float, short: float) -> float:
        return whole + more * max(0.0, whole - short)

    seconds = longer(run.seconds, first.seconds)
    used = {
        each.name: longer(getattr(run.used, each.name), getattr(first.used, each.name)) for each in fields(run.used)
    }
    lines = cost.bill(
        cost.Quantities(**used),  # type: ignore[arg-type]  # parts of a request, of a mean
        infrastructure.of(run.experiment),
        price_list,
        duration_s=seconds,
        transitions=round(longer(run.transitions, first.transitions)),
    )
    return replace(
        Outcome.of(run),
        seconds=seconds,
        usd=sum(line.usd for line in lines),
        paper_method_usd=longer(run.paper_method_usd, first.paper_method_usd),
        moved_bytes=longer(run.moved_bytes, first.moved_bytes),
    )


# --- what repetitions say ---------------------------------------------------------------------------------------------


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


# --- one run ----------------------------------------------------------------------------------------------------------

FIGURES = ("seconds", "epoch_s", "usd", "paper_method_usd")


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A run in the middle session, and what its repetitions came to."""

    run: Simulated
    seed: int
    outcomes: tuple[Outcome, ...]

    def band(self, name: str) -> Band:
        """Of one of FIGURES, over the repetitions that AWS would run; over all of them, up to their end, where it would run none."""
        return band([getattr(each, name) for each in possible(self.outcomes) or self.outcomes])

    @property
    def problems(self) -> tuple[str, ...]:
        """Why AWS would not run it so; or would not at times."""
        return self.run.problems or problems(self.outcomes)

    @property
    def would_run(self) -> bool:
        """In the middle session, and in more than half of the repetitions."""
        return not self.run.problems and 2 * len(possible(self.outcomes)) > len(self.outcomes)

    @property
    def words(self) -> str:
        """What the bands are of."""
        sigma = self.run.calibration.session_sigma
        return (
            f"{len(self.outcomes)} repetitions of seed {self.seed}, over stragglers and a session that slows all requests of a run alike "
            f"(lognormal, sigma {sigma:g}); {LIMITS}"
        )

    def as_json(self) -> dict[str, Any]:
        """The run in the middle session, and beside it the bands and every repetition."""
        said = {
            "label": LABEL,
            "count": len(self.outcomes),
            "seed": self.seed,
            "words": self.words,
            **{name: self.band(name).as_json() for name in FIGURES},
            "problems": list(self.problems),
            "outcomes": [asdict(each) for each in self.outcomes],
        }
        return {**self.run.as_json(), "repetitions": said}


def project(
    experiment: Experiment,
    calibration: Calibration,
    *,
    workload: Workload | None = None,
    repetitions: int = REPETITIONS,
    processes: int | None = None,
) -> Projection:
    """The run of `experiment`, and so many repetitions of its seed. Raises as `simulate` does."""
    work, price_list = workload or sizes_of(experiment, architecture_of(experiment)), prices.load()
    run = simulate(experiment, calibration, workload=work, price_list=price_list)
    task = RepeatedRun(experiment, calibration.unsure_of(work.model), work, price_list, SIMULATED_EPOCHS)
    (outcomes,) = repeated([task], draws(experiment.seed, repetitions), processes=processes)
    return Projection(run=run, seed=experiment.seed, outcomes=outcomes)
