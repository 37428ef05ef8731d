"""Where an architecture overtakes its cheapest rival, or the other way round: over model size, batch, workers and epochs, in seconds and in
dollars. Rivals: one function, one machine, one GPU, and a fleet of as many GPUs. Over model size, batch and epochs an architecture has the
count of workers that makes its run cheapest.

Every figure is projected, and comes from repetitions: who leads is said where it does in at least 95 % of them, all in the same sessions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import exp, inf, log
from typing import NamedTuple

from crossover.architecture import architecture_of
from crossover.costs.prices import Prices
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.reports.bands import Band, band, lead
from crossover.simulation import assumptions
from crossover.simulation.calibration import Calibration
from crossover.simulation.mirror import models_of
from crossover.simulation.repetitions import (
    REPETITIONS,
    SIMULATED_EPOCHS,
    Draw,
    Outcome,
    RepeatedRun,
    draws,
    figures,
    outcome,
    possible,
    problems,
    repeated,
)
from crossover.simulation.simulate import LABEL
from crossover.simulation.workload import Workload, calendar
from crossover.training.baselines import alone, gpu_fleet

PARAMETERS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # of the files' own
WORKERS = (4, 8, 16, 32, 64)
EPOCHS = (1, 2, 5, 10, 20, 50, 100)
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # of workers, of which the best is looked for in the middle session
ALONE = {"one-function": "function", "one-machine": "instance", "one-gpu": "gpu"}


FIGURES: Mapping[str, str] = {
    "dollars": "usd",
    "dollars by the papers' method": "paper_method_usd",
    "time": "seconds",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run at one value of an axis, by draw; points of one break-even have the same draws."""

    axis: str
    value: int
    name: str
    rival: bool
    outcomes: tuple[Outcome, ...]
    workers: int = 1
    label: str = LABEL

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why AWS would not run it, or not in every repetition."""
        return problems(self.outcomes)

    @property
    def would_run(self) -> bool:
        """In more than half of the repetitions; otherwise it cannot win."""
        return 2 * len(possible(self.outcomes)) > len(self.outcomes)

    def by_draw(self, figure: str) -> list[float]:
        """One of FIGURES, infinite in repetitions that AWS would not run."""
        return figures(self.outcomes, FIGURES[figure])

    def band(self, figure: str) -> Band:
        """Of the repetitions that AWS would run; NaN where it would run none."""
        return band(self.by_draw(figure))


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Between two values of an axis the lead in `figure` changes from one to the other; `value`: where, on a logarithmic scale, over the
    `count` of `of` repetitions in which it does.
    """

    axis: str
    figure: str
    value: Band
    count: int
    of: int
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Breakeven:
    """All points, by axis and value; `here`: the experiments as their files say."""

    experiments: tuple[Experiment, ...]
    calibration: Calibration
    here: tuple[Point, ...]
    points: tuple[Point, ...]
    crossings: tuple[Crossing, ...]
    left_out: tuple[str, ...]
    prices_as_of: str
    rests: str = ""  # on what the cheapest, as the files say, does; empty where that is too close to call

    def of(self, axis: str) -> list[Point]:
        return [point for point in self.points if point.axis == axis]


