"""Plots as inline SVG that follows the page: text and axes take the page's colour, series its palette, dark or light.

Drawn by matplotlib's own SVG backend, without a display. Colours are placeholders that become CSS variables, because a picture cannot know
whether its reader's page is dark.
"""

import html
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log10
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from crossover.reports.looks import PALETTE, PLAIN, SeriesLook, look

INK, FAINT, GROUND = "#010203", "#040506", "#070809"
SERIES = tuple(f"#0a0b{n:02x}" for n in range(10, 10 + len(PALETTE)))
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar is a dollar
    "svg.hashsalt": "crossover",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "grid.color": FAINT,
    "axes.linewidth": 0.7,
    "axes.labelsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "lines.markeredgewidth": 1.2,
    "hatch.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}
WIDTH_IN, HEIGHT_IN = 4.6, 3.0  # small enough that its text stays legible on a phone
MARKERS = 30  # of a curve, so that it has some and still is a curve
STYLES = ("-", "--", ":", "-.")  # of curves that look the same otherwise
LABEL, LINE = 15, 0.062  # letters of a label's line, and its height as a share of the axes'
LEAST_TICKS, MOST_TICKS = 3, 7
LEGIBLE = 40  # characters of a name beside a plot
PlotPoint = tuple[float, float]


def series(n: int) -> str:
    """The n-th colour of the page's palette."""
    return SERIES[n % len(SERIES)]


styled = partial(mpl.rc_context, STYLE)  # within it our style, and matplotlib's settings as they were afterwards


