"""Pages of `breakeven`: curves, changes of the best option, and sliders that work offline."""

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
from crossover.reports.display import Band, SeriesLook, lead, look_of_experiment
from crossover.reports.folder import write_atomically
from crossover.reports.pages import Page, Plot, Sheet, as_svg_file
from crossover.reports.prices import Prices
from crossover.reports.report_pages import SCRIPTS, render
from crossover.simulation import start_up
from crossover.simulation.breakeven import (
    FIGURES,
    LEADS,
    READY,
    Breakeven,
    Point,
    describe_option,
    figures_by_draw,
    find_best,
    find_own_settings,
    is_rival,
    list_axis_values,
    prepare_entrants,
    set_epochs,
    set_workers,
    sort_by_median,
    with_workers,
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
    READY: display.seconds,
}
COMPARED = {"dollars": "cheaper", READY: "sooner"}
YOURS = "yours"  # marks the value of the user's own settings on an axis
BEST_RULE = (
    f"one is called cheapest or soonest if it is in at least {100 * display.SURE:.0f} % of the paired draws, and by at least 1 %; else all "
    f"that may be are named, lowest median first, as {display.OPEN}"
)
FROM_DEPLOY = f"{READY}: start-up and run, from deploy on, as in an advice"
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
    if AWS would run it in no draw. `ready_s` is the time from `deploy` on, of which `start_up_s` is the median before the run.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ["ready_s" if figure == READY else attribute for figure, attribute in FIGURES.items()]
    percentiles = [f"{column}_{name}" for column in columns for name in display.Band._fields]
    writer.writerow(
        [
            "label",
            "axis",
            "value",
            "name",
            "rival",
            "workers",
            *percentiles,
            "start_up_s",
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
                point.before_s,
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
    points = _name_in_full(found.experiments, found.here)
    parts = [
        display.describe_winner(
            figures_by_draw(points, figure), what, COMPARED[figure], SHOWN[figure], _list_bands(points, figure)
        )
        for figure, what in LEADS.items()
    ]
    if not any(parts):
        return "[projected] no verdict: fewer than two of these would run on AWS"
    return f"[projected] with your settings: {'; '.join(parts)}."


def list_options(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Return by name what each option consists of with the settings of its file, such as `one function of 1,769 MB`."""
    return {each.name: describe_option(each) for each in experiments}


def _name_in_full(experiments: Sequence[Experiment], points: Sequence[Point]) -> list[Point]:
    """Return the points with what their option consists of in parentheses after its name. `points`: those with the settings of the files of
    `experiments`.
    """
    words = list_options(experiments)
    return [replace(point, name=f"{point.name} ({words[point.name]})") for point in points]


def _list_bands(points: Sequence[Point], figure: str) -> dict[str, Band]:
    """Return the percentiles of `figure` by point name."""
    return {point.name: point.band(figure) for point in points}


def crossing_rows(found: Breakeven) -> list[list[str]]:
    """Return the table rows of the changes of the best option: for each axis, in dollars and in seconds until ready, one row per change or
    one that says that there is none.
    """

    def round_figure(value: float) -> str:
        """Return the number as text with two significant digits."""
        return display.number(float(f"{value:.2g}"))

    table = []
    for axis in dict.fromkeys(point.axis for point in found.points):
        for figure, what in LEADS.items():
            points = found.points_of_axis(axis)
            if not (changes := [each for each in found.crossings if (each.axis, each.figure) == (axis, figure)]):
                first = [point for point in points if point.value == points[0].value]
                table.append([axis, what, "no change", f"{describe_best(find_best(first, figure))} throughout", "", ""])
            for each in changes:
                about = ""
                if each.value is not None:
                    low, middle, high = map(round_figure, each.value)
                    about = f"{middle} ({low} to {high}){'' if each.count == each.of else f' in {each.count} of {each.of} draws'}"
                between = f"{each.left:,} and {each.right:,}"
                table.append([axis, what, between, describe_best(each.before), describe_best(each.after), about])
    return table


CROSSINGS = "Which option is best, and between which values that changes"
CROSSINGS_HEAD = ["over", "which is", "changes between", "up to there", "from there on", "medians equal at about"]


def describe_best(names: Sequence[str]) -> str:
    """Return the names of the best options (see `find_best`) in words: `a`, `a or b (too close to call)`, or `none`."""
    return f"{' or '.join(names)}{f' ({display.OPEN})' if len(names) > 1 else ''}" if names else "none"


def axis_rows(found: Breakeven, axis: str) -> list[list[str]]:
    """Return the table rows of one axis: for each value one row of dollars and one of seconds until ready, with the best run and one cell
    (p50 and spread) per run. The value of the files' settings is marked.
    """
    points = found.points_of_axis(axis)
    names = list(dict.fromkeys(point.name for point in points))
    table = []
    for value in dict.fromkeys(point.value for point in points):
        by_name = {point.name: point for point in points if point.value == value}
        shown = f"{value:,}{f' ({YOURS})' if value == found.own[axis] else ''}"
        for figure, what in LEADS.items():
            cells = [_describe_point(by_name.get(name), figure) for name in names]
            table.append([shown, figure, f"{what}: {describe_best(find_best(list(by_name.values()), figure))}", *cells])
    return table


def axis_head(found: Breakeven, axis: str) -> list[str]:
    """Return the column titles of the rows that `axis_rows` returns."""
    return [axis, "figure", "which is best", *dict.fromkeys(point.name for point in found.points_of_axis(axis))]


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
        BEST_RULE,
        FROM_DEPLOY,
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        "every architecture trains as many epochs; what an epoch teaches differs where models are updated more or less often",
        "a model of another size computes and stores as much per parameter as the files' own",
        *_list_notes_on_workers(found),
        *([found.rests] if found.rests else []),
        *own,
        *_list_extrapolations(found),
        *problems,
        *found.left_out,
    ]


def _list_notes_on_workers(found: Breakeven) -> Iterator[str]:
    """Yield one sentence on the numbers of workers of the architectures, and one on those of single workers over the axis of workers."""
    alone = [each.name for each in found.experiments if architecture_of(each).alone]
    if len(alone) == len(found.experiments):
        return
    yield (
        "over parameters, batch size and epochs, each architecture with several workers has the number of them that makes it cheapest; "
        f"{CSV} lists it"
    )
    if alone:
        yield (
            f"over workers: {', '.join(alone)}: one worker at every value; each of its updates takes as many minibatches as those of all "
            "workers together"
        )


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


def _describe_leaders(experiments: Sequence[Experiment], points: Sequence[Point]) -> str:
    """Return one sentence: which option is cheapest and which is soonest. Empty if fewer than two would run on AWS. `points`: those with
    the settings of the files of `experiments`.
    """
    named = _name_in_full(experiments, points)
    leads = [
        display.describe_leader(figures_by_draw(named, figure), what, SHOWN[figure], _list_bands(named, figure))
        for figure, what in LEADS.items()
    ]
    return f"With your settings {'; '.join(filter(None, leads))}." if any(leads) else ""


NO_LEADER = "Nothing to compare: fewer than two of these would run on AWS."


def choose_looks(experiments: Sequence[Experiment]) -> dict[str, SeriesLook]:
    """Return the colour, line style and marker with which the pages draw each experiment, by the experiment's name."""
    return {each.name: look_of_experiment(each.module, each.sections, n) for n, each in enumerate(experiments)}


def _build_page(found: Breakeven, command: str = "") -> Page:
    """Build the break-even's HTML page as data: plots, tables, notes. `command`: command that the page suggests next."""
    first = found.experiments[0]
    return Page(
        kind="Break-even",
        title=_describe_leaders(found.experiments, found.here) or NO_LEADER,
        subtitle=f"{first.training.model} on {first.data.dataset}, {display.count(first.workers, 'worker')}, "
        f"{display.count(first.training.epochs, 'epoch')}; "
        f"{found.prices_basis}",
        labels=["projected"],
        choices={"over": [axis for axis in AXES if found.points_of_axis(axis)], "figure": list(DRAWN)},
        verdict=describe_winner(found),
        commands=[command] if command else [],
        caveats=list_notes(found)[:5],
        plots=[drawn for axis in AXES if found.points_of_axis(axis) for drawn in _plot_curves(found, axis)],
        sheets=[
            Sheet(
                title="With your settings",
                head=HERE_HEAD,
                rows=rows_at_own_settings(found),
                words=2,
                label="projected",
                note=f"{FROM_DEPLOY}.",
            ),
            Sheet(title=CROSSINGS, head=CROSSINGS_HEAD, rows=crossing_rows(found), words=5, label="projected"),
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


HERE_HEAD = ["option", "consists of", READY, "p5 to p95", "dollars", "p5 to p95"]


def rows_at_own_settings(found: Breakeven) -> list[list[str]]:
    """Return one table row for each run with the settings of the files: name, what it consists of, seconds until ready, their p5 to p95,
    dollars, their p5 to p95. The cheapest comes first; runs that AWS would not run come last.
    """
    words = list_options(found.experiments)
    ran = sort_by_median(found.here, "dollars")
    table = []
    for point in ran:
        cells = ((SHOWN[figure], point.band(figure)) for figure in (READY, "dollars"))
        table.append(
            [
                point.name,
                words[point.name],
                *(
                    text
                    for shown, (low, middle, high) in cells
                    for text in (shown(middle), f"{shown(low)} to {shown(high)}")
                ),
            ]
        )
    return table + [
        [point.name, words[point.name], "would not run", "", "", ""] for point in found.here if not point.would_run
    ]


DRAWN = {"dollars": "dollars", READY: "seconds, start-up included"}  # figures, with what their axis counts


def _plot_curves(found: Breakeven, axis: str) -> list[Plot]:
    """Return two plots over one axis, one of dollars and one of seconds until ready: a curve of medians per run with a p5-to-p95 band;
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
        title = f"{figure.capitalize()}, over {axis}"
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
            marked=(found.own[axis], YOURS),
        )
        drawn.append(
            Plot(
                title=title,
                svg=Markup(picture),
                caption=f"p50, and p5 to p95 as a band. Rivals are dashed; the dotted line is at your settings; what AWS would not run is "
                f"left out. The table over {axis} has each value.",
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
    all_filed = find_own_settings(entrants, own[first.name])
    axes = {name: list_axis_values(entrants, all_filed)[name] for name in ("epochs", "parameters", "workers")}
    filed = {name: all_filed[name] for name in axes}
    settings = list(product(axes["epochs"], axes["parameters"], axes["workers"]))
    tasks, asked = list[RepeatedRun](), list[tuple[GridSetting, Experiment]]()
    refused: dict[GridSetting, dict[str, str]] = {setting: {} for setting in settings}
    for setting, each in product(settings, entrants):
        epochs, parameters, workers = setting
        workload = own[each.name]
        try:
            made, shared = set_workers(set_epochs(each, epochs), workload, workers=workers, filed=filed["workers"])
            shared = shared if parameters == workload.parameters else shared.with_parameters(parameters)
            calendar(architecture_of(made).resolve(made), shared)
        except ConfigError as error:
            refused[setting][each.name] = str(error)
            continue
        tasks.append(RepeatedRun(made, calibration, shared, price_list, SIMULATED_EPOCHS))
        asked.append((setting, each))
    parts = {each.name: tuple(start_up.list_parts_of(each, calibration)) for each in entrants}
    cells: dict[GridSetting, list[Point]] = {setting: [] for setting in settings}
    for (setting, each), outcomes in zip(
        asked, run_repetitions(tasks, list_draws(first.seed, repetitions), processes=processes), strict=True
    ):
        point = Point(
            axis="grid",
            value=0,
            name=each.name,
            rival=is_rival(each),
            outcomes=outcomes,
            start_up=parts[each.name],
        )
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
    `figure`, a key of LEADS.
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
        BEST_RULE,
        FROM_DEPLOY,
        "a deadline holds where p95 keeps it",
        f"with {found.own['parameters']:,} parameters it is the file's own model; of another size it computes and stores as much per "
        "parameter as that model does",
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        *found.left_out,
    ]
    own = found.cells[found.own["epochs"], found.own["parameters"], found.own["workers"]]
    return Page(
        kind="What if",
        title=_describe_leaders(found.experiments, own) or NO_LEADER,
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
    (name, colour, sign, and words: what the run consists of at each number of workers); `begin`: index of the first file's value on each of
    the `axes`; `deadlines`: in seconds.

    `cells`: one list per setting, the last axis varying fastest; each run is [number, seconds until ready p5, p50, p95, dollars p5, p50,
    p95, numbers of the runs it is surely cheaper than, numbers of those it is surely sooner than]. `refused`: in the same order, [number,
    index into `reasons`] of each other run.
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
                *map(round_figure, (*point.band(READY), *point.band("dollars"))),
                [numbers[name] for name in cheaper],
                [numbers[name] for name in sooner],
            ]
            for point, cheaper, sooner in zip(
                points, find_surely_beaten(points, "dollars"), find_surely_beaten(points, READY), strict=True
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
            {
                "name": each.name,
                "colour": looks[each.name].colour,
                "sign": looks[each.name].sign,
                "words": [
                    describe_option(each if architecture_of(each).alone else with_workers(each, workers))
                    for workers in found.axes["workers"]
                ],
            }
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
