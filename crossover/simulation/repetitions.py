"""Repetitions of a simulation, drawn by seed, and their percentiles; also for runs that were measured."""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields, replace
from math import exp, inf
from statistics import NormalDist
from typing import Any, NamedTuple

from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment, from_plain
from crossover.pools import start_pool
from crossover.reports import bill, display, prices
from crossover.reports.display import Band, band_of
from crossover.reports.on_aws import OnAws
from crossover.reports.prices import Prices
from crossover.simulation import interruptions
from crossover.simulation.calibration import AWS, Calibration, Service
from crossover.simulation.figures import load_spot_markets
from crossover.simulation.long_epochs import simulate_run
from crossover.simulation.mirror import models_of
from crossover.simulation.simulate import LABEL, Simulated
from crossover.simulation.workload import Workload, calendar
from crossover.training.checkpoints import checkpoint_interval_s
from crossover.workflow.architecture import architecture_of

# --- repetitions ------------------------------------------------------------------------------------------------------

REPETITIONS = 30
SIMULATED_EPOCHS = 2  # of a projection's repetition
# A normal distribution's p5, quartiles and p95: the printed p95 is not less than its own.
LEVELS = (-1.645, -0.67, 0.0, 0.67, 1.645)
DRAWS_PER_JOB = 5  # draws that a process takes at once
MIN_WORK_S = 3.0  # of processor time left: from here on more processes are worth their start
LIMITS = "not in the band: prices, assumed figures, and whether the services are as the calibration says in the middle"


class Draw(NamedTuple):
    """Random numbers of one repetition of a simulation. `seed`: seed of the stragglers; `session`: by how many sigmas requests are slower
    than the median; `level`: by how many sigmas computing is slower than assumed.
    """

    seed: int
    session: float
    level: float = 0.0