def lines(
    curves: Mapping[str, Sequence[PlotPoint]],
    *,
    x: str,
    y: str,
    name: str,
    log_x: bool = False,
    log_y: bool = False,
    percent: bool = False,
    format_x: Callable[[float], str] | None = None,
    dashed: frozenset[str] = frozenset(),
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    looks: Mapping[str, SeriesLook] | None = None,
) -> str:
    """Curves by label as one SVG, each with its label at its end; `name` makes its ids unique in a page. `bands`: around curves, (x, from,
    to). `looks`: of curves that have one; two that share theirs differ in how the line is drawn.

    Points with x <= 0 are left out on a log axis.
    """
    with styled():
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN))
        axes = figure.subplots()
        drawn = list[SeriesLook]()
        ends = list[tuple[str, SeriesLook, PlotPoint]]()
        for n, (label, points) in enumerate(curves.items()):
            kept = [(a, b) for a, b in points if b is not None and (a > 0 or not log_x) and (b > 0 or not log_y)]
            own = (looks or {}).get(label) or PLAIN[n % len(PLAIN)]
            style = "--" if label in dashed else STYLES[drawn.count(own) % len(STYLES)]
            colour, every = series(own.colour), max(1, len(kept) // MARKERS)
            hollow = "none" if drawn.count(own) else colour
            axes.plot(
                [a for a, _ in kept],
                [b for _, b in kept],
                style,
                marker=own.marker,
                markevery=every,
                markerfacecolor=hollow,
                color=colour,
            )
            drawn.append(own)
            ends += [(label, own, kept[-1])] if kept else []
            if around := (bands or {}).get(label):
                low, high = [each[1] for each in around], [each[2] for each in around]
                axes.fill_between([each[0] for each in around], low, high, color=colour, alpha=0.22, linewidth=0)
        _scales(axes, curves, log_x=log_x, log_y=log_y, percent=percent, format_x=format_x)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(curves) > 1:
            _labelled(axes, ends)
        return svg(figure, name=name, title=f"{y} against {x}")


def _labelled(axes: Axes, ends: Sequence[tuple[str, SeriesLook, PlotPoint]]) -> None:
    """Each curve's label to the right of its end with its marker, one below the other where ends lie close together."""
    axes.autoscale_view()
    place = axes.transScale + axes.transLimits
    rows = sorted(
        ((float(place.transform(end)[1]), label, own, end) for label, own, end in ends), key=lambda row: row[0]
    )
    texts = [textwrap.wrap(label, LABEL) or [""] for _, label, _, _ in rows]
    heights = [LINE * len(text) for text in texts]
    over = max(0.0, sum(heights) - 1) / 2  # what does not fit beside the axes, above and below them
    free = -over
    for number, ((wanted, _, own, end), text) in enumerate(zip(rows, texts, strict=True)):
        most = 1 + over - sum(heights[number:])
        bottom = min(max(wanted - heights[number] / 2, free), most)
        middle, free = bottom + heights[number] / 2, bottom + heights[number]
        axes.annotate(
            "\n".join(text),
            xy=end,
            xytext=(1.09, middle),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": INK, "alpha": 0.35, "linewidth": 0.5, "relpos": (0, 0.5)},
        )
        axes.plot([1.06], [middle], own.marker, color=series(own.colour), transform=axes.transAxes, clip_on=False)


def bars(
    rows: Sequence[tuple[str, float]],
    *,
    x: str,
    name: str,
    shown: Callable[[float], str],
    title: str,
    tick: Callable[[float], str] | None = None,
    looks: Sequence[SeriesLook] = (),
) -> str:
    """Horizontal bars, one per row, each with its figure; `tick` where the axis wants another form; `looks`: of each row."""
    with styled():
        figure = Figure(figsize=(WIDTH_IN, 0.7 + 0.27 * max(1, len(rows))))
        axes = figure.subplots()
        widest = max((value for _, value in rows), default=0.0) or 1.0
        places = range(len(rows))
        axes.barh(
            places,
            [value for _, value in rows],
            height=0.62,
            color=[series(each.colour) for each in looks] or series(0),
        )
        axes.set_yticks(places, [label for label, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlim(0, widest * 1.28)
        for place, (_, value) in zip(places, rows, strict=True):
            axes.text(value + widest * 0.02, place, shown(value), va="center", fontsize=8.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
        axes.xaxis.set_major_formatter(_formatter(tick or shown))
        axes.set_xlabel(x)
        return svg(figure, name=name, title=title)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point with its band in both directions: (least, middle, most). `title`: what a pointer that rests on it is told."""

    x: tuple[float, float, float]
    y: tuple[float, float, float]
    title: str
    group: str
    chosen: bool = False


def marks(
    found: Sequence[Mark], *, x: str, y: str, name: str, format_x: Callable[[float], str], log: bool = True
) -> str:
    """Points with bands, by default on two logarithmic axes, groups by colour, the chosen ones ringed."""
    with styled():
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN + 0.6))
        axes = figure.subplots()
        groups = list(dict.fromkeys(each.group for each in found))
        for number, each in enumerate(found):
            own = look(each.group, groups.index(each.group))
            colour = series(own.colour)
            axes.plot([each.x[0], each.x[2]], [each.y[1]] * 2, "-", color=colour, linewidth=1.0, alpha=0.6)
            axes.plot([each.x[1]] * 2, [each.y[0], each.y[2]], "-", color=colour, linewidth=1.0, alpha=0.6)
            size, edge = (9.0, INK) if each.chosen else (6.0, colour)
            drawn = axes.plot(each.x[1], each.y[1], own.marker, color=colour, markersize=size, markeredgecolor=edge)
            drawn[0].set_gid(f"mark{number}")
        for number, group in enumerate(groups):
            own = look(group, number)
            axes.plot([], [], own.marker, color=series(own.colour), label=group, markersize=6.0)
        curves = {"all": [(value, other) for each in found for value, other in zip(each.x, each.y, strict=True)]}
        _scales(axes, curves, log_x=log, log_y=log, percent=False, format_x=format_x)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(groups) <= len(SERIES) and max(map(len, groups), default=0) <= LEGIBLE:
            figure.legend(loc="outside upper left", ncols=3)
        text = svg(figure, name=name, title=f"{y} against {x}")
    for number, each in enumerate(found):
        begins = f'<g id="{name}-mark{number}">'
        text = text.replace(begins, f"{begins}<title>{html.escape(each.title)}</title>")
    return text


def tornado(
    rows: Sequence[tuple[str, float, float]], *, x: str, name: str, title: str, shown: Callable[[float], str]
) -> str:
    """Horizontal bars from one value to another around 1, the widest first: what each row's change does."""
    with styled():
        figure = Figure(figsize=(WIDTH_IN, 0.8 + 0.27 * max(1, len(rows))))
        axes = figure.subplots()
        places = range(len(rows))
        axes.barh(places, [b - a for _, a, b in rows], left=[a for _, a, _ in rows], height=0.62, color=series(0))
        axes.axvline(1.0, color=series(1), linewidth=1.2)
        axes.set_yticks(places, [label for label, _, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xscale("log")
        _log_ticks(axes.xaxis, axes.set_xlim, [value for _, a, b in rows for value in (a, b, 1.0)], shown)
        axes.set_xlabel(x)
        return svg(figure, name=name, title=title)


def _scales(
    axes: Axes,
    curves: Mapping[str, Sequence[PlotPoint]],
    *,
    log_x: bool,
    log_y: bool,
    percent: bool,
    format_x: Callable[[float], str] | None,
) -> None:
    points = [point for curve in curves.values() for point in curve]
    if log_x and any(a > 0 for a, _ in points):
        axes.set_xscale("log")
        _log_ticks(axes.xaxis, axes.set_xlim, [a for a, _ in points if a > 0], format_x or _plain)
    else:
        whole, values = all(float(a).is_integer() for a, _ in points), [a for a, _ in points]
        if (
            whole and values and max(values) - min(values) < LEAST_TICKS - 1
        ):  # of one or two epochs: a tick on either side
            axes.set_xlim(min(values) - 1, max(values) + 1)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4 if format_x else 6, integer=whole, min_n_ticks=LEAST_TICKS))
        if format_x is not None:
            axes.xaxis.set_major_formatter(_formatter(format_x))
    if log_y and any(b > 0 for _, b in points):
        axes.set_yscale("log")
        _log_ticks(axes.yaxis, axes.set_ylim, [b for _, b in points if b > 0], _plain)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def _log_ticks(
    axis: Axis, limit: Callable[[float, float], object], values: Sequence[float], shown: Callable[[float], str]
) -> None:
    """Three ticks at least, among the values, as round as they can be, and few enough to be read; each as a plain number."""
    low, high = min(values), max(values)
    if high < 1.2 * low:
        low, high = low / 1.5, high * 1.5
        limit(low, high)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), range(1, 10)):
        ticks = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(ticks) >= LEAST_TICKS:
            break
    else:
        ticks = [tick for tick in MaxNLocator(nbins=5, min_n_ticks=LEAST_TICKS).tick_values(low, high) if tick > 0]
        limit(min(low, ticks[0]), max(high, ticks[-1]))
    axis.set_major_locator(FixedLocator(ticks[:: ceil(len(ticks) / MOST_TICKS)]))
    axis.set_major_formatter(_formatter(shown))
    axis.set_minor_formatter(NullFormatter())


def _formatter(shown: Callable[[float], str]) -> FuncFormatter:
    return FuncFormatter(lambda value, _: shown(value))


def _plain(value: float) -> str:
    return f"{value:g}"


def spread(points: Mapping[str, Sequence[PlotPoint]]) -> bool:
    """Whether x runs over more than a factor of 30: then a log axis shows more."""
    values = [a for curve in points.values() for a, _ in curve if a > 0]
    return bool(values) and max(values) / min(values) > 30


COLOURS = {INK: "currentColor", FAINT: "var(--faint)", GROUND: "var(--card)"} | {
    colour: f"var(--series-{n})" for n, colour in enumerate(SERIES)
}


def svg(figure: Figure, *, name: str, title: str) -> str:
    """The figure as an inline SVG element: transparent, without size of its own, ids of its own, a title for screen readers."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        rf'<svg class="plot" role="img" aria-label="{html.escape(title)}" \1',
        text,
        count=1,
    )
    text = re.sub(r'(<svg [^>]*?)height="[^"]*" ', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for placeholder, colour in COLOURS.items():
        text = text.replace(placeholder, colour)
    return text.strip()
