"""The break-even as tables, curves, CSV and one line: what the terminal and the page show. Every figure is labelled."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from crossover.experiment import Experiment
from crossover.reports import bands, display, plots
from crossover.reports.folder import write_atomically
from crossover.reports.html import render
from crossover.reports.looks import PALETTE, SeriesLook, of_experiment
from crossover.reports.page import Page, Plot, Sheet, Tile, plot
from crossover.simulation.breakeven import FIGURES, Breakeven, Point, best, draws_of
from crossover.simulation.repetitions import LIMITS

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


def write(found: Breakeven, out: Path, command: str = "") -> Path:
    """`breakeven.html`, `breakeven.csv` and one SVG per plot into `out`; the path of the page. `command`: what to type next."""
    out.mkdir(parents=True, exist_ok=True)
    page = _page(found, command)
    for each in page.plots:
        name = each.title.lower().replace(" ", "-").replace(",", "").replace("'", "")
        write_atomically(out / f"{name}.svg", _standing_alone(str(each.svg)).encode())
    write_atomically(out / CSV, to_csv(found).encode())
    write_atomically(out / PAGE, render(page).encode())
    return out / PAGE


def to_csv(found: Breakeven) -> str:
    """One row per point, raw figures with their percentiles."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    percentiles = [f"{attribute}_{name}" for attribute in FIGURES.values() for name in bands.Band._fields]
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
        writer.writerow([*facts, *shown, moved, len(point.outcomes), point.would_run, "; ".join(point.problems)])
    return text.getvalue()


def verdict(found: Breakeven) -> str:
    """What won at the files' own setting, by how much and how surely: one line."""
    parts = [
        part
        for figure in ("dollars", "time")
        if (part := bands.won(draws_of(found.here, figure), *WORDS[figure], SHOWN[figure]))
    ]
    if not parts:
        return "[projected] no verdict: fewer than two of these would run on AWS"
    return f"[projected] as the files say: {'; '.join(parts)}."


def crossings(found: Breakeven) -> list[list[str]]:
    """(axis, by, about where, between, until there, from there on)."""

    def rounded(value: float) -> str:
        return display.number(float(f"{value:.2g}"))

    return [
        [
            each.axis,
            each.figure,
            f"{rounded(each.value.p50)} ({rounded(each.value.p5)} to {rounded(each.value.p95)})",
            f"{each.count} of {each.of}{'' if bands.is_sure(each.count, each.of) else f', {bands.OPEN}'}",
            each.before,
            each.after,
        ]
        for each in found.crossings
    ]


CROSSINGS_HEAD = ["over", "by", "at about", "in draws", "until there", "from there on"]


def rows(found: Breakeven, axis: str) -> list[list[str]]:
    """Two rows per value, dollars and time: each run's, with p5 and p95 beside the middle, and who leads."""
    points = found.of(axis)
    names = list(dict.fromkeys(point.name for point in points))
    table = []
    for value in dict.fromkeys(point.value for point in points):
        by_name = {point.name: point for point in points if point.value == value}
        for figure, what in LEADS:
            cells = [_cell(by_name.get(name), figure) for name in names]
            table.append([f"{value:,}", *cells, f"{what}: {_leader(list(by_name.values()), figure)}"])
    return table


def head(found: Breakeven, axis: str) -> list[str]:
    return [axis, *dict.fromkeys(point.name for point in found.of(axis)), "who leads"]


def _leader(points: Sequence[Point], figure: str) -> str:
    led = bands.lead(draws_of(points, figure))
    if led is None:
        return next((point.name for point in best(points, figure)), "none")
    return led.first if led.is_sure else f"{led.first} in {led.wins} of {led.of} draws, {bands.OPEN}"


def _cell(point: Point | None, figure: str) -> str:
    if point is None:
        return "not possible"
    if not point.would_run:
        return "would not run *"
    band = point.band(figure)
    return f"{SHOWN[figure](band.p50)} {display.spread(*band)}{'' if not point.problems else ' *'}"


