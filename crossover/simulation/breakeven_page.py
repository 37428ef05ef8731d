"""Pages of `breakeven`: curves, changes of lead, and sliders that work offline."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from markupsafe import Markup

from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.reports import display, plots
from crossover.reports.display import SeriesLook, lead, look_of_experiment
from crossover.reports.folder import write_atomically
from crossover.reports.pages import Page, Plot, Sheet, as_svg_file
from crossover.reports.prices import Prices
from crossover.reports.report_pages import SCRIPTS, render
from crossover.simulation.breakeven import (
    EPOCHS,
    FIGURES,
    PARAMETERS,
    WORKERS,
    Breakeven,
    Point,
    figures_by_draw,
    is_rival,
    prepare_entrants,
    set_epochs,
    set_workers,
    sort_by_median,
)
from crossover.simulation.calibration import Calibration
from crossover.simulation.repetitions import (
    LIMITS,
    REPETITIONS,
    SIMULATED_EPOCHS,
    RepeatedRun,
    list_draws,
    run_repetitions,
)
from crossover.simulation.workload import Workload, calendar
from crossover.workflow.architecture import architecture_of

# --- breakeven page ---------------------------------------------------------------------------------------------------

AXES = ("parameters", "batch size", "workers", "epochs")
SHOWN: Mapping[str, Callable[[float], str]] = {
    "dollars": display.usd,
    "dollars by the papers' method": display.usd,
    "time": display.seconds,
}
WORDS = {
    "dollars": ("cheapest", "cheaper"),
    "dollars by the papers' method": ("cheapest by the papers' method", "cheaper"),
    "time": ("soonest", "sooner"),
}
LEADS = (("dollars", "cheapest"), ("time", "soonest"))
PAGE, CSV = "breakeven.html", "breakeven.csv"


def write_page(found: Breakeven, out: Path, command: str = "") -> Path:
    """Write the page of a break-even (breakeven.html), its table (breakeven.csv) and one SVG file per plot into the folder `out`, which is
    created if necessary. Return the path of the page. Earlier files are replaced. The page links to the page with sliders only if that is
    in `out` already.

    `found`: the break-even; `command`: command that the page suggests next, "" for none.
    """
    out.mkdir(parents=True, exist_ok=True)
    page = replace(_build_page(found, command), links=links_of(out, CSV, SLIDERS_PAGE))
    for each in page.plots:
        name = each.title.lower().replace(" ", "-").replace(",", "").replace("'", "")
        write_atomically(out / f"{name}.svg", as_svg_file(str(each.svg)).encode())
    write_atomically(out / CSV, to_csv(found).encode())
    write_atomically(out / PAGE, render(page).encode())
    return out / PAGE


def links_of(out: Path, *names: str) -> list[tuple[str, str]]:
    """Return links from a page to other files in the folder `out`, as (file name, link text). Of `names` (PAGE, SLIDERS_PAGE, CSV) those
    that exist; CSV even if it does not exist yet.
    """
    words = {PAGE: "the curves", SLIDERS_PAGE: "sliders", CSV: CSV}
    return [(name, words[name]) for name in names if name == CSV or (out / name).is_file()]


def to_csv(found: Breakeven) -> str:
    """Return the break-even as CSV text with one row per point: its position, and p5, p50 and p95 of every figure, unrounded; empty cells
    if AWS would run it in no draw.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    percentiles = [f"{attribute}_{name}" for attribute in FIGURES.values() for name in display.Band._fields]
    writer.writerow(
        [
            "label",
            "axis",
            "value",
            "name",
            "rival",
            "workers",
            *percentiles,
            "moved_bytes",
            "repetitions",
            "would_run",
            "problems",
        ]
    )
    for point in (*found.here, *found.points):
        values = [value for figure in FIGURES for value in point.band(figure)]
        shown = ["" if value != value else value for value in values]  # NaN: a run without an end
        moved = point.outcomes[0].moved_bytes if point.would_run else ""
        facts = [point.label, point.axis, point.value, point.name, point.rival, point.workers]
        writer.writerow(
            [
                *map(display.escape_formula, facts),
                *shown,
                moved,
                len(point.outcomes),
                point.would_run,
                "; ".join(point.problems),
            ]
        )
    return text.getvalue()