def breakeven(
    experiments: Sequence[Experiment],
    calibration: Calibration,
    price_list: Prices,
    *,
    repetitions: int = REPETITIONS,
    processes: int | None = None,
    sizes: Callable[[Experiment], Workload] = Workload.of,
) -> Breakeven:
    """The experiments beside their rivals. All have the first one's draws. `sizes`: what each moves and computes.

    One that cannot be projected is left out. Raises NoProjection where that leaves nothing to compare, or the sizes are not known;
    ConfigError where the experiments do not train the same model on the same data.
    """
    entrants, left_out, calibration = entered(experiments, calibration)
    asked, tasks = list[Asked](), list[RepeatedRun]()
    counted = partial(_at_best, calibration=calibration, price_list=price_list)
    as_filed = {entrant.name: sizes(entrant) for entrant in entrants}
    at_best = {entrant.name: counted(entrant, as_filed[entrant.name]) for entrant in entrants}
    for axis, value, change in _axes(entrants, as_filed[entrants[0].name]):
        for entrant in entrants:
            own = at_best[entrant.name] if axis == "epochs" else (entrant, as_filed[entrant.name])
            try:
                experiment, workload = change(*own)
                if axis in ("parameters", "batch size"):
                    experiment, workload = counted(experiment, workload)
                calendar(architecture_of(experiment).resolve(experiment), workload)
            except ConfigError as error:
                if axis == "here":
                    raise
                left_out.append(f"{entrant.name}, {axis} {value:,}: {error}")
                continue
            task = RepeatedRun(experiment, calibration, workload, price_list, SIMULATED_EPOCHS)
            if task not in tasks:
                tasks.append(task)
            asked.append(Asked(axis, value, entrant.name, is_rival(entrant), experiment.workers, tasks.index(task)))
    drawn = draws(entrants[0].seed, repetitions)
    done = repeated(tasks, drawn, processes=processes)
    found = [
        Point(axis=a.axis, value=a.value, name=a.name, rival=a.rival, workers=a.workers, outcomes=done[a.task])
        for a in asked
    ]
    points = tuple(point for point in found if point.axis != "here")
    here = tuple(point for point in found if point.axis == "here")
    filed = {each.name: tasks[each.task] for each in asked if each.axis == "here"}
    return Breakeven(
        experiments=entrants,
        calibration=calibration,
        here=here,
        points=points,
        crossings=tuple(crossings_of(points)),
        left_out=tuple(left_out),
        prices_as_of=price_list.as_of,
        rests=_rests(here, filed, calibration),
    )


def _rests(here: Sequence[Point], filed: Mapping[str, RepeatedRun], calibration: Calibration) -> str:
    """What the cheapest rests on, in the middle session, where paired draws tell that it is."""
    led = lead(draws_of(here, "dollars"))
    if led is None or not led.is_sure:
        return ""
    running = [point.name for point in here if point.would_run]

    def cheapest(cloud: Calibration) -> str:
        return min(running, key=lambda name: outcome(filed[name]._replace(calibration=cloud), Draw(1, 0.0)).usd)

    gpus = any(filed[name].experiment.module == "gpu" or name == "one-gpu" for name in running)
    return assumptions.words(cheapest, calibration, gpus=gpus)


def entered(
    experiments: Sequence[Experiment], calibration: Calibration
) -> tuple[tuple[Experiment, ...], list[str], Calibration]:
    """All that can be simulated, rivals among them; why others are left out; the calibration as sure as it is of their model."""
    entrants, left_out = projectable(with_rivals(experiments))
    return entrants, left_out, calibration.unsure_of(entrants[0].training.model)


def projectable(experiments: Sequence[Experiment]) -> tuple[tuple[Experiment, ...], list[str]]:
    """Those that can be simulated, and why others cannot."""
    known, unknown = list[Experiment](), list[str]()
    for experiment in experiments:
        try:
            models_of(architecture_of(experiment))
            known.append(experiment)
        except NoProjection as reason:
            unknown.append(f"{experiment.name}: {reason}")
    if unknown and all(is_rival(each) for each in known):
        raise NoProjection("; ".join(unknown))
    return tuple(known), unknown


