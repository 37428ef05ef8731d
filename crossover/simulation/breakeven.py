"""Where serverless overtakes the GPU fleet, or the other way round: over model size, batch, workers and epochs, in seconds and in dollars.

Every figure is projected. A run of many epochs is simulated for a few and lengthened by its last ones: epochs after the first are alike.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log, nan

from crossover.architecture import load
from crossover.costs.prices import Prices
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.simulation.calibration import Calibration
from crossover.simulation.simulate import Simulated, models_of, simulate
from crossover.simulation.workload import Workload

SIMULATED_EPOCHS = 3
LEVEL = 1.05  # projections closer than this are about level
PARAMETERS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # of the files' own
WORKERS = (4, 8, 16, 32, 64)
EPOCHS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run at one value of an axis. `problems`: why AWS would not run it; it cannot win. Figures of a run without an end are NaN."""

    axis: str
    value: int
    name: str
    gpu: bool
    seconds: float
    usd: float
    paper_method_usd: float
    moved_bytes: float
    problems: tuple[str, ...]
    label: str = "projected"


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Between two values of an axis the lead in `figure` changes from one to the other; `value`: where, on a logarithmic scale."""

    axis: str
    figure: str
    value: float
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
    on_point: Callable[[Point], None] = lambda point: None,
) -> Breakeven:
    """The experiments beside a GPU fleet of as many GPUs, which is added unless one of them is it.

    One whose steps nobody has described is left out. Raises NoProjection where that leaves nothing to compare, or the sizes are not known;
    ConfigError where the experiments do not train the same model on the same data.
    """
    entrants, left_out = _projectable(with_gpu(experiments))
    first, points = entrants[0], list[Point]()
    base = Workload.of(first)

    def run(axis: str, value: int, experiment: Experiment, workload: Workload) -> Point:
        point = _point(axis, value, experiment, workload, calibration, price_list)
        on_point(point)
        return point

    here = [run("here", 0, entrant, Workload.of(entrant)) for entrant in entrants]
    for axis, value, change in _axes(first, base):
        for entrant in entrants:
            try:
                points.append(run(axis, value, *change(entrant)))
            except ConfigError as error:
                left_out.append(f"{entrant.name}, {axis} {value:,}: {error}")
    return Breakeven(
        experiments=entrants,
        calibration=calibration,
        here=tuple(here),
        points=tuple(points),
        crossings=tuple(_crossings(points)),
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


def _batched(experiment: Experiment, batch_size: int) -> Experiment:
    return replace(experiment, training=replace(experiment.training, batch_size=batch_size))


def _staffed(experiment: Experiment, workers: int) -> Experiment:
    gpu = replace(experiment.gpu, instances=max(1, workers // experiment.gpu.gpus_per_instance))
    return replace(experiment, workers=workers, gpu=gpu)


def _trained(experiment: Experiment, epochs: int) -> Experiment:
    return replace(experiment, training=replace(experiment.training, epochs=epochs))


def _point(
    axis: str, value: int, experiment: Experiment, workload: Workload, calibration: Calibration, price_list: Prices
) -> Point:
    epochs = experiment.training.epochs
    run = simulate(
        _trained(experiment, min(epochs, SIMULATED_EPOCHS)), calibration, workload=workload, price_list=price_list
    )
    figures = [run.seconds, run.usd, run.paper_method_usd, float(run.moved_bytes)]
    if not run.finished:
        figures = [nan] * len(figures)
    elif epochs > SIMULATED_EPOCHS:
        shorter = simulate(
            _trained(experiment, SIMULATED_EPOCHS - 1), calibration, workload=workload, price_list=price_list
        )
        figures = _lengthened(figures, shorter, epochs - SIMULATED_EPOCHS)
    seconds, usd, paper, moved = figures
    return Point(
        axis=axis,
        value=value,
        name=experiment.name,
        gpu=experiment.module == "gpu",
        seconds=seconds,
        usd=usd,
        paper_method_usd=paper,
        moved_bytes=moved,
        problems=run.problems,
    )


def _lengthened(figures: Sequence[float], shorter: Simulated, more: int) -> list[float]:
    """By `more` epochs, each as the last one was."""
    before = (shorter.seconds, shorter.usd, shorter.paper_method_usd, float(shorter.moved_bytes))
    return [long + more * max(0.0, long - short) for long, short in zip(figures, before, strict=True)]


# --- who leads where --------------------------------------------------------------------------------------------------

FIGURES: Mapping[str, Callable[[Point], float]] = {
    "dollars": lambda point: point.usd,
    "dollars by the papers' method": lambda point: point.paper_method_usd,
    "time": lambda point: point.seconds,
}


def _crossings(points: Sequence[Point]) -> Iterator[Crossing]:
    """Every change of lead between an architecture and the GPU fleet."""
    for axis in dict.fromkeys(point.axis for point in points):
        ours = [point for point in points if point.axis == axis]
        fleet = {point.value: point for point in ours if point.gpu}
        for name in dict.fromkeys(point.name for point in ours if not point.gpu):
            mine = [point for point in ours if point.name == name and not point.problems and point.value in fleet]
            for figure, of in FIGURES.items():
                for left, right in pairwise(mine):
                    a, b = (log(of(each) / of(fleet[each.value])) for each in (left, right))
                    if a * b < 0:
                        at = exp(log(left.value) + (log(right.value) - log(left.value)) * a / (a - b))
                        gpu = fleet[left.value].name
                        before, after = (name, gpu) if a < 0 else (gpu, name)
                        yield Crossing(axis=axis, figure=figure, value=at, before=before, after=after)


def best(points: Sequence[Point], figure: str) -> list[Point]:
    """Those that AWS would run, by the figure, the best first."""
    return sorted((point for point in points if not point.problems), key=FIGURES[figure])