class RepeatedRun(NamedTuple):
    """A run that is to be simulated several times. `experiment`, `calibration`, `workload`: arguments of the simulation; `price_list`:
    prices for its bill; `epochs`: largest number of epochs that a repetition simulates; the rest of a longer run is extrapolated; `quick`:
    whether also the rounds of an epoch are extrapolated from few of them, as in comparisons of many candidates.
    """

    experiment: Experiment
    calibration: Calibration
    workload: Workload
    price_list: Prices
    epochs: int = 20
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one repetition. `seconds`, `usd`: time and total AWS bill of the whole run; `epoch_s`: seconds of an epoch;
    `paper_method_usd`: dollars as the papers count them; `moved_bytes`: bytes read and written through all stores and the bus; `problems`:
    reasons why AWS would not have run it to its end; the figures then stop where AWS would have stopped the run; `outside`: warnings that
    it lies beyond the measured range; `interruptions`: how often its spot instances were taken away.
    """

    seconds: float
    epoch_s: float
    usd: float
    paper_method_usd: float
    moved_bytes: float
    problems: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    interruptions: int = 0  # of spot instances that were taken away

    @classmethod
    def from_simulated(cls, run: Simulated) -> "Outcome":
        """Return the outcome of one simulated run, without interruptions."""
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


def list_draws(seed: int, count: int = REPETITIONS) -> tuple[Draw, ...]:
    """Return `count` draws for the repetitions of a simulation. The same seed and count give the same draws.

    Their sessions are the middles of `count` equally likely parts of the normal distribution, in an order that the seed decides: if they
    were drawn freely, the p5 and p95 of thirty would be off by 0.4 sigma. Their levels cycle through LEVELS.
    """
    rng = random.Random(f"repetitions {seed}")
    sessions = [NormalDist().inv_cdf((n + 0.5) / count) for n in range(count)]
    rng.shuffle(sessions)
    return tuple(Draw(rng.getrandbits(32), session, LEVELS[n % len(LEVELS)]) for n, session in enumerate(sessions))


def apply_session(calibration: Calibration, session: float) -> Calibration:
    """Return the calibration with requests slowed down as in one session: latency and transfer of every service grow by the same factor.
    `session`: by how many sigmas requests are slower than the median.

    Computing keeps its speed, because in the two measured sessions its seconds were equal. Cold starts and state machines keep theirs,
    because nothing is known of their sessions; so do the hosts' links, which instance types guarantee.
    """
    factor = exp(calibration.session_sigma * session)
    services: dict[str, Any] = {each.name: getattr(calibration, each.name) for each in fields(calibration)}
    slowed: dict[str, Any] = {
        name: found.slow_down(factor) for name, found in services.items() if isinstance(found, Service)
    }
    return replace(calibration, **slowed)


def run_repetitions(
    tasks: Sequence[RepeatedRun],
    drawn: Sequence[Draw],
    *,
    processes: int | None = None,
    min_work_s: float = MIN_WORK_S,
    executor: Executor | None = None,
) -> list[tuple[Outcome, ...]]:
    """Simulate each of `tasks` once for each of the draws `drawn`. Return one tuple per task, with its outcomes in draw order, including
    interruptions of spot instances.

    `processes`: number of processes (by default one per core), which affects the time only; they are started only if more than `min_work_s`
    seconds of work are left after the first job. `executor`: pool that does all the work instead of new processes; it is left running.
    Raises as `simulate_run` does.
    """
    starts, processes = range(0, len(drawn), DRAWS_PER_JOB), processes or os.cpu_count() or 1
    groups = _group_alike(tasks)
    jobs = [([tasks[n] for n in group], drawn[start : start + DRAWS_PER_JOB]) for group in groups for start in starts]
    began_s = time.process_time()
    done = [_run_job(job) for job in jobs[: executor is None]]
    left = jobs[len(done) :]
    if executor is not None:
        done += executor.map(_run_job, left)
    elif processes > 1 and len(left) * (time.process_time() - began_s) > min_work_s:
        with start_pool(processes) as begun:
            done += begun.map(_run_job, left)
    else:
        done += map(_run_job, left)
    found: list[list[Outcome]] = [[] for _ in tasks]
    for group, parts in zip((group for group in groups for _ in starts), done, strict=True):
        for n, outcomes in zip(group, parts, strict=True):
            found[n] += outcomes
    return [tuple(outcomes) for outcomes in found]


def _group_alike(tasks: Sequence[RepeatedRun]) -> list[list[int]]:
    """Return the indexes of the tasks in groups. The tasks of a group have one experiment but for its number of epochs, one workload and
    one calibration object, so they can share simulations. Their prices, limit of epochs and `quick` are not compared.
    """
    groups: dict[str, list[int]] = {}
    for n, task in enumerate(tasks):
        training = replace(task.experiment.training, epochs=1)
        key = (replace(task.experiment, training=training), task.workload, id(task.calibration))
        groups.setdefault(repr(key), []).append(n)
    return list(groups.values())


def _run_job(job: tuple[Sequence[RepeatedRun], Sequence[Draw]]) -> list[list[Outcome]]:
    """Simulate the tasks of one group in some draws. Return for each task the list of its outcomes, one per draw, with interruptions of
    spot instances. A simulation that several tasks need is run once. `job`: the tasks, and the draws.
    """
    tasks, drawn = job
    known: dict[tuple[Draw, int], Simulated] = {}

    def simulate_once(task: RepeatedRun, draw: Draw, epochs: int) -> Simulated:
        """Return the simulation of `epochs` epochs in one draw. The same object if any task of the group has asked for that draw and number
        before: their experiments differ only in the number of epochs.
        """
        if (draw, epochs) not in known:
            known[draw, epochs] = _simulate_epochs(task, draw, epochs)
        return known[draw, epochs]

    return [
        [apply_interruptions(task, draw, simulate_draw(task, draw, simulate_once)) for draw in drawn] for task in tasks
    ]


def apply_draw(calibration: Calibration, draw: Draw) -> Calibration:
    """Return the calibration as one repetition uses it: requests slowed down by the draw's session, computing on processors and GPUs by its
    level, and a random speed-up of threads beyond the second, which the draw's seed decides.
    """
    least, most = calibration.parallel_least, calibration.parallel_most
    if sure := calibration.level_sigma:
        calibration = calibration.slow_computing(exp(sure * draw.level), 1.0)
    beyond = least + (most - least) * random.Random(f"threads {draw.seed}").random()
    return replace(apply_session(calibration, draw.session), parallel_beyond=beyond, gpu_level=draw.level)


def _simulate_epochs(task: RepeatedRun, draw: Draw, epochs: int) -> Simulated:
    """Return the simulation of the first `epochs` epochs of the task's run in one draw."""
    training = task.experiment.training.with_epochs(epochs)
    return simulate_run(
        replace(task.experiment, seed=draw.seed, training=training),
        apply_draw(task.calibration, draw),
        workload=task.workload,
        price_list=task.price_list,
        quick=task.quick,
    )


