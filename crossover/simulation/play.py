"""Every entrant of a break-even over a grid of epochs, model sizes and workers: what a page with sliders needs beforehand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from crossover.architecture import architecture_of
from crossover.costs.prices import Prices
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.reports.bands import lead
from crossover.simulation.breakeven import (
    EPOCHS,
    PARAMETERS,
    WORKERS,
    Point,
    entered,
    is_rival,
    staffed,
    trained,
)
from crossover.simulation.calibration import Calibration
from crossover.simulation.repetitions import REPETITIONS, SIMULATED_EPOCHS, RepeatedRun, draws, repeated
from crossover.simulation.workload import Workload, calendar

GridSetting = tuple[int, int, int]  # epochs, parameters, workers


@dataclass(frozen=True, kw_only=True)
class PlayGrid:
    """`cells`: by setting the entrants that AWS would run, in the order of `experiments`; `refused`: why it would not run the others, by
    name. All have the same draws.
    """

    experiments: tuple[Experiment, ...]
    calibration: Calibration
    axes: Mapping[str, Sequence[int]]
    own: Mapping[str, int]  # of each axis, as the first file says
    cells: Mapping[GridSetting, Sequence[Point]]
    refused: Mapping[GridSetting, Mapping[str, str]]
    repetitions: int
    prices_as_of: str
    left_out: tuple[str, ...]


def grid(
    experiments: Sequence[Experiment],
    calibration: Calibration,
    price_list: Prices,
    *,
    repetitions: int = REPETITIONS,
    processes: int | None = None,
    sizes: Callable[[Experiment], Workload] = Workload.of,
) -> PlayGrid:
    """Of the experiments and their rivals, with the own number of epochs, parameters and workers among the grid's. Raises as `breakeven`
    does.
    """
    entrants, left_out, calibration = entered(experiments, calibration)
    first, own = entrants[0], {each.name: sizes(each) for each in entrants}
    filed = {"epochs": first.training.epochs, "parameters": own[first.name].parameters, "workers": first.workers}
    usual = {"epochs": EPOCHS, "parameters": PARAMETERS, "workers": WORKERS}
    axes = {name: sorted({*usual[name], value}) for name, value in filed.items()}
    settings = list(product(axes["epochs"], axes["parameters"], axes["workers"]))
    tasks, asked = list[RepeatedRun](), list[tuple[GridSetting, Experiment]]()
    refused: dict[GridSetting, dict[str, str]] = {setting: {} for setting in settings}
    for setting, each in product(settings, entrants):
        epochs, parameters, workers = setting
        workload = own[each.name]
        try:
            made, shared = staffed(trained(each, epochs), workload, workers=workers, filed=first.workers)
            shared = shared if parameters == workload.parameters else shared.sized(parameters)
            calendar(architecture_of(made).resolve(made), shared)
        except ConfigError as error:
            refused[setting][each.name] = str(error)
            continue
        tasks.append(RepeatedRun(made, calibration, shared, price_list, SIMULATED_EPOCHS))
        asked.append((setting, each))
    cells: dict[GridSetting, list[Point]] = {setting: [] for setting in settings}
    for (setting, each), outcomes in zip(
        asked, repeated(tasks, draws(first.seed, repetitions), processes=processes), strict=True
    ):
        point = Point(axis="grid", value=0, name=each.name, rival=is_rival(each), outcomes=outcomes)
        if point.would_run:
            cells[setting].append(point)
        else:
            refused[setting][each.name] = "; ".join(point.problems)
    return PlayGrid(
        experiments=entrants,
        calibration=calibration,
        axes=axes,
        own=filed,
        cells=cells,
        refused=refused,
        repetitions=repetitions,
        prices_as_of=price_list.as_of,
        left_out=tuple(left_out),
    )


def ahead(points: Sequence[Point], figure: str) -> list[list[str]]:
    """For each of the points the names of those that it is surely before, as `breakeven` is sure."""
    found: dict[str, list[str]] = {point.name: [] for point in points}
    for one, other in combinations(points, 2):
        led = lead({one.name: one.by_draw(figure), other.name: other.by_draw(figure)})
        if led is not None and led.is_sure:
            found[led.first].append(other.name if led.first == one.name else one.name)
    return list(found.values())