def describe_winner(found: Breakeven) -> str:
    """Return one line for the terminal: which run is cheapest and which is fastest with the settings of the files, by how much, and how
    surely; or that there is no verdict, if fewer than two would run on AWS.
    """
    parts = [
        part
        for figure in ("dollars", "time")
        if (part := display.describe_winner(figures_by_draw(found.here, figure), *WORDS[figure], SHOWN[figure]))
    ]
    if not parts:
        return "[projected] no verdict: fewer than two of these would run on AWS"
    return f"[projected] with these settings: {'; '.join(parts)}."


def crossing_rows(found: Breakeven) -> list[list[str]]:
    """Return one table row for each change of leader: axis, figure, value with p5 and p95, number of draws, leader before, leader after; no
    row if the leader never changes.
    """

    def round_figure(value: float) -> str:
        """Return the number as text with two significant digits."""
        return display.number(float(f"{value:.2g}"))

    return [
        [
            each.axis,
            each.figure,
            f"{round_figure(each.value.p50)} ({round_figure(each.value.p5)} to {round_figure(each.value.p95)})",
            f"{each.count} of {each.of}{'' if display.is_sure(each.count, each.of) else f', {display.OPEN}'}",
            each.before,
            each.after,
        ]
        for each in found.crossings
    ]


CROSSINGS_HEAD = ["over", "by", "at about", "in draws", "until there", "from there on"]


def axis_rows(found: Breakeven, axis: str) -> list[list[str]]:
    """Return the table rows of one axis: for each value one row of dollars and one of time, with the leading run and one cell (p50 and
    spread) per run.
    """
    points = found.points_of_axis(axis)
    names = list(dict.fromkeys(point.name for point in points))
    table = []
    for value in dict.fromkeys(point.value for point in points):
        by_name = {point.name: point for point in points if point.value == value}
        for figure, what in LEADS:
            cells = [_describe_point(by_name.get(name), figure) for name in names]
            table.append([f"{value:,}", figure, f"{what}: {_describe_leader(list(by_name.values()), figure)}", *cells])
    return table


def axis_head(found: Breakeven, axis: str) -> list[str]:
    """Return the column titles of the rows that `axis_rows` returns."""
    return [axis, "figure", "who leads", *dict.fromkeys(point.name for point in found.points_of_axis(axis))]


def _describe_leader(points: Sequence[Point], figure: str) -> str:
    """Return the name of the point that leads in `figure` ("dollars" or "time"). If its lead is not significant, add in how many draws it
    leads; if there is only one point that AWS would run, return that one's name, or "none".
    """
    led = display.lead(figures_by_draw(points, figure))
    if led is None:
        return next((point.name for point in sort_by_median(points, figure)), "none")
    return led.first if led.is_sure else f"{led.first} in {led.wins} of {led.of} draws, {display.OPEN}"


def _describe_point(point: Point | None, figure: str) -> str:
    """Return the table cell of one point: its p50 and spread, or why there is none. `point`: None if the setting is not possible."""
    if point is None:
        return "not possible"
    if not point.would_run:
        return "would not run *"
    band = point.band(figure)
    return f"{SHOWN[figure](band.p50)} {display.spread(*band)}{'' if not point.problems else ' *'}"


