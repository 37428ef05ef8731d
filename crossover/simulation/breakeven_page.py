"""The break-even as tables, curves, CSV and one line: what the terminal and the page show. Every figure is labelled."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from crossover.reports import display, plots
from crossover.reports.folder import write_atomically
from crossover.reports.html import render
from crossover.reports.page import Page, Plot, Sheet, Tile, plot
from crossover.simulation.breakeven import FIGURES, LEVEL, Breakeven, Point, best

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
PAGE, CSV = "breakeven.html", "breakeven.csv"


def write(found: Breakeven, out: Path) -> Path:
    """`breakeven.html`, `breakeven.csv` and one SVG per plot into `out`; the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    page = _page(found)
    for each in page.plots:
        name = each.title.lower().replace(" ", "-").replace(",", "").replace("'", "")
        write_atomically(out / f"{name}.svg", _standing_alone(str(each.svg)).encode())
    write_atomically(out / CSV, to_csv(found).encode())
    write_atomically(out / PAGE, render(page).encode())
    return out / PAGE


def to_csv(found: Breakeven) -> str:
    """One row per point, raw figures."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Point)]
    writer.writerow(names)
    for point in (*found.here, *found.points):
        values = [getattr(point, name) for name in names]
        values = ["" if value != value else value for value in values]  # NaN: a run without an end
        writer.writerow(["; ".join(value) if isinstance(value, tuple) else value for value in values])
    return text.getvalue()


def verdict(found: Breakeven) -> str:
    """What won at the files' own setting, and by how much: one line."""
    parts = [part for figure in ("dollars", "time") if (part := _won(found.here, figure))]
    if not parts:
        return "[projected] no verdict: fewer than two of these would run on AWS"
    return f"[projected] as the files say: {'; '.join(parts)}."


def _won(points: Sequence[Point], figure: str) -> str:
    ranked, of, shown, (what, better) = best(points, figure), FIGURES[figure], SHOWN[figure], WORDS[figure]
    if len(ranked) < 2:
        return ""
    first, second = ranked[:2]
    if of(second) <= LEVEL * of(first):
        return f"{first.name} ({shown(of(first))}) and {second.name} ({shown(of(second))}) are about level as {what}"
    ratio = display.times(of(second) / of(first))
    return f"{first.name} is {what} with {shown(of(first))}, {ratio} {better} than {second.name} ({shown(of(second))})"


def crossings(found: Breakeven) -> list[list[str]]:
    """(axis, by, about where, until there, from there on)."""
    return [
        [each.axis, each.figure, display.number(float(f"{each.value:.2g}")), each.before, each.after]
        for each in found.crossings
    ]


def rows(found: Breakeven, axis: str) -> list[list[str]]:
    """One row per value: each run's dollars and time, and who is cheapest and soonest."""
    points = found.of(axis)
    names = list(dict.fromkeys(point.name for point in points))
    table = []
    for value in dict.fromkeys(point.value for point in points):
        by_name = {point.name: point for point in points if point.value == value}
        cells = [_cell(by_name.get(name)) for name in names]
        winners = [
            ranked[0].name if (ranked := best(list(by_name.values()), figure)) else "none"
            for figure in ("dollars", "time")
        ]
        table.append([f"{value:,}", *cells, *winners])
    return table


def head(found: Breakeven, axis: str) -> list[str]:
    return [axis, *dict.fromkeys(point.name for point in found.of(axis)), "cheapest", "soonest"]


def _cell(point: Point | None) -> str:
    if point is None:
        return "not possible"
    if point.problems:
        return "would not run *"
    return f"{display.usd(point.usd)}, {display.seconds(point.seconds)}"


def notes(found: Breakeven) -> list[str]:
    """What a reader must know before believing the figures."""
    problems = dict.fromkeys(
        f"* {point.name}, {point.axis} {point.value:,}: {problem}"
        for point in found.points
        for problem in point.problems
    )
    own = [f"{point.name}: {problem}" for point in found.here for problem in point.problems]
    return [
        "every figure is projected by simulation, none measured",
        f"calibration: {found.calibration.name}: {'; '.join(found.calibration.basis)}",
        "every architecture trains as many epochs; what an epoch teaches differs where models are updated more or less often",
        "a model that is only a number of parameters is taken for a convolutional one",
        *own,
        *problems,
        *found.left_out,
    ]


def _page(found: Breakeven) -> Page:
    first = found.experiments[0]
    return Page(
        title="Break-even",
        subtitle=f"{first.training.model} on {first.data.dataset}, {first.workers} workers, {first.training.epochs} epochs",
        labels=["projected"],
        verdict=verdict(found),
        warnings=notes(found)[:3],
        tiles=[
            Tile(
                name=point.name,
                value="would not run" if point.problems else display.usd(point.usd),
                note="" if point.problems else display.seconds(point.seconds),
                label="projected",
            )
            for point in found.here
        ],
        plots=[drawn for axis in AXES if found.of(axis) for drawn in _curves(found, axis)],
        sheets=[
            Sheet(
                title="Where one overtakes the other",
                head=["over", "by", "at about", "until there", "from there on"],
                rows=crossings(found) or [["nowhere in these ranges", "", "", "", ""]],
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


def _curves(found: Breakeven, axis: str) -> list[Plot]:
    points = found.of(axis)
    fleet = frozenset(f"{point.name} [projected]" for point in points if point.gpu)
    drawn = []
    for figure, y in (("dollars", "dollars"), ("time", "seconds")):
        of = FIGURES[figure]
        curves: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            if not point.problems:
                curves.setdefault(f"{point.name} [projected]", []).append((float(point.value), of(point)))
        title = f"{figure.capitalize()} over {axis}"
        picture = plots.lines(
            curves,
            x=axis,
            y=y,
            name=f"{figure}-{axis}".replace(" ", "-"),
            log_x=True,
            log_y=True,
            dashed=fleet,
            format_x=_short,
        )
        drawn.append(
            plot(title, picture, caption="Projected. The GPU fleet is dashed; what AWS would not run is left out.")
        )
    return drawn


def _short(value: float) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


PALETTE = ("#0b5cad", "#c4541a", "#2b8a3e", "#8b3fa0", "#a8842c", "#1a8a8a", "#b0305c", "#4f5b66", "#6a8f1f", "#3d3d8f")


def _standing_alone(svg: str) -> str:
    """The plot as a file of its own: with the name space, and colours that do not come from a page."""
    for n, colour in enumerate(PALETTE):
        svg = svg.replace(f"var(--series-{n})", colour)
    svg = svg.replace("var(--faint)", "#8886").replace("currentColor", "#777")
    return (
        svg if "xmlns=" in svg.split(">", 1)[0] else svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    )
