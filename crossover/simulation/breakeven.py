"""Find which option is cheapest and which is soonest, and where that changes, over four axes: model size, batch size, workers and epochs.

Options are the given experiments and their rivals: one function, one machine, one GPU, and a fleet with as many GPUs as workers. Over model
size, batch size and epochs an architecture has the number of workers that makes its run cheapest.

Every figure is projected, over repetitions. The best option is one if it leads in at least 95 % of the paired repetitions; otherwise all
that are too close to call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import exp, inf, log
from typing import NamedTuple

from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment
from crossover.reports import bill, display
from crossover.reports.display import Band, band_of, lead
from crossover.reports.prices import Prices
from crossover.simulation import calibration as assumptions
from crossover.simulation import start_up
from crossover.simulation.calibration import Calibration
from crossover.simulation.mirror import models_of
from crossover.simulation.repetitions import (
    REPETITIONS,
    SIMULATED_EPOCHS,
    Draw,
    Outcome,
    RepeatedRun,
    find_problems,
    keep_feasible,
    list_draws,
    list_values,
    run_repetitions,
    simulate_draw,
)
from crossover.simulation.simulate import LABEL
from crossover.simulation.start_up import StartUpPart
from crossover.simulation.workload import Workload, calendar
from crossover.training.gradients import build_gpu_baseline, build_single_baseline
from crossover.workflow.architecture import architecture_of, steps

PARAMETERS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
BATCHES = (1 / 8, 1 / 4, 1 / 2, 1, 2)  # of the files' own
WORKERS = (4, 8, 16, 32, 64)
EPOCHS = (1, 2, 5, 10, 20, 50, 100)
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # of workers: the cheapest is chosen, in a session of median speed
ALONE = {"one-function": "function", "one-machine": "instance", "one-gpu": "gpu"}


READY = "ready in"  # seconds from `deploy` on: start-up and run
FIGURES: Mapping[str, str] = {
    "dollars": "usd",
    "dollars by the papers' method": "paper_method_usd",
    READY: "seconds",
}
LEADS = {"dollars": "cheapest", READY: "soonest"}  # figures of which the best option is named, with the word for it


@dataclass(frozen=True, kw_only=True)
class Point:
    """The simulated results of one run at one value of one axis. `axis`: its name, "here" for the settings of the files, "grid" on the page
    with sliders; `value`: position on the axis, such as a number of workers; `name`: the experiment's; `rival`: whether the run is a rival
    (see `is_rival`); `outcomes`: one per random draw; `workers`: of the run; `start_up`: parts of the time before it.

    All points of one break-even have the same draws, so they can be compared draw by draw. `label` is always "projected".
    """

    axis: str
    value: int
    name: str
    rival: bool
    outcomes: tuple[Outcome, ...]
    workers: int = 1
    start_up: tuple[StartUpPart, ...] = ()
    label: str = LABEL

    @property
    def before_s(self) -> float:
        """Median seconds of start-up, before the run."""
        return sum(each.seconds for each in self.start_up)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Reasons why AWS would not run this point at all, or not in every repetition; empty if it would run all."""
        return find_problems(self.outcomes)

    @property
    def would_run(self) -> bool:
        """True if AWS would run this point in more than half of the repetitions; otherwise it cannot win."""
        return 2 * len(keep_feasible(self.outcomes)) > len(self.outcomes)

    def by_draw(self, figure: str) -> list[float]:
        """Return the values of one figure, one per draw in draw order; infinite for draws in which AWS would not run the point. `figure`: a
        key of FIGURES, such as "dollars" or READY (seconds of the run and of the median start-up).
        """
        values = list_values(self.outcomes, FIGURES[figure])
        return [value + self.before_s for value in values] if figure == READY else values

    def band(self, figure: str) -> Band:
        """Return the p5, p50 and p95 of one figure over the draws in which AWS would run the point; NaN if there are none. `figure`: a key
        of FIGURES, such as "dollars" or READY (seconds of run and start-up, as `advise` has them).
        """
        if figure == READY and (ran := keep_feasible(self.outcomes)):
            return start_up.band_until_ready([each.seconds for each in ran], self.before_s, self.start_up)
        return band_of(self.by_draw(figure))


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A change of the best options in `figure` between two neighbouring values of an axis, `left` and `right`. `before`, `after`: names of
    the best runs at both (see `find_best`).

    `value`: where on the axis the medians of the two lowest runs are equal, interpolated on logarithmic scales, between p5 and p95 over the
    draws in which the two are equal somewhere, which are `count` of all `of` draws. None if the same run has the lowest median at both
    values, or if AWS would not run one of the two there.
    """

    axis: str
    figure: str
    left: int
    right: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    value: Band | None
    count: int
    of: int


@dataclass(frozen=True, kw_only=True)
class Breakeven:
    """Result of comparing experiments along several axes. `experiments`, `calibration`: the compared experiments, rivals included, and the
    speeds of AWS; `here`: points with the settings of the experiments' own files; `points`: points at all other values of all axes;
    `crossings`: changes of the best options; `own`: value of the files' settings on each axis; `left_out`: one sentence for each experiment
    or value that could not be simulated; `prices_basis`: sentence on the prices; `rests`: sentence on the assumptions that the cheapest run
    depends on, "" if no run is significantly cheapest.
    """

    experiments: tuple[Experiment, ...]
    calibration: Calibration
    here: tuple[Point, ...]
    points: tuple[Point, ...]
    crossings: tuple[Crossing, ...]
    own: Mapping[str, int]
    left_out: tuple[str, ...]
    prices_basis: str
    rests: str = ""  # on the assumptions of the cheapest run with the files' settings

    def points_of_axis(self, axis: str) -> list[Point]:
        """Return the points of this break-even on one axis: "parameters", "batch size", "workers" or "epochs"."""
        return [point for point in self.points if point.axis == axis]


def breakeven(
    experiments: Sequence[Experiment],
    calibration: Calibration,
    price_list: Prices,
    *,
    repetitions: int = REPETITIONS,
    processes: int | None = None,
    sizes: Callable[[Experiment], Workload] = Workload.from_experiment,
) -> Breakeven:
    """Simulate the experiments and their rivals at each value of all axes, and return the points and the changes of the best
    options. All points have the draws of the first experiment's seed.

    On the axes parameters, batch size and epochs, each architecture has the number of workers at which it is cheapest. An experiment that
    cannot be projected is left out. `calibration`: speeds of AWS; `price_list`: prices; `repetitions`: number of draws; `processes`: by
    default one per core, affects the time only; `sizes`: function that returns an experiment's workload. Raises NoProjection if only rivals
    can be projected or a size is not known; ConfigError as `add_rivals` does, or if an experiment cannot train with its own settings. A
    value of an axis at which an experiment cannot train is left out.
    """
    entrants, left_out, calibration = prepare_entrants(experiments, calibration)
    asked, tasks = list[PlannedPoint](), list[RepeatedRun]()
    counted = partial(_choose_workers, calibration=calibration, price_list=price_list)
    as_filed = {entrant.name: sizes(entrant) for entrant in entrants}
    at_best = {entrant.name: counted(entrant, as_filed[entrant.name]) for entrant in entrants}
    filed_settings = find_own_settings(entrants, as_filed[entrants[0].name])
    for axis, value, change in _list_axis_points(entrants, as_filed[entrants[0].name], filed_settings):
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
            asked.append(
                PlannedPoint(axis, value, entrant.name, is_rival(entrant), experiment.workers, tasks.index(task))
            )
    drawn = list_draws(entrants[0].seed, repetitions)
    done = run_repetitions(tasks, drawn, processes=processes)
    parts = {each.name: tuple(start_up.list_parts_of(each, calibration)) for each in entrants}
    found = [
        Point(
            axis=a.axis,
            value=a.value,
            name=a.name,
            rival=a.rival,
            workers=a.workers,
            outcomes=done[a.task],
            start_up=parts[a.name],
        )
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
        crossings=tuple(find_crossings(points)),
        own=filed_settings,
        left_out=tuple(left_out),
        prices_basis=price_list.basis,
        rests=_describe_assumptions(here, filed, calibration),
    )


def _describe_assumptions(here: Sequence[Point], filed: Mapping[str, RepeatedRun], calibration: Calibration) -> str:
    """Return a sentence on the assumptions that decide which run is cheapest, found by simulating each run once, in the same draw, under
    changed calibrations. Return "" if no run is significantly cheapest. `here`: points with the settings of the files; `filed`: the run to
    simulate for each of them, by name.
    """
    led = lead(figures_by_draw(here, "dollars"))
    if led is None or not led.is_sure:
        return ""
    running = [point.name for point in here if point.would_run]

    def cheapest(cloud: Calibration) -> str:
        """Return the name of that one of the outer call's runs (`running`) that is cheapest with the calibration `cloud`: each is simulated
        once, always with seed 1.
        """
        return min(running, key=lambda name: simulate_draw(filed[name]._replace(calibration=cloud), Draw(1, 0.0)).usd)

    gpus = any(filed[name].experiment.module == "gpu" or name == "one-gpu" for name in running)
    return assumptions.describe_assumptions(cheapest, calibration, gpus=gpus)


def prepare_entrants(
    experiments: Sequence[Experiment], calibration: Calibration
) -> tuple[tuple[Experiment, ...], list[str], Calibration]:
    """Add the missing rivals to the experiments, as `add_rivals` does. Return three values: all of them that can be simulated, one reason
    for each that cannot, and the calibration with the uncertainty of its speed for their model. Raises as `add_rivals` and
    `keep_projectable` do.
    """
    entrants, left_out = keep_projectable(add_rivals(experiments))
    return entrants, left_out, calibration.with_uncertainty_of(entrants[0].training.model)


def keep_projectable(experiments: Sequence[Experiment]) -> tuple[tuple[Experiment, ...], list[str]]:
    """Return the experiments that the simulator has a model for, and one reason for each of the others. Raises NoProjection if an
    experiment is left out and only rivals remain.
    """
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


def add_rivals(experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Return the experiments, followed by each rival (one function, machine or GPU alone; a GPU fleet if an experiment has several workers)
    that is not among them already. Raises ConfigError if there is no experiment, if two have the same name, or if they differ in model,
    data set, batch size or, unless one has a single worker, number of workers.
    """
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
    rivals = {name: _build_single_rival(first, name, on) for name, on in ALONE.items()}
    if several := [each for each in experiments if each.workers > 1]:
        rivals["gpu"] = build_gpu_baseline(with_workers(several[0], several[0].workers), "gpu")
    return (*experiments, *(rival for name, rival in rivals.items() if name not in given))