def notes(found: Breakeven) -> list[str]:
    """What a reader must know before believing the figures."""
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
        f"who leads does so in at least {100 * bands.SURE:.0f} % of the paired draws; in fewer, the lead is {bands.OPEN}",
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        "every architecture trains as many epochs; what an epoch teaches differs where models are updated more or less often",
        "a model that is only a number of parameters is taken for a convolutional one",
        *([found.rests] if found.rests else []),
        *own,
        *_outside(found),
        *problems,
        *found.left_out,
    ]


def _outside(found: Breakeven) -> Iterator[str]:
    """How far the runs lie beyond what was measured: as the files say, and at the far end of each axis."""
    said = set[tuple[str, str]]()
    for axis, points in (("here", found.here), *((axis, found.of(axis)) for axis in AXES)):
        for point in points:
            where = "" if axis == "here" else f", {axis} {point.value:,}"
            for limit in point.outcomes[0].outside if axis == "here" or point.value == points[-1].value else ():
                if (point.name, limit) not in said:
                    said.add((point.name, limit))
                    yield f"outside what was measured: {point.name}{where}: {limit}"


def _answer(found: Breakeven) -> str:
    leads = [bands.leader(draws_of(found.here, figure), what, SHOWN[figure]) for figure, what in LEADS]
    return f"As the files say: {'; '.join(filter(None, leads))}." if any(leads) else verdict(found)


def looks_of(experiments: Sequence[Experiment]) -> dict[str, SeriesLook]:
    """By name."""
    return {each.name: of_experiment(each.module, each.sections, n) for n, each in enumerate(experiments)}


def _page(found: Breakeven, command: str = "") -> Page:
    first = found.experiments[0]
    return Page(
        title="Break-even",
        subtitle=f"{first.training.model} on {first.data.dataset}, {first.workers} workers, {first.training.epochs} epochs",
        labels=["projected"],
        answer=_answer(found),
        verdict=verdict(found),
        commands=[command] if command else [],
        caveats=notes(found)[:5],
        tiles=[
            Tile(
                name=point.name,
                value=display.seconds(point.band("time").p50) if point.would_run else "would not run",
                beside=display.usd(point.band("dollars").p50) if point.would_run else "",
                note=_tile_note(point),
                label="projected",
            )
            for point in found.here
        ],
        plots=[drawn for axis in AXES if found.of(axis) for drawn in _curves(found, axis)],
        sheets=[
            Sheet(
                title="Where one overtakes the other",
                head=CROSSINGS_HEAD,
                rows=crossings(found) or [["nowhere in these ranges", *[""] * (len(CROSSINGS_HEAD) - 1)]],
                words=2,
                label="projected",
            ),
            *(
                Sheet(title=f"Over {axis}", head=head(found, axis), rows=rows(found, axis), words=1, label="projected")
                for axis in AXES
                if found.of(axis)
            ),
            Sheet(
                title="What stands behind it",
                head=["", "note"],
                rows=[[str(n), note] for n, note in enumerate(notes(found), start=1)],
                words=2,
                folded=True,
                note=f"Prices of {found.prices_as_of}.",
            ),
        ],
    )


def _tile_note(point: Point) -> str:
    if not point.would_run:
        return ""
    (low, _, high), (least, _, most) = point.band("time"), point.band("dollars")
    return f"{display.seconds(low)} to {display.seconds(high)}; {display.usd(least)} to {display.usd(most)}"


def _curves(found: Breakeven, axis: str) -> list[Plot]:
    points = found.of(axis)
    fleet = frozenset(point.name for point in points if point.rival)
    drawn = []
    for figure, y in (("dollars", "dollars"), ("time", "seconds")):
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
            format_x=_short,
            looks=looks_of(found.experiments),
        )
        drawn.append(
            plot(
                title,
                picture,
                caption=f"p50, and p5 to p95 as a band; each value stands below, over {axis}. Rivals are dashed; what AWS would not run is "
                "left out.",
                label="projected",
            )
        )
    return drawn


def _short(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def _standing_alone(svg: str) -> str:
    """The plot as a file of its own: with the name space, and colours that do not come from a page."""
    for n, (colour, _) in enumerate(PALETTE):
        svg = svg.replace(f"var(--series-{n})", colour)
    svg = svg.replace("var(--faint)", "#8886").replace("var(--card)", "none").replace("currentColor", "#777")
    return (
        svg if "xmlns=" in svg.split(">", 1)[0] else svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )
