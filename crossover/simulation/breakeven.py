"""Where serverless overtakes the GPU fleet, or the other way round: over model size, batch, workers and epochs, in seconds and in dollars.

Every figure is projected, and comes from repetitions: who leads is said where it does in at least 95 % of them, all in the same sessions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import exp, inf, log

from crossover.architecture import load
from crossover.costs.prices import Prices
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.reports.bands import Band, band
from crossover.simulation.calibration import Calibration
from crossover.simulation.repetitions import (
    REPETITIONS,
    Outcome,
    Task,
    draws,
    figures,
    possible,
    problems,
    repeated,
)
from crossover.simulation.simulate import LABEL, models_of
from crossover.simulation.workload import Workload, calendar

SIMULATED_EPOCHS = 3
PARAMETERS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # of the files' own
WORKERS = (4, 8, 16, 32, 64)
EPOCHS = (1, 2, 5, 10, 20, 50, 100)


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
    gpu: bool
    outcomes: tuple[Outcome, ...]
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

    def of(self, axis: str) -> list[Point]:
        return [point for point in self.points if point.axis == axis]


def breakeven(
    experiments: Sequence[Experiment],
    calibration: Calibration,
    price_list: Prices,
    *,
    repetitions: int = REPETITIONS,
    processes: int | None = None,
) -> Breakeven:
    """The experiments beside a GPU fleet of as many GPUs, which is added unless one of them is it. All have the first one's draws.

    One whose steps nobody has described is left out. Raises NoProjection where that leaves nothing to compare, or the sizes are not known;
    ConfigError where the experiments do not train the same model on the same data.
    """
    entrants, left_out = _projectable(with_gpu(experiments))
    base = Workload.of(entrants[0])
    asked, tasks = list[tuple[str, int, str, bool, int]](), list[Task]()
    for axis, value, change in [("here", 0, _as_it_is), *_axes(entrants[0], base)]:
        for entrant in entrants:
            experiment, workload = change(entrant)
            try:
                calendar(load(experiment.architecture).resolve(experiment), workload)
            except ConfigError as error:
                if axis == "here":
                    raise
                left_out.append(f"{entrant.name}, {axis} {value:,}: {error}")
                continue
            task = Task(experiment, calibration, workload, price_list, SIMULATED_EPOCHS)
            if task not in tasks:
                tasks.append(task)
            asked.append((axis, value, entrant.name, entrant.module == "gpu", tasks.index(task)))
    done = repeated(tasks, draws(entrants[0].seed, repetitions), processes=processes)
    found = [Point(axis=axis, value=value, name=name, gpu=gpu, outcomes=done[n]) for axis, value, name, gpu, n in asked]
    points = tuple(point for point in found if point.axis != "here")
    return Breakeven(
        experiments=entrants,
        calibration=calibration,
        here=tuple(point for point in found if point.axis == "here"),
        points=points,
        crossings=tuple(crossings_of(points)),
        left_out=tuple(left_out),
        prices_as_of=price_list.as_of,
    )


def _projectable(experiments: Sequence[Experiment]) -> tuple[tuple[Experiment, ...], list[str]]:
    """Those that can be simulated, and why others cannot."""
    known, unknown = list[Experiment](), list[str]()
    for experiment in experiments:
        try:
            models_of(load(experiment.architecture))
            known.append(experiment)
        except NoProjection as reason:
            unknown.append(f"{experiment.name}: {reason}")
    if unknown and len(known) < 2:
        raise NoProjection("; ".join(unknown))
    return tuple(known), unknown


def with_gpu(experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """The experiments and a GPU fleet. Raises ConfigError where they cannot be compared, or have the same name."""
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
            if mine != its:
                raise ConfigError(
                    f"breakeven: {what}: {mine} in {first.name}, {its} in {other.name}; give experiments that agree in it"
                )
    names = [experiment.name for experiment in experiments]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"breakeven: {', '.join(sorted(twice))} was given twice")
    if any(experiment.module == "gpu" for experiment in experiments):
        return tuple(experiments)
    gpu = replace(
        first,
        name="gpu",
        architecture="gpu",
        baseline="none",
        training=replace(first.training, sync_every=None),
        gpu=replace(first.gpu, instances=max(1, first.workers // first.gpu.gpus_per_instance)),
    )
    return (*experiments, gpu)


Change = Callable[[Experiment], tuple[Experiment, Workload]]


def _axes(first: Experiment, base: Workload) -> Iterator[tuple[str, int, Change]]:
    """(axis, value, what it makes of an experiment). One axis at a time, the others as the files say."""
    samples = sum(base.samples)
    for value in PARAMETERS:
        yield "parameters", value, lambda e, value=value: (e, base.sized(value))  # type: ignore[misc]
    for value in dict.fromkeys(max(1, int(share * first.training.batch_size)) for share in BATCHES):
        if value <= samples:
            batches = base.uniform(minibatches=max(1, samples // value), batch_size=value)
            yield "batch size", value, lambda e, value=value, batches=batches: (_batched(e, value), batches)  # type: ignore[misc]
    whole, batch = samples * first.workers, first.training.batch_size
    for value in WORKERS:
        each = whole // value
        split = base.uniform(minibatches=max(1, each // batch), batch_size=min(batch, max(1, each)))
        yield "workers", value, lambda e, value=value, split=split: (_staffed(e, value), split)  # type: ignore[misc]
    for value in EPOCHS:
        yield "epochs", value, lambda e, value=value: (_trained(e, value), base)  # type: ignore[misc]


def _as_it_is(experiment: Experiment) -> tuple[Experiment, Workload]:
    return experiment, Workload.of(experiment)


def _batched(experiment: Experiment, batch_size: int) -> Experiment:
    return replace(experiment, training=replace(experiment.training, batch_size=batch_size))


def _staffed(experiment: Experiment, workers: int) -> Experiment:
    gpu = replace(experiment.gpu, instances=max(1, workers // experiment.gpu.gpus_per_instance))
    return replace(experiment, workers=workers, gpu=gpu)


def _trained(experiment: Experiment, epochs: int) -> Experiment:
    return replace(experiment, training=replace(experiment.training, epochs=epochs))


# --- who leads where --------------------------------------------------------------------------------------------------


def crossings_of(points: Sequence[Point]) -> Iterator[Crossing]:
    """Every change of lead between an architecture and the GPU fleet, of the middles of their bands."""
    for axis in dict.fromkeys(point.axis for point in points):
        ours = [point for point in points if point.axis == axis and point.would_run]
        fleet = {point.value: point for point in ours if point.gpu}
        for name in dict.fromkeys(point.name for point in ours if not point.gpu):
            mine = [point for point in ours if point.name == name and point.value in fleet]
            for figure in FIGURES:
                yield from _of_two(mine, [fleet[point.value] for point in mine], figure)


def _of_two(mine: Sequence[Point], fleet: Sequence[Point], figure: str) -> Iterator[Crossing]:
    values = [point.value for point in mine]

    def changes(ours: Sequence[float], theirs: Sequence[float]) -> list[tuple[bool, float]]:
        """(whether ours led before, at which value)."""
        leads = [log(a / b) if a < inf and b < inf else 0.0 for a, b in zip(ours, theirs, strict=True)]
        return [
            (a < 0, exp(log(left) + log(right / left) * a / (a - b)))
            for (left, a), (right, b) in pairwise(zip(values, leads, strict=True))
            if a * b < 0
        ]

    middles = changes([point.band(figure).p50 for point in mine], [point.band(figure).p50 for point in fleet])
    count = len(mine[0].outcomes) if mine else 0
    by_draw = [
        changes([point.by_draw(figure)[n] for point in mine], [point.by_draw(figure)[n] for point in fleet])
        for n in range(count)
    ]
    for led, at in middles:
        near = [
            min(alike, key=lambda value: abs(log(value / at)))
            for each in by_draw
            if (alike := [value for before, value in each if before == led])
        ]
        names = (mine[0].name, fleet[0].name) if led else (fleet[0].name, mine[0].name)
        yield Crossing(
            axis=mine[0].axis,
            figure=figure,
            value=band(near or [at]),
            count=len(near),
            of=count,
            before=names[0],
            after=names[1],
        )


def best(points: Sequence[Point], figure: str) -> list[Point]:
    """Those that AWS would run, by the middle of the figure's band, the best first."""
    return sorted((point for point in points if point.would_run), key=lambda point: point.band(figure).p50)


def draws_of(points: Sequence[Point], figure: str) -> dict[str, list[float]]:
    """By name, of those that AWS would run."""
    return {point.name: point.by_draw(figure) for point in points if point.would_run}