def describe_option(experiment: Experiment) -> str:
    """Return what a run consists of, in the words that `advise` has for a candidate, such as `4 functions of 1,769 MB, spirt`."""
    architecture = architecture_of(experiment)
    computing = [
        experiment.functions.memory_of(step.name, torch=True)
        for step in steps(architecture)
        if step.needs_torch(experiment)
    ]
    fleets = bill.list_program_fleets(experiment, architecture)
    workers = display.describe_workers(
        sum(each.count for each in fleets) or experiment.workers,
        memory_mb=max(computing, default=0),
        instance=fleets[0].instance_type if fleets else "",
        spot=any(each.spot for each in fleets),
    )
    if architecture.alone:
        return workers
    name = display.name_architecture(architecture.name, experiment.storage.channel, experiment.exchange.compression)
    return f"{workers}, {name}"


def is_rival(experiment: Experiment) -> bool:
    """Return True if the experiment belongs to the rivals, with which architectures are compared: a GPU fleet, or a single worker."""
    return experiment.module in ("gpu", "single")


def _rival_of(experiment: Experiment) -> str:
    """Return which of the rivals this experiment is: "gpu" for a GPU fleet, or a key of ALONE such as "one-function"; "" for all other
    architectures.
    """
    if experiment.module == "single":
        on = experiment.sections.get("single", {}).get("on", "function")
        return next(name for name, where in ALONE.items() if where == on)
    return "gpu" if experiment.module == "gpu" else ""