def with_rivals(experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """The experiments, and those rivals that none of them is. Raises ConfigError where they cannot be compared, or have the same name."""
    if not experiments:
        raise ConfigError(
            "breakeven: no experiment was given; give at least one file, such as config/spirt-cifar10.yaml"
        )
    first = experiments[0]
    for other in experiments[1:]:
        for what, mine, its in (
            ("training.model", first.training.model, other.training.model),
            ("data.dataset", first.data.dataset, other.data.dataset),
            ("workers", first.workers, other.workers),
            ("training.batch_size", first.training.batch_size, other.training.batch_size),
        ):
            if mine != its and not (what == "workers" and "single" in (first.module, other.module)):
                raise ConfigError(
                    f"breakeven: {what}: {mine} in {first.name}, {its} in {other.name}; give experiments that agree in it"
                )
    names = [experiment.name for experiment in experiments]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"breakeven: {', '.join(sorted(twice))} was given twice")
    given = {_rival_of(experiment) for experiment in experiments}
    fleet = replace(first, gpu=replace(first.gpu, instances=max(1, first.workers // first.gpu.gpus_per_instance)))
    rivals = {name: _alone(first, name, on) for name, on in ALONE.items()} | {"gpu": gpu_fleet(fleet, "gpu")}
    return (*experiments, *(rival for name, rival in rivals.items() if name not in given))


def is_rival(experiment: Experiment) -> bool:
    """Whether it is what architectures are held against."""
    return experiment.module in ("gpu", "single")


def _rival_of(experiment: Experiment) -> str:
    """Its name among the rivals, "" of another architecture."""
    if experiment.module == "single":
        on = experiment.sections.get("single", {}).get("on", "function")
        return next(name for name, where in ALONE.items() if where == on)
    return "gpu" if experiment.module == "gpu" else ""


def _alone(first: Experiment, name: str, on: str) -> Experiment:
    """With every vCPU that it pays for."""
    training = replace(first.training, threads="auto")
    return replace(alone(first, name), training=training, sections={**first.sections, "single": {"on": on}})


Changed = tuple[Experiment, Workload]
Change = Callable[[Experiment, Workload], Changed]


class Asked(NamedTuple):
    """A point, and which task's outcomes are its."""

    axis: str
    value: int
    name: str
    rival: bool
    workers: int
    task: int


def _axes(entrants: Sequence[Experiment], base: Workload) -> Iterator[tuple[str, int, Change]]:
    """(axis, value, what it makes of an experiment and its sizes). One axis at a time, the others as the files say. `base`: the sizes of
    the first of `entrants`.
    """
    first, every = entrants[0], entrants[0].exchange.every
    together = [each.workers for each in entrants if not architecture_of(each).alone]
    # One worker alone does the work of so many as its file says: of as many as there are beside it, else as its updates have minibatches.
    filed = together[0] if together else every if isinstance(every, int) else 1
    yield "here", 0, lambda e, own: (e, own)
    for value in PARAMETERS:
        yield "parameters", value, lambda e, own, value=value: (e, own.sized(value))  # type: ignore[misc]
    for value in dict.fromkeys(max(1, int(share * first.training.batch_size)) for share in BATCHES):
        if value <= sum(base.samples):
            yield "batch size", value, partial(_batched, batch_size=value)
    for value in WORKERS:
        yield "workers", value, partial(staffed, workers=value, filed=filed)
    for value in EPOCHS:
        yield "epochs", value, lambda e, own, value=value: (trained(e, value), own)  # type: ignore[misc]


def _batched(experiment: Experiment, own: Workload, *, batch_size: int) -> Changed:
    batches = own.uniform(minibatches=max(1, sum(own.samples) // batch_size), batch_size=batch_size)
    return replace(experiment, training=replace(experiment.training, batch_size=batch_size)), batches


def staffed(experiment: Experiment, own: Workload, *, workers: int, filed: int = 1) -> Changed:
    """The same data among so many; one worker alone stays alone, and makes an update of as many minibatches as they together. It does so
    for the `filed` number of workers already.
    """
    if architecture_of(experiment).alone:
        every = experiment.exchange.every or 1
        together = every if every == "epoch" else min(own.minibatches, max(1, every * workers // filed))
        return replace(experiment, exchange=replace(experiment.exchange, every=together)), own
    each, batch = sum(own.samples) * experiment.workers // workers, experiment.training.batch_size
    gpu = replace(experiment.gpu, instances=max(1, workers // experiment.gpu.gpus_per_instance))
    split = own.uniform(minibatches=max(1, each // batch), batch_size=min(batch, max(1, each)))
    return replace(experiment, workers=workers, gpu=gpu), split


def trained(experiment: Experiment, epochs: int) -> Experiment:
    return replace(experiment, training=experiment.training.of_epochs(epochs))


def _at_best(experiment: Experiment, own: Workload, *, calibration: Calibration, price_list: Prices) -> Changed:
    """With the count of workers that makes the run cheapest in the middle session, of COUNTS and its own. As it is a rival."""
    if is_rival(experiment):
        return experiment, own
    cheapest, best_usd = (experiment, own), inf
    for count in dict.fromkeys((experiment.workers, *COUNTS)):
        changed = (experiment, own) if count == experiment.workers else staffed(experiment, own, workers=count)
        try:
            found = outcome(
                RepeatedRun(changed[0], calibration, changed[1], price_list, SIMULATED_EPOCHS), Draw(1, 0.0)
            )
        except ConfigError:
            continue
        if not found.problems and found.usd < best_usd:
            cheapest, best_usd = changed, found.usd
    return cheapest


# --- who leads where --------------------------------------------------------------------------------------------------


def crossings_of(points: Sequence[Point]) -> Iterator[Crossing]:
    """Every change of lead between an architecture and the cheapest of its rivals, or the soonest, of the middles of their bands."""
    for axis in dict.fromkeys(point.axis for point in points):
        ours = [point for point in points if point.axis == axis and point.would_run]
        rivals: dict[int, list[Point]] = {}
        for point in ours:
            if point.rival:
                rivals.setdefault(point.value, []).append(point)
        for name in dict.fromkeys(point.name for point in ours if not point.rival):
            mine = [point for point in ours if point.name == name and point.value in rivals]
            for figure in FIGURES:
                yield from _of_two(mine, [best(rivals[point.value], figure) for point in mine], figure)


def _of_two(mine: Sequence[Point], rivals: Sequence[Sequence[Point]], figure: str) -> Iterator[Crossing]:
    """`rivals`: at each of my values, the best first."""
    values = [point.value for point in mine]

    def changes(ours: Sequence[float], theirs: Sequence[float]) -> list[tuple[bool, float, int]]:
        """(whether ours led before, at which value, after which of the values)."""
        leads = [log(a / b) if a < inf and b < inf else 0.0 for a, b in zip(ours, theirs, strict=True)]
        return [
            (a < 0, exp(log(left) + log(right / left) * a / (a - b)), n)
            for n, ((left, a), (right, b)) in enumerate(pairwise(zip(values, leads, strict=True)))
            if a * b < 0
        ]

    middles = changes([point.band(figure).p50 for point in mine], [first.band(figure).p50 for first, *_ in rivals])
    count = len(mine[0].outcomes) if mine else 0
    by_draw = [
        changes(
            [point.by_draw(figure)[n] for point in mine],
            [min(rival.by_draw(figure)[n] for rival in at) for at in rivals],
        )
        for n in range(count)
    ]
    for led, at, n in middles:
        near = [
            min(alike, key=lambda value: abs(log(value / at)))
            for each in by_draw
            if (alike := [value for before, value, _ in each if before == led])
        ]
        before, after = (mine[0].name, rivals[n + 1][0].name) if led else (rivals[n][0].name, mine[0].name)
        yield Crossing(
            axis=mine[0].axis,
            figure=figure,
            value=band(near or [at]),
            count=len(near),
            of=count,
            before=before,
            after=after,
        )


def best(points: Sequence[Point], figure: str) -> list[Point]:
    """Those that AWS would run, by the middle of the figure's band, the best first."""
    return sorted((point for point in points if point.would_run), key=lambda point: point.band(figure).p50)


def draws_of(points: Sequence[Point], figure: str) -> dict[str, list[float]]:
    """By name, of those that AWS would run."""
    return {point.name: point.by_draw(figure) for point in points if point.would_run}