def list_notes(found: Breakeven) -> list[str]:
    """Return the assumptions and caveats that a reader of a break-even must know, one sentence each."""
    problems = dict.fromkeys(
        f"* {point.name}, {point.axis} {point.value:,}: {problem}"
        for point in found.points
        for problem in point.problems
    )
    own = [f"{point.name}: {problem}" for point in found.here for problem in point.problems]
    count = len(found.here[0].outcomes)
    return [
        "every figure is projected by simulation, none measured",
        f"each is the p50 of {count} repetitions, p5 and p95 beside it in percent of it or as a band: over stragglers, and over sessions "
        f"whose requests are faster or slower for all that are compared; {LIMITS}",
        f"who leads does so in at least {100 * display.SURE:.0f} % of the paired draws; in fewer, the lead is {display.OPEN}",
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        "every architecture trains as many epochs; what an epoch teaches differs where models are updated more or less often",
        "a model of another size computes and stores as much per parameter as the files' own",
        *([found.rests] if found.rests else []),
        *own,
        *_list_extrapolations(found),
        *problems,
        *found.left_out,
    ]


def _list_extrapolations(found: Breakeven) -> Iterator[str]:
    """Yield one sentence for each run and limit of the measured range that the run exceeds. Looks only at the settings of the files and at
    the last value of each axis.
    """
    said = set[tuple[str, str]]()
    for axis, points in (("here", found.here), *((axis, found.points_of_axis(axis)) for axis in AXES)):
        for point in points:
            where = "" if axis == "here" else f", {axis} {point.value:,}"
            for limit in point.outcomes[0].outside if axis == "here" or point.value == points[-1].value else ():
                if (point.name, limit) not in said:
                    said.add((point.name, limit))
                    yield f"beyond the measured range: {point.name}{where}: {limit}"


def _describe_leaders(points: Sequence[Point]) -> str:
    """Return one sentence: which of the points is cheapest and which is fastest. Empty if fewer than two would run on AWS."""
    leads = [display.describe_leader(figures_by_draw(points, figure), what, SHOWN[figure]) for figure, what in LEADS]
    return f"With these settings {'; '.join(filter(None, leads))}." if any(leads) else ""


NO_LEADER = "Nothing to compare: fewer than two of these would run on AWS."


def choose_looks(experiments: Sequence[Experiment]) -> dict[str, SeriesLook]:
    """Return the colour, line style and marker with which the pages draw each experiment, by the experiment's name."""
    return {each.name: look_of_experiment(each.module, each.sections, n) for n, each in enumerate(experiments)}


def _build_page(found: Breakeven, command: str = "") -> Page:
    """Build the break-even's HTML page as data: plots, tables, notes. `command`: command that the page suggests next."""
    first = found.experiments[0]
    return Page(
        kind="Break-even",
        title=_describe_leaders(found.here) or NO_LEADER,
        subtitle=f"{first.training.model} on {first.data.dataset}, {first.workers} workers, {first.training.epochs} epochs; "
        f"{found.prices_basis}",
        labels=["projected"],
        choices={"over": [axis for axis in AXES if found.points_of_axis(axis)], "figure": list(DRAWN)},
        verdict=describe_winner(found),
        commands=[command] if command else [],
        caveats=list_notes(found)[:5],
        plots=[drawn for axis in AXES if found.points_of_axis(axis) for drawn in _plot_curves(found, axis)],
        sheets=[
            Sheet(
                title="With these settings",
                head=HERE_HEAD,
                rows=_rows_at_own_settings(found),
                words=1,
                label="projected",
            ),
            Sheet(
                title="Where an architecture overtakes its cheapest or soonest rival, or falls behind it",
                head=CROSSINGS_HEAD,
                rows=crossing_rows(found) or [["nowhere in these ranges", *[""] * (len(CROSSINGS_HEAD) - 1)]],
                words=2,
                label="projected",
            ),
            *(
                Sheet(
                    title=f"Over {axis}",
                    head=axis_head(found, axis),
                    rows=axis_rows(found, axis),
                    words=3,
                    label="projected",
                    folded=True,
                )
                for axis in AXES
                if found.points_of_axis(axis)
            ),
            Sheet(
                title="Assumptions and sources",
                head=["", "note"],
                rows=[[str(n), note] for n, note in enumerate(list_notes(found), start=1)],
                words=2,
                folded=True,
                note=f"{found.prices_basis.capitalize()}.",
            ),
        ],
    )