def _build_single_rival(first: Experiment, name: str, on: str) -> Experiment:
    """Build the experiment of a single worker with the settings of `first`, with a thread for every vCPU that is paid for. `name`: name of
    the new experiment; `on`: where it runs: "function", "instance" or "gpu".
    """
    training = replace(first.training, threads="auto")
    return replace(
        build_single_baseline(first, name), training=training, sections={**first.sections, "single": {"on": on}}
    )


Changed = tuple[Experiment, Workload]
Change = Callable[[Experiment, Workload], Changed]


class PlannedPoint(NamedTuple):
    """A point of a break-even that is still to be simulated. `axis`, `value`: its axis and position; `name`: name of the run; `rival`:
    whether the run is a rival; `workers`: number of its workers; `task`: index, in the list of tasks, of the simulation that gives its
    outcomes; several points may share one.
    """

    axis: str
    value: int
    name: str
    rival: bool
    workers: int
    task: int


def find_own_settings(entrants: Sequence[Experiment], base: Workload) -> dict[str, int]:
    """Return the value of the entrants' own settings on each axis; "workers" is 1 if each has a single worker. `base`: workload of the
    first.
    """
    first = entrants[0]
    return {
        "parameters": base.parameters,
        "batch size": first.training.batch_size,
        "workers": next((each.workers for each in entrants if not architecture_of(each).alone), 1),
        "epochs": first.training.epochs,
    }