def count_simulated_epochs(most: int, span: int) -> int:
    """Return how many epochs of a longer run a repetition simulates, a multiple of `span`. `most`: limit of the task; `span`: epochs
    between two decisions. If the span exceeds 1, at least two whole spans are simulated, even beyond the limit.
    """
    return max(2, most // span) * span if span > 1 else most


def simulate_draw(
    task: RepeatedRun, draw: Draw, simulated: Callable[[RepeatedRun, Draw, int], Simulated] = _simulate_epochs
) -> Outcome:
    """Return the outcome of one repetition of the task's run, with the random factors of `draw` and without interruptions of spot
    instances. `simulated`: function that returns the simulation of the given number of epochs in a draw. Raises as `simulate_run` does.

    Of a run with many epochs only some are simulated, and the rest is extrapolated from the mean of the epochs after the first span.
    Stragglers of these epochs then count for all others too, so the band is rather too wide than too narrow.
    """
    epochs = task.experiment.training.epochs
    architecture = architecture_of(task.experiment)
    days = calendar(architecture.resolve(task.experiment), task.workload)
    some = count_simulated_epochs(task.epochs, days.span)
    run = simulated(task, draw, min(epochs, some))
    if epochs <= some or not run.finished:
        return Outcome.from_simulated(run)
    whole = epochs if days.steps is None else days.rounds / days.rounds_per_epoch
    return _lengthen(run, simulated(task, draw, days.span), whole, task.price_list)


def _lengthen(run: Simulated, first: Simulated, epochs: float, price_list: Prices) -> Outcome:
    """Return the outcome of `run` extrapolated to `epochs` epochs by its mean epoch. `first`: simulation of the first span alone, which is
    left out of the mean. Usage grows in proportion; the bill is computed for the whole run, because hosts cost at least a minute.
    """
    simulated = run.experiment.training.epochs
    more = (epochs - simulated) / (simulated - first.experiment.training.epochs)

    def lengthen_figure(whole: float, short: float) -> float:
        """Return a figure of the extrapolated run: `whole` plus, for each further epoch, the mean of the epochs after the first span; at
        least `whole`. `whole`: the figure of `run`; `short`: that of its first span.
        """
        return whole + more * max(0.0, whole - short)

    seconds = lengthen_figure(run.seconds, first.seconds)
    used = {
        each.name: lengthen_figure(getattr(run.used, each.name), getattr(first.used, each.name))
        for each in fields(run.used)
    }
    lines = bill.bill(
        bill.Quantities(**used),  # type: ignore[arg-type]  # parts of a request, of a mean
        bill.infrastructure_of(run.experiment),
        price_list,
        duration_s=seconds,
        transitions=round(lengthen_figure(run.transitions, first.transitions)),
    )
    return replace(
        Outcome.from_simulated(run),
        seconds=seconds,
        usd=sum(line.usd for line in lines),
        paper_method_usd=lengthen_figure(run.paper_method_usd, first.paper_method_usd),
        moved_bytes=lengthen_figure(run.moved_bytes, first.moved_bytes),
    )


def apply_interruptions(task: RepeatedRun, draw: Draw, found: Outcome) -> Outcome:
    """Return the outcome of `task` with random interruptions of its spot instances: seconds waited, dollars of repeated work, their number,
    and a problem if the run never ends. The draw chooses the spot market. A run without spot instances is returned unchanged. `found`:
    outcome without interruptions.
    """
    fleets = [fleet for fleet in bill.infrastructure_of(task.experiment).fleets if fleet.spot]
    if not fleets:
        return found
    rng = random.Random(f"spot {draw.seed}")
    objects, size = task.calibration.instance_objects, interruptions.STATE_VECTORS * task.workload.vector_bytes
    losses = interruptions.draw_losses(
        found.seconds,
        instances=sum(fleet.count for fleet in fleets),
        market=rng.choice(load_spot_markets()),
        boot_s=max(fleet.boot_s for fleet in fleets),
        interval_s=checkpoint_interval_s(objects.for_client().write.seconds(size)),
        rng=rng,
    )
    more_s = losses.held_s - found.seconds
    hourly = sum(line.usd for fleet in fleets for line in bill.fleet_lines(task.price_list, fleet, seconds=3_600.0))
    never = (
        () if losses.ended else (f"spot instances were taken away {interruptions.MAX_LOSSES:,} times before its end",)
    )
    return replace(
        found,
        seconds=losses.held_s + losses.waited_s,
        usd=found.usd + max(0.0, more_s) * hourly / 3_600,
        interruptions=losses.count,
        problems=(*found.problems, *never),
    )


# --- what repetitions say ---------------------------------------------------------------------------------------------


def list_values(outcomes: Outcomes, name: str) -> list[float]:
    """Return one figure of each outcome, in draw order; infinite if AWS would not have run the repetition, so that such a run never wins a
    comparison. `name`: field of Outcome.
    """
    return [inf if each.problems else getattr(each, name) for each in outcomes]


def keep_feasible(outcomes: Outcomes) -> list[Outcome]:
    """Return only the outcomes without problems: the repetitions that AWS would have run."""
    return [each for each in outcomes if not each.problems]


def find_problems(outcomes: Outcomes) -> tuple[str, ...]:
    """Return the reasons why AWS would not run a run: those of the failed repetition of median duration, each preceded by "in N of M
    repetitions" if not all failed. Empty if none failed.
    """
    failed = sorted((each for each in outcomes if each.problems), key=lambda each: each.seconds)
    if not failed:
        return ()
    often = "" if len(failed) == len(outcomes) else f"in {len(failed)} of {len(outcomes)} repetitions: "
    return tuple(f"{often}{problem}" for problem in failed[len(failed) // 2].problems)


# --- one run ----------------------------------------------------------------------------------------------------------

FIGURES = ("seconds", "epoch_s", "usd", "paper_method_usd")


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The projection of one run. `run`: one simulation without a slow session; `outcomes`: the results of its repetitions; `seed`: seed of
    their draws.
    """

    run: Simulated
    seed: int
    outcomes: tuple[Outcome, ...]

    def band(self, name: str) -> Band:
        """Return the p5, p50 and p95 of one figure over the repetitions that AWS would run, or over all of them if it would run none.
        `name`: one of FIGURES, or any other field of `Outcome` that is a number.
        """
        return band_of([getattr(each, name) for each in keep_feasible(self.outcomes) or self.outcomes])

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why AWS would not run this run: those of `run`, else those of the failed repetitions; empty if there are none."""
        return self.run.problems or find_problems(self.outcomes)

    @property
    def would_run(self) -> bool:
        """True if AWS would run both the simulation `run` and more than half of the repetitions."""
        return not self.run.problems and 2 * len(keep_feasible(self.outcomes)) > len(self.outcomes)

    @property
    def words(self) -> str:
        """Sentence that explains this projection's bands: number of repetitions, and the sources of their spread."""
        sigma = self.run.calibration.session_sigma
        return (
            f"{len(self.outcomes)} repetitions of seed {self.seed}, over stragglers and a session that slows all requests of a run alike "
            f"(lognormal, sigma {sigma:g}); {LIMITS}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return this projection as plain data: the data of `run`, and under "repetitions" {"label", "count", "seed", "words", "problems",
        "outcomes"} and for each of FIGURES its band.
        """
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
    """Return the projection of an experiment with the speeds of `calibration`: simulate it once without random spread of the session, and
    in `repetitions` random draws.

    `workload`: sizes of model and data, by default found from the experiment; `processes`: number of processes, which affects the time
    only. Raises NoProjection or ConfigError as `simulate` does.
    """
    work, price_list = workload or Workload.from_experiment(experiment), prices.load()
    run = simulate_run(experiment, calibration, workload=work, price_list=price_list)
    task = RepeatedRun(experiment, calibration.with_uncertainty_of(work.model), work, price_list, SIMULATED_EPOCHS)
    (outcomes,) = run_repetitions([task], list_draws(experiment.seed, repetitions), processes=processes)
    return Projection(run=run, seed=experiment.seed, outcomes=outcomes)


# --- of runs ----------------------------------------------------------------------------------------------------------
# What finished runs would take on AWS: their own settings and epochs, simulated, for their reports.


def project_results(
    results: Sequence[Mapping[str, Any]],
    *,
    repetitions: int = REPETITIONS,
    tell: Callable[[str], object] = lambda reason: None,
    size_run: Callable[[Experiment], tuple[Workload, Calibration]] = lambda experiment: (
        Workload.from_experiment(experiment),
        AWS,
    ),
) -> list[OnAws | None]:
    """Return what each finished run would take on AWS, in the order of `results`, all with the same draws, by the seed of the first; None
    for a run that cannot be simulated.

    `results`: contents of the runs' result.json; `repetitions`: number of draws; `tell`: called with the reason if a run cannot be
    simulated; `size_run`: returns the sizes and speeds with which an experiment is projected, by default those that come with the project.
    An error that only the simulation itself raises passes through, such as NoProjection for a GPU whose speed is not known.
    """
    tasks = [_build_task(result, tell, size_run) for result in results]
    seed = int(results[0]["experiment"].get("seed", 0)) if results else 0
    done = iter(run_repetitions([task for task in tasks if task is not None], list_draws(seed, repetitions)))
    words = f"{AWS.name}; {repetitions} repetitions of seed {seed}; {LIMITS}"
    found = list[OnAws | None]()
    for task in tasks:
        outcomes = () if task is None else next(done)
        found.append(
            OnAws(
                seconds=tuple(list_values(outcomes, "seconds")),
                usd=tuple(list_values(outcomes, "usd")),
                words=words,
                problems=find_problems(outcomes),
                outside=outcomes[0].outside,
            )
            if outcomes
            else None
        )
    return found


def _build_task(
    result: Mapping[str, Any],
    tell: Callable[[str], object],
    size_run: Callable[[Experiment], tuple[Workload, Calibration]],
) -> RepeatedRun | None:
    """Return the simulation to repeat for a finished run, with as many epochs as the run had. Returns None, and calls `tell` with the
    reason, if a size or step is not known to the simulator or if another version wrote the result. `result`: content of result.json;
    `size_run`: as for `project_results`.
    """
    try:
        experiment = from_plain(result["experiment"])
        training = experiment.training.with_epochs(display.epochs_of(result) or 1)
        experiment = replace(experiment, training=training)
        architecture = architecture_of(experiment)
        workload, cloud = size_run(experiment)
        models_of(architecture)
        calendar(architecture.resolve(experiment), workload)
    except (NoProjection, ConfigError, TypeError) as unknown:
        tell(str(unknown))
        return None
    return RepeatedRun(experiment, cloud.with_uncertainty_of(workload.model), workload, prices.load(), SIMULATED_EPOCHS)