HERE_HEAD = ["", "time", "p5 to p95", "dollars", "p5 to p95"]


def _rows_at_own_settings(found: Breakeven) -> list[list[str]]:
    """Return one table row for each run with the settings of the files: name, time, its p5 to p95, dollars, their p5 to p95. The cheapest
    comes first; runs that AWS would not run come last.
    """
    ran = sort_by_median(found.here, "dollars")
    table = []
    for point in ran:
        cells = ((SHOWN[figure], point.band(figure)) for figure in ("time", "dollars"))
        table.append(
            [
                point.name,
                *(
                    text
                    for shown, (low, middle, high) in cells
                    for text in (shown(middle), f"{shown(low)} to {shown(high)}")
                ),
            ]
        )
    return table + [[point.name, "would not run", "", "", ""] for point in found.here if not point.would_run]


DRAWN = {"dollars": "dollars", "time": "seconds"}  # figures, with what their axis counts


def _plot_curves(found: Breakeven, axis: str) -> list[Plot]:
    """Return two plots over one axis, one of dollars and one of time: a curve of medians per run with a p5-to-p95 band;
    rivals are dashed.
    """
    points = found.points_of_axis(axis)
    fleet = frozenset(point.name for point in points if point.rival)
    drawn = []
    for figure, y in DRAWN.items():
        curves: dict[str, list[tuple[float, float]]] = {}
        around: dict[str, list[tuple[float, float, float]]] = {}
        for point in points:
            if point.would_run:
                name, value, band = point.name, float(point.value), point.band(figure)
                curves.setdefault(name, []).append((value, band.p50))
                around.setdefault(name, []).append((value, band.p5, band.p95))
        title = f"{figure.capitalize()} over {axis}"
        picture = plots.lines(
            curves,
            x=axis,
            y=y,
            name=f"{figure}-{axis}".replace(" ", "-"),
            log_x=True,
            log_y=True,
            dashed=fleet,
            bands=around,
            format_x=_format_short,
            looks=choose_looks(found.experiments),
        )
        drawn.append(
            Plot(
                title=title,
                svg=Markup(picture),
                caption=f"p50, and p5 to p95 as a band. Rivals are dashed; what AWS would not run is left out. The table over {axis} has "
                "each value.",
                label="projected",
                choice=(axis, figure),
            )
        )
    return drawn