def list_axis_values(entrants: Sequence[Experiment], own: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the ascending values of each axis, among them the settings `own`. On the axis of workers that is the only one if each of
    `entrants` has a single worker.
    """
    batches = [max(1, int(share * own["batch size"])) for share in BATCHES]
    counts = () if all(architecture_of(each).alone for each in entrants) else WORKERS
    usual = {"parameters": PARAMETERS, "batch size": batches, "workers": counts, "epochs": EPOCHS}
    return {axis: sorted({*values, own[axis]}) for axis, values in usual.items()}


def _list_axis_points(
    entrants: Sequence[Experiment], base: Workload, own: Mapping[str, int]
) -> Iterator[tuple[str, int, Change]]:
    """Yield (axis, value, change) for each value of each axis, after ("here", 0, no change). A change is a function that takes an
    experiment and its workload and returns both at that value; all other settings stay as in the files. `base`: workload of the first of
    `entrants`, whose settings are `own`; a batch size above its number of samples is left out, and so is an axis of a single number of
    workers.
    """
    values = list_axis_values(entrants, own)
    yield "here", 0, lambda e, own: (e, own)
    for value in values["parameters"]:
        yield "parameters", value, lambda e, own, value=value: (e, own.with_parameters(value))  # type: ignore[misc]
    for value in values["batch size"]:
        if value <= max(sum(base.samples), own["batch size"]):
            yield "batch size", value, partial(_set_batch_size, batch_size=value)
    for value in values["workers"] if len(values["workers"]) > 1 else ():
        yield "workers", value, partial(set_workers, workers=value, filed=own["workers"])
    for value in values["epochs"]:
        yield "epochs", value, lambda e, own, value=value: (set_epochs(e, value), own)  # type: ignore[misc]


def _set_batch_size(experiment: Experiment, own: Workload, *, batch_size: int) -> Changed:
    """Return the experiment and its workload `own` with another batch size, on the same data; samples that do not fill a minibatch are left
    out. Both are unchanged if the experiment has that batch size.
    """
    if batch_size == experiment.training.batch_size:
        return experiment, own
    batches = own.with_equal_minibatches(minibatches=max(1, sum(own.samples) // batch_size), batch_size=batch_size)
    return replace(experiment, training=replace(experiment.training, batch_size=batch_size)), batches


def set_workers(experiment: Experiment, own: Workload, *, workers: int, filed: int = 1) -> Changed:
    """Return the experiment and its workload `own` for `workers` workers, among which the same data is divided. Samples that do not fill a
    minibatch are left out; a worker has one minibatch at least, a smaller one if the data does not fill it.

    A single worker stays single, but averages as many minibatches per update as that many workers do together. `filed`: number of workers
    for which the settings of a single worker are meant. Both are unchanged if the experiment has `workers` workers, or is meant for them.
    """
    if workers == (filed if architecture_of(experiment).alone else experiment.workers):
        return experiment, own
    if architecture_of(experiment).alone:
        every = experiment.exchange.every or 1
        together = every if every == "epoch" else min(own.minibatches, max(1, every * workers // filed))
        return replace(experiment, exchange=replace(experiment.exchange, every=together)), own
    each, batch = sum(own.samples) * experiment.workers // workers, experiment.training.batch_size
    split = own.with_equal_minibatches(minibatches=max(1, each // batch), batch_size=min(batch, max(1, each)))
    return with_workers(experiment, workers), split


def with_workers(experiment: Experiment, workers: int) -> Experiment:
    """Return the experiment with another number of workers, and as many GPU instances as these need."""
    gpu = replace(experiment.gpu, instances=max(1, workers // experiment.gpu.gpus_per_instance))
    return replace(experiment, workers=workers, gpu=gpu)


def set_epochs(experiment: Experiment, epochs: int) -> Experiment:
    """Return the experiment with `epochs` epochs of training. If the number changes, its limit of steps (`training.steps`) is dropped."""
    return replace(experiment, training=experiment.training.with_epochs(epochs))


def _choose_workers(experiment: Experiment, own: Workload, *, calibration: Calibration, price_list: Prices) -> Changed:
    """Return the experiment and its workload with the number of workers that makes the run cheapest in one simulation without random spread
    of requests. Tries the experiment's own number and those of COUNTS; skips those that are not valid or that AWS would not run. Rivals,
    and an experiment for which no number remains, are returned unchanged.
    """
    if is_rival(experiment):
        return experiment, own
    cheapest, best_usd = (experiment, own), inf
    for count in dict.fromkeys((experiment.workers, *COUNTS)):
        changed = set_workers(experiment, own, workers=count)
        try:
            found = simulate_draw(
                RepeatedRun(changed[0], calibration, changed[1], price_list, SIMULATED_EPOCHS), Draw(1, 0.0)
            )
        except ConfigError:
            continue
        if not found.problems and found.usd < best_usd:
            cheapest, best_usd = changed, found.usd
    return cheapest


# --- who leads where --------------------------------------------------------------------------------------------------


def find_best(points: Sequence[Point], figure: str) -> tuple[str, ...]:
    """Return the name of the point that is significantly lowest in `figure` (a key of FIGURES); if there is none, the name of the one with
    the lowest median, followed by those that are too close to it to call. Empty if AWS would run none of them.
    """
    if not (ranked := sort_by_median(points, figure)):
        return ()
    first, draws = ranked[0].name, figures_by_draw(points, figure)
    leads = {name: lead({first: draws[first], name: values}) for name, values in draws.items() if name != first}
    return (first, *(name for name, led in leads.items() if led is not None and not led.is_sure))


def find_crossings(points: Sequence[Point]) -> Iterator[Crossing]:
    """Yield every change of the best options on every axis, in dollars and in the seconds until they are ready, whichever options these
    are.
    """
    for axis in dict.fromkeys(point.axis for point in points):
        by_value: dict[int, list[Point]] = {}
        for point in points:
            if point.axis == axis:
                by_value.setdefault(point.value, []).append(point)
        for figure in LEADS:
            best = {value: find_best(by_value[value], figure) for value in sorted(by_value)}
            for left, right in pairwise(best):
                if best[left] != best[right]:
                    value, count = _locate_crossing(by_value, left, right, figure)
                    yield Crossing(
                        axis=axis,
                        figure=figure,
                        left=left,
                        right=right,
                        before=best[left],
                        after=best[right],
                        value=value,
                        count=count,
                        of=len(by_value[left][0].outcomes),
                    )


def _locate_crossing(
    by_value: Mapping[int, Sequence[Point]], left: int, right: int, figure: str
) -> tuple[Band | None, int]:
    """Return `value` and `count` of a Crossing: where on an axis the run with the lowest median at `left` and the one at `right` are equal
    in `figure`, and in how many draws they are. Of several places in a draw the nearest to that of the medians counts. `by_value`: all
    points of the axis.
    """
    ranked = [sort_by_median(by_value[value], figure) for value in (left, right)]
    if not all(ranked) or ranked[0][0].name == ranked[1][0].name:
        return None, 0
    before, after = (points[0] for points in ranked)
    pairs = {
        value: [point for name in (before.name, after.name) for point in at if point.name == name and point.would_run]
        for value, at in sorted(by_value.items())
    }
    pairs = {value: pair for value, pair in pairs.items() if len(pair) == 2}
    if left not in pairs or right not in pairs:
        return None, 0

    def list_places(gaps: Mapping[int, float]) -> list[float]:
        """Return where the gap, negative while the first is lower, turns positive. `gaps`: logarithm of the ratio of both at each value."""
        return [
            exp(log(low) + log(high / low) * a / (a - b)) for (low, a), (high, b) in pairwise(gaps.items()) if a < 0 < b
        ]

    def gap(one: float, other: float) -> float:
        """Return the logarithm of the ratio of both, 0 if one is infinite."""
        return log(one / other) if one < inf and other < inf else 0.0

    medians = {value: gap(*(each.band(figure).p50 for each in pairs[value])) for value in (left, right)}
    if not (crossed := list_places(medians)):
        return None, 0
    (middle,) = crossed
    draws = [
        list_places({value: gap(*(each.by_draw(figure)[n] for each in pair)) for value, pair in pairs.items()})
        for n in range(len(before.outcomes))
    ]
    near = [min(places, key=lambda place: abs(log(place / middle))) for places in draws if places]
    low, _, high = band_of(near or [middle])
    return Band(min(low, middle), middle, max(high, middle)), len(near)


def sort_by_median(points: Sequence[Point], figure: str) -> list[Point]:
    """Return the points that AWS would run, without the others, sorted by the median of `figure` (a key of FIGURES), lowest first."""
    return sorted((point for point in points if point.would_run), key=lambda point: point.band(figure).p50)


def figures_by_draw(points: Sequence[Point], figure: str) -> dict[str, list[float]]:
    """Return the values of `figure` in each draw by point name, for the points that AWS would run. `figure`: a key of FIGURES."""
    return {point.name: point.by_draw(figure) for point in points if point.would_run}