def _format_short(value: float) -> str:
    """Return the number with at most one unit letter (k, M or B), such as `3 M`."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


# --- play -------------------------------------------------------------------------------------------------------------
# Every entrant of a break-even over a grid of epochs, model sizes and workers: what a page with sliders needs beforehand.

GridSetting = tuple[int, int, int]  # epochs, parameters, workers


@dataclass(frozen=True, kw_only=True)
class PlayGrid:
    """Simulated results for each combination of (epochs, parameters, workers), for the page with sliders. All combinations have the same
    draws, `repetitions` of them.

    `experiments`, `calibration`: the simulated experiments, rivals included, and the speeds of AWS; `axes`: values of each slider by its
    name; `own`: value of each slider in the first experiment's file; `cells`: by combination, the runs that AWS would run, in the order of
    `experiments`; `refused`: by combination and name, why AWS would not run the others; `left_out`: one sentence for each experiment that
    could not be simulated; `prices_basis`: sentence on the prices.
    """

    experiments: tuple[Experiment, ...]
    calibration: Calibration
    axes: Mapping[str, Sequence[int]]
    own: Mapping[str, int]  # of each axis, as the first file says
    cells: Mapping[GridSetting, Sequence[Point]]
    refused: Mapping[GridSetting, Mapping[str, str]]
    repetitions: int
    prices_basis: str
    left_out: tuple[str, ...]


def simulate_grid(
    experiments: Sequence[Experiment],
    calibration: Calibration,
    price_list: Prices,
    *,
    repetitions: int = REPETITIONS,
    processes: int | None = None,
    sizes: Callable[[Experiment], Workload] = Workload.from_experiment,
) -> PlayGrid:
    """Simulate the experiments and their rivals on a grid of epochs, parameters and workers, and return the grid. The grid includes the
    values of the first experiment's file.

    `calibration`: speeds of AWS; `price_list`: prices; `repetitions`: number of draws; `processes`: by default one per core, affects the
    time only; `sizes`: function that returns an experiment's workload. Raises NoProjection as `breakeven` does and ConfigError as
    `add_rivals` does; an experiment that cannot train at a combination is `refused` there.
    """
    entrants, left_out, calibration = prepare_entrants(experiments, calibration)
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
            made, shared = set_workers(set_epochs(each, epochs), workload, workers=workers, filed=first.workers)
            shared = shared if parameters == workload.parameters else shared.with_parameters(parameters)
            calendar(architecture_of(made).resolve(made), shared)
        except ConfigError as error:
            refused[setting][each.name] = str(error)
            continue
        tasks.append(RepeatedRun(made, calibration, shared, price_list, SIMULATED_EPOCHS))
        asked.append((setting, each))
    cells: dict[GridSetting, list[Point]] = {setting: [] for setting in settings}
    for (setting, each), outcomes in zip(
        asked, run_repetitions(tasks, list_draws(first.seed, repetitions), processes=processes), strict=True
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
        prices_basis=price_list.basis,
        left_out=tuple(left_out),
    )


def find_surely_beaten(points: Sequence[Point], figure: str) -> list[list[str]]:
    """Return one list per point, in the order of `points`: the names of the points that it is significantly better than (lower) in
    `figure`, "dollars" or "time".
    """
    found: dict[str, list[str]] = {point.name: [] for point in points}
    for one, other in combinations(points, 2):
        led = lead({one.name: one.by_draw(figure), other.name: other.by_draw(figure)})
        if led is not None and led.is_sure:
            found[led.first].append(other.name if led.first == one.name else one.name)
    return list(found.values())


# --- play page --------------------------------------------------------------------------------------------------------
# play.html: sliders over a grid that was simulated beforehand. It contains its scripts, and its policy their hashes.

SLIDERS_PAGE = "play.html"
DEADLINES_S = (10, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)
UPLOT = Path(__file__).parents[2] / "node_modules" / "uplot" / "dist"
UPLOT_SHA256 = {  # of 1.6.32, which package-lock.json pins
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
WITHOUT = (
    "The curves are not drawn: uPlot 1.6.32 is not installed here, or its files are not those that were published (make node_modules, in a "
    "checkout); words and figures are whole."
)


def write_sliders(found: PlayGrid, out: Path, uplot: Path = UPLOT) -> Path:
    """Write the page with sliders (play.html) over the grid `found` into the folder `out`, which is created if necessary, and return the
    page's path.

    `uplot`: folder with uPlot's files; if they do not match UPLOT_SHA256, the page has words and figures but no curves. The page links to
    PAGE and CSV in `out`, which `write_page` writes, even if they do not exist yet.
    """
    out.mkdir(parents=True, exist_ok=True)
    made = replace(
        build_sliders_page(found, uplot), links=[(PAGE, "the curves"), (CSV, CSV)]
    )  # `write_page` writes both afterwards
    write_atomically(out / SLIDERS_PAGE, render(made).encode())
    return out / SLIDERS_PAGE


def build_sliders_page(found: PlayGrid, uplot: Path = UPLOT) -> Page:
    """Build the page with sliders as data. `found`: the simulated grid; `uplot`: folder with uPlot's files, for the curves; without them,
    or if they do not match UPLOT_SHA256, the page has no curves.
    """
    first = found.experiments[0]
    scripts, styles = _load_uplot(uplot)
    notes = [
        "every figure is projected by simulation, none measured",
        f"each is the p50 of {found.repetitions} repetitions, p5 to p95 beside it; {LIMITS}",
        "one is called cheapest or soonest where it is in 95 of 100 paired draws, and by a hundredth at least",
        "time is the run's; the time from deploy until all resources exist comes before it",
        "a deadline holds where p95 keeps it",
        f"with {found.own['parameters']:,} parameters it is the file's own model; of another size it computes and stores as much per "
        "parameter as that model does",
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        *found.left_out,
    ]
    own = found.cells[found.own["epochs"], found.own["parameters"], found.own["workers"]]
    return Page(
        kind="What if",
        title=_describe_leaders(own) or NO_LEADER,
        subtitle=f"{first.training.model} on {first.data.dataset}; {found.prices_basis}",
        labels=["projected"],
        play=Markup((SCRIPTS / "play.html").read_text(encoding="utf-8")),
        data=json.dumps(grid_as_json(found), separators=(",", ":"), allow_nan=False),
        styles=styles,
        scripts=[*scripts, Markup((SCRIPTS / "play.js").read_text(encoding="utf-8"))],
        sheets=[Sheet(title="Assumptions and sources", head=["note"], rows=[[note] for note in notes], folded=True)],
    )


def _load_uplot(uplot: Path) -> tuple[list[Markup], list[Markup]]:
    """Return uPlot's script and its style, each in a list; two empty lists if a file is missing or does not match UPLOT_SHA256. `uplot`:
    folder with the files.
    """
    paths = [uplot / name for name in UPLOT_SHA256]
    files = [path.read_bytes() for path in paths if path.is_file()]
    if [hashlib.sha256(file).hexdigest() for file in files] != list(UPLOT_SHA256.values()):
        return [], []
    script, style = (Markup(file.decode()) for file in files)
    return [script], [style]


def grid_as_json(found: PlayGrid) -> Mapping[str, Any]:
    """Return the simulated grid as the data that the script of the page with sliders reads. Runs are numbered by their place in `entrants`
    (name, colour, sign); `begin`: index of the first file's value on each of the `axes`; `deadlines`: in seconds.

    `cells`: one list per setting, the last axis varying fastest; each run is [number, seconds p5, p50, p95, dollars p5, p50, p95, numbers
    of the runs it is surely cheaper than, numbers of those it is surely faster than]. `refused`: in the same order, [number, index into
    `reasons`] of each other run.
    """
    looks = choose_looks(found.experiments)
    numbers = {each.name: n for n, each in enumerate(found.experiments)}

    def round_figure(value: float) -> float:
        """Return the number with six significant digits."""
        return float(f"{value:.6g}")

    cells = [
        [
            [
                numbers[point.name],
                *map(round_figure, (*point.band("time"), *point.band("dollars"))),
                [numbers[name] for name in cheaper],
                [numbers[name] for name in sooner],
            ]
            for point, cheaper, sooner in zip(
                points, find_surely_beaten(points, "dollars"), find_surely_beaten(points, "time"), strict=True
            )
        ]
        for points in found.cells.values()
    ]
    reasons = list(dict.fromkeys(reason for refused in found.refused.values() for reason in refused.values()))
    return {
        "axes": found.axes,
        "begin": {name: values.index(found.own[name]) for name, values in found.axes.items()},
        "deadlines": DEADLINES_S,
        "entrants": [
            {"name": each.name, "colour": looks[each.name].colour, "sign": looks[each.name].sign}
            for each in found.experiments
        ],
        "cells": cells,
        "refused": [
            [[numbers[name], reasons.index(reason)] for name, reason in found.refused[setting].items()]
            for setting in found.cells
        ],
        "reasons": reasons,
        "without": WITHOUT,
    }
