"""Plots as SVG: curves, bars and timelines."""

import html
import io
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, inf, log10
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Shape
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter

from crossover.reports.display import GAP, PALETTE, PLAIN, SeriesLook, look_of
from crossover.reports.usage import Record, busy_s, get_end_s, init_s

# --- plots ------------------------------------------------------------------------------------------------------------

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
WIDTH_IN, HEIGHT_IN = 4.0, 2.8  # small enough that its text stays legible on a phone
MARKERS = 30  # of a curve, so that it has some and still is a curve
STYLES = ("-", "--", ":", "-.")  # of curves that look the same otherwise
WIDE_LABELS = (30, 22, 16)  # letters in a line of a point's label, whichever fits best
WRAPPER = textwrap.TextWrapper(width=15)  # of a curve's label
WRAPPER.wordsep_re = re.compile(r"(\s+|[^\s-]*-+)")  # after each hyphen, beside digits too
LINE = 0.062  # height of a line of a label as a share of the axes
TALLEST = 2.5  # times the usual height, of a plot whose curves have many labels
LEGEND_MARGIN_IN, LETTER_IN, SIGN_IN = 0.2, 0.068, 0.5  # beside a legend; a letter in it; a marker with its gaps
LEAST_TICKS, MOST_TICKS, TICK_GAP_PT = 3, 7, 2  # numbers of an axis, and the gap between two
LEGIBLE = 40  # characters of a name beside a plot
PlotPoint = tuple[float, float]


def series(n: int) -> str:
    """Return the colour of the `n`-th series, a placeholder that `svg` replaces by the CSS variable of the page's palette. After the last
    colour they begin again.
    """
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
    marked: tuple[float, str] | None = None,
) -> str:
    """Return a chart of curves as inline SVG; if there are several, each is labelled at its end. On a logarithmic axis, points at 0 or
    below are left out, as are points whose y is None.

    `curves`: points (x, y) by label; `x`, `y`: titles of the axes; `name`: prefix that makes ids unique in a page; `log_x`, `log_y`: use a
    logarithmic axis; `percent`: show y, a share, in percent; `format_x`: formats the ticks of the x axis; `dashed`: labels of dashed
    curves; `bands`: shaded areas by label, as (x, low, high); `looks`: colour and marker by label; `marked`: an x with a dotted line, and a
    word above it. Curves with equal looks differ in line style.
    """
    with styled():
        beside = LINE * sum(len(_wrap_label(label)) for label in curves) if len(curves) > 1 else 0.0
        growth = min(TALLEST, max(1.0, 1.1 * beside))
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN * growth))
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
        _set_scales(axes, curves, log_x=log_x, log_y=log_y, percent=percent, format_x=format_x)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if marked is not None:
            place, word = marked
            axes.axvline(place, linestyle=":", linewidth=0.8, color=INK, alpha=0.5)
            axes.text(place, 1.01, word, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=8.5)
        if len(curves) > 1:
            _write_curve_labels(axes, ends, line=LINE / growth)
        return svg(figure, name=name, title=f"{y} against {x}")


def _wrap_label(label: str) -> list[str]:
    """Return a curve's label broken into short lines, at least one."""
    return WRAPPER.wrap(label) or [""]


def _write_curve_labels(axes: Axes, ends: Sequence[tuple[str, SeriesLook, PlotPoint]], *, line: float) -> None:
    """Draw each curve's label with its marker to the right of the axes, at the height of the curve's last point, shifted vertically if
    labels would overlap, with a line to the point. `ends`: (label, look, last point) of each curve; `line`: height of a line of text as a
    share of the axes.
    """
    axes.autoscale_view()
    place = axes.transScale + axes.transLimits
    rows = sorted(
        ((float(place.transform(end)[1]), label, own, end) for label, own, end in ends), key=lambda row: row[0]
    )
    texts = [_wrap_label(label) for _, label, _, _ in rows]
    heights = [line * len(text) for text in texts]
    over = max(0.0, sum(heights) - 1) / 2  # what does not fit beside the axes, above and below them
    free = -over
    for number, ((wanted, _, own, last), text) in enumerate(zip(rows, texts, strict=True)):
        most = 1 + over - sum(heights[number:])
        bottom = min(max(wanted - heights[number] / 2, free), most)
        middle, free = bottom + heights[number] / 2, bottom + heights[number]
        axes.annotate(
            "\n".join(text),
            xy=last,
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
    """Return a chart of horizontal bars as inline SVG, the first row at the top.

    `rows`: (label, value) of each bar, values at least 0; `x`: title of the axis; `name`: prefix that makes ids unique in a page; `shown`:
    formats the value beside a bar; `title`: title for screen readers; `tick`: formats the ticks of the axis, by default as `shown`;
    `looks`: a look for each bar, of which it takes the colour; without any, all have the first colour.
    """
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
    """A point of a chart with an error bar in both directions. `x`, `y`: (low end, middle, high end); `title`: text of the tooltip;
    `group`: points of one group have one colour and marker; `chosen`: whether it is emphasised; `label`: text beside the point, or "".
    """

    x: tuple[float, float, float]
    y: tuple[float, float, float]
    title: str
    group: str
    chosen: bool = False
    label: str = ""  # drawn beside the point


def marks(
    found: Sequence[Mark],
    *,
    x: str,
    y: str,
    name: str,
    format_x: Callable[[float], str],
    log: bool = True,
    percent: bool = False,
    size_in: tuple[float, float] = (WIDTH_IN, HEIGHT_IN),
) -> str:
    """Return a chart of points with error bars in both directions as inline SVG. Groups differ in colour and marker, and chosen points are
    larger and outlined. On a logarithmic axis, points whose x is 0 stand at the left, before a dotted line, with a tick of their own.

    `found`: the points; `x`, `y`: titles of the axes; `name`: prefix that makes ids unique in a page; `format_x`: formats the ticks of the
    x axis; `log`: use two logarithmic axes; `percent`: show y in percent; `size_in`: width and height in inches, without the legend: the
    page scales a chart to its own width, so that a smaller one has larger text.
    """
    groups = list(dict.fromkeys(each.group for each in found))
    longest = max(map(len, groups), default=0)
    columns = max(1, min(3, int((size_in[0] - LEGEND_MARGIN_IN) // (SIGN_IN + LETTER_IN * longest))))
    has_legend = len(groups) <= len(SERIES) and longest <= LEGIBLE
    with styled():
        rows = ceil(len(groups) / columns) if has_legend else 0
        figure = Figure(figsize=(size_in[0], size_in[1] + 0.2 + 0.2 * rows))
        axes = figure.subplots()
        places = _place_free(found) if log else list(found)
        for number, each in enumerate(places):
            own = look_of(each.group, groups.index(each.group))
            colour = series(own.colour)
            axes.plot([each.x[0], each.x[2]], [each.y[1]] * 2, "-", color=colour, linewidth=1.0, alpha=0.6)
            axes.plot([each.x[1]] * 2, [each.y[0], each.y[2]], "-", color=colour, linewidth=1.0, alpha=0.6)
            size, edge = (9.0, INK) if each.chosen else (6.0, colour)
            drawn = axes.plot(each.x[1], each.y[1], own.marker, color=colour, markersize=size, markeredgecolor=edge)
            drawn[0].set_gid(f"mark{number}")
        for number, group in enumerate(groups):
            own = look_of(group, number)
            axes.plot([], [], own.marker, color=series(own.colour), label=group, markersize=6.0)
        curves = {"all": [(value, other) for each in found for value, other in zip(each.x, each.y, strict=True)]}
        _set_scales(axes, curves, log_x=log, log_y=log, percent=percent, format_x=format_x)
        if free := [each.x[1] for each, own in zip(places, found, strict=True) if each is not own]:
            _set_free_tick(axes, free[0], format_x)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if has_legend:
            figure.legend(loc="outside upper left", ncols=columns)
        _label_marks(figure, axes, places)
        text = svg(figure, name=name, title=f"{y} against {x}")
    for number, each in enumerate(found):
        begins = f'<g id="{name}-mark{number}">'
        text = text.replace(begins, f"{begins}<title>{html.escape(each.title)}</title>")
    return text


FREE_SHARE = 0.2  # how far left of the others points of 0 stand, as a share of the logarithmic axis


def _place_free(found: Sequence[Mark]) -> list[Mark]:
    """Return the points with those whose x is 0 moved to one place left of all others, where a logarithmic axis can show them. All points
    are unchanged if none has an x above 0.
    """
    values = [value for each in found for value in each.x if value > 0]
    if not values:
        return list(found)
    place = min(values) / max(1.5, (max(values) / min(values)) ** FREE_SHARE)
    return [each if each.x[1] > 0 else replace(each, x=(place, place, place)) for each in found]


def _set_free_tick(axes: Axes, place: float, format_x: Callable[[float], str]) -> None:
    """Add a tick for 0 at `place` to a logarithmic x axis, with a dotted line between it and the other ticks. `format_x`: formats ticks."""
    major = [float(tick) for tick in axes.xaxis.get_majorticklocs() if tick > place]
    line = place * max(1.2, (min(major) / place) ** 0.4)
    axes.set_xlim(left=place / (line / place) ** 0.6)
    axes.axvline(line, linestyle=":", linewidth=0.8, color=INK, alpha=0.5)
    minor = [float(tick) for tick in axes.xaxis.get_minorticklocs() if tick > line]
    axes.xaxis.set_major_locator(FixedLocator([place, *(tick for tick in major if tick > line)]))
    axes.xaxis.set_minor_locator(FixedLocator(minor))
    axes.xaxis.set_major_formatter(_formatter(lambda value: format_x(0.0 if value == place else value)))


LABEL_PT, LABEL_LINE = 8.5, 1.3  # font size of a point's label, and the height of its lines in font sizes
LABEL_GAP, LABEL_STEP = (
    1.5,
    4,
)  # between a label and what it should not cover, and between heights that are tried, in points
MARK_PT = 7.0  # size of a point with its outline


class _Box(NamedTuple):
    """A rectangle in the axes: its four sides in points from the lower left corner of the axes, so `left` and `right` are x, `bottom` and
    `top` are y.
    """

    left: float
    bottom: float
    right: float
    top: float

    def share_with(self, other: "_Box") -> float:
        """Return the area that both rectangles cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)


def _label_marks(figure: Figure, axes: Axes, found: Sequence[Mark]) -> None:
    """Draw the label of each point that has one beside it, where it covers no other label and no point, and few error bars. The layout of
    `figure`, which `axes` are part of, must be complete except for the labels.
    """
    axes.autoscale_view()
    figure.draw_without_rendering()  # so that the axes have their final size
    frame = axes.get_window_extent()
    wide, high = (72 * length / figure.dpi for length in (frame.width, frame.height))
    place = axes.transScale + axes.transLimits

    def at(x: float, y: float) -> tuple[float, float]:
        """Return the place of the data's point (`x`, `y`) as (right, up) from the lower left corner of the axes, in points (1/72 inch)."""
        across, up = place.transform((x, y))
        return float(across) * wide, float(up) * high

    half, beside = MARK_PT / 2 + LABEL_GAP, 0.5 + LABEL_GAP
    points, bars = [], []
    for each in found:
        (x, y), low, most = at(each.x[1], each.y[1]), at(each.x[0], each.y[0]), at(each.x[2], each.y[2])
        points.append(_Box(x - half, y - half, x + half, y + half))
        bars += [
            _Box(low[0] - LABEL_GAP, y - beside, most[0] + LABEL_GAP, y + beside),
            _Box(x - beside, low[1] - LABEL_GAP, x + beside, most[1] + LABEL_GAP),
        ]
    taken = list[_Box]()
    for each in sorted((each for each in found if each.label), key=lambda each: each.y[1]):
        x, y = at(each.x[1], each.y[1])
        found_at = _choose_place(_offer_places(each.label, (x, y), (wide, high), [*points, *bars]), taken, points, bars)
        taken.append(found_at.box)
        axes.annotate(
            "\n".join(found_at.lines),
            xy=(each.x[1], each.y[1]),
            xytext=(found_at.box.left / wide, (found_at.box.bottom + found_at.box.top) / 2 / high),
            textcoords="axes fraction",
            va="center",
            fontsize=LABEL_PT,
            fontweight="bold",
            arrowprops={"arrowstyle": "-", "color": INK, "alpha": 0.5, "linewidth": 0.6},
            bbox={"facecolor": GROUND, "edgecolor": "none", "alpha": 0.85, "pad": LABEL_GAP},
        )


@dataclass(frozen=True)
class _LabelPlace:
    """A possible place of a label: its `lines`, the rectangle that it covers (`box`), and its `distance` from its point, in points (1/72
    inch).
    """

    lines: Sequence[str]
    box: _Box
    distance: float

    def cost(self, labels: Sequence[_Box], points: Sequence[_Box], bars: Sequence[_Box]) -> float:
        """Return how bad the place is: a sum of the areas that the label would cover of other labels, of points and of error bars, weighted
        in this order from most to least, and of its distance. The place nearest to the point is best among those that cover nothing.
        """
        hidden = [sum(map(self.box.share_with, each)) for each in (labels, points, bars)]
        return 1e6 * hidden[0] + 1e4 * hidden[1] + 10 * hidden[2] + self.distance


def _choose_place(
    offered: Iterable[_LabelPlace], labels: Sequence[_Box], points: Sequence[_Box], bars: Sequence[_Box]
) -> _LabelPlace:
    """Return the place of least cost. As a place costs at least its distance, farther ones than the least cost are not tried. `labels`,
    `points`, `bars`: what the label should not cover.
    """
    first, *others = sorted(offered, key=lambda each: each.distance)
    best, least = first, first.cost(labels, points, bars)
    for each in others:
        if each.distance >= least:
            break
        if (cost := each.cost(labels, points, bars)) < least:
            best, least = each, cost
    return best


def _offer_places(
    label: str, point: tuple[float, float], size: tuple[float, float], around: Sequence[_Box]
) -> Iterator[_LabelPlace]:
    """Yield possible places for a label within axes of the given `size`: beside its `point`, and beside each rectangle of `around`, at any
    height. All in points (1/72 inch).
    """
    (x, y), (wide, high) = point, size
    bold = FontProperties(family="sans-serif", weight="bold", size=LABEL_PT)
    for letters in WIDE_LABELS:
        lines = textwrap.wrap(label, letters) or [""]
        width = max(TextPath((0, 0), line, prop=bold).get_extents().width for line in lines) + 2
        height = LABEL_PT * LABEL_LINE * len(lines) + 3
        rightmost, top = max(wide - width - LABEL_GAP, LABEL_GAP), max(high - height / 2, height / 2 + LABEL_GAP)
        beside = (left for box in around for left in (box.right, box.left - width))
        for left in {x + 10, x - 10 - width, x - width / 2, *beside}:
            bounded = max(min(left, rightmost), LABEL_GAP)
            for above in (0, *range(-int(high), int(high), LABEL_STEP)):
                middle = max(min(y + above, top), height / 2 + LABEL_GAP)
                box = _Box(bounded, middle - height / 2, bounded + width, middle + height / 2)
                aside = max(box.left - x, x - box.right, 0.0)
                yield _LabelPlace(lines, box, aside + abs(middle - y))


def _set_scales(
    axes: Axes,
    curves: Mapping[str, Sequence[PlotPoint]],
    *,
    log_x: bool,
    log_y: bool,
    percent: bool,
    format_x: Callable[[float], str] | None,
) -> None:
    """Set the scale, limits and tick labels of both axes of the chart `axes` to fit the points of all `curves` (by label). `log_x`,
    `log_y`: use a logarithmic axis, if a value is above 0; `percent`: show y, a share, in percent; `format_x`: formats the ticks of the x
    axis, None for plain numbers.
    """
    points = [point for curve in curves.values() for point in curve]
    if log_x and any(a > 0 for a, _ in points):
        axes.set_xscale("log")
        _set_log_ticks(axes.xaxis, axes.set_xlim, [a for a, _ in points if a > 0], format_x or _format_plain)
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
        _set_log_ticks(axes.yaxis, axes.set_ylim, [b for _, b in points if b > 0], _format_plain)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")


def _set_log_ticks(
    axis: Axis, limit: Callable[[float, float], object], values: Sequence[float], shown: Callable[[float], str]
) -> None:
    """Set the ticks of a logarithmic axis: at least LEAST_TICKS numbers within the range of `values`, about MOST_TICKS at most, as round as
    possible. `limit`: sets the axis limits; `shown`: formats a tick.
    """
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
    """Return a matplotlib formatter of ticks that calls `shown` with the value."""
    return FuncFormatter(lambda value, _: shown(value))


def _format_plain(value: float) -> str:
    """Return the number as text with up to six significant digits, from a million on in millions, such as `3 M`, never in powers of ten."""
    text = f"{value / 1e6:,.6g}{GAP}M" if abs(value) >= 1e6 else f"{value:g}"
    return text if "e" not in text else f"{value:.12f}".rstrip("0").rstrip(".")


def needs_log_axis(points: Mapping[str, Sequence[PlotPoint]]) -> bool:
    """Return whether the positive x values of all curves span more than a factor of 30, so that a logarithmic axis shows more. `points`:
    points (x, y) of the curves by label.
    """
    values = [a for curve in points.values() for a, _ in curve if a > 0]
    return bool(values) and max(values) / min(values) > 30


COLOURS = {INK: "currentColor", FAINT: "var(--faint)", GROUND: "var(--card)"} | {
    colour: f"var(--series-{n})" for n, colour in enumerate(SERIES)
}


def svg(figure: Figure, *, name: str, title: str) -> str:
    """Return a matplotlib figure as an inline SVG element: transparent, with the page's colours, and without a fixed size. `name`: prefix
    that makes its ids unique in a page; `title`: title for screen readers.
    """
    _thin_ticks(figure)
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


def _thin_ticks(figure: Figure) -> None:
    """Hide the numbers of x axes that would touch the number to their left; their ticks stay."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        extents = [(each.get_window_extent(), each) for each in axes.get_xticklabels() if each.get_text()]
        end = -inf
        for extent, label in sorted(extents, key=lambda each: float(each[0].x0)):
            is_apart = extent.x0 >= end + TICK_GAP_PT * figure.dpi / 72
            label.set_visible(is_apart)
            end = extent.x1 if is_apart else end


# --- timeline ---------------------------------------------------------------------------------------------------------
# Every invocation of a run on one picture: a row per worker, lanes where its invocations overlap, cold starts and waits visible.

COLD, WAIT = "cold start", "wait for a core"
HATCHES = (
    "",
    "////",
    "xxxx",
    "....",
    "\\\\\\\\",
    "----",
    "||||",
    "++++",
    "oooo",
    "****",
)  # as colours do, they tell steps apart
TIMELINE_WIDTH_IN = 11.5
DETAIL = 6_000  # spans in one picture: more than a screen can show, few enough for a small file
EPOCH_LINES = 60
COLUMNS = 2_000


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in a picture of all invocations of a run. `row`: name of the row, such as "worker 0" or "run"; `lane`: number of
    its line within the row, for invocations that overlap; `begin_s`, `end_s`: seconds since the run began; `kind`: name of the step, or
    COLD or WAIT; `failed`: whether its invocation failed or was superseded.
    """

    row: str
    lane: int
    begin_s: float
    end_s: float
    kind: str
    failed: bool = False


def spans(records: Iterable[Record], *, started_at: float) -> list[Span]:
    """Return the stretches of time of all invocations of a run, row by row in the order of their beginning: for each its INIT (Lambda's
    start of a new environment), then its wait for a core, then the step itself; without those of no length. Invocations that overlap in one
    row are put into different lanes. `started_at`: start of the run in unix seconds.
    """
    rows: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        alone = record["step"] in ("initialise", "collect", "supervise")
        rows["run" if alone else f"worker {record['worker']}"].append(record)
    found: list[Span] = []
    for row, own in rows.items():
        free: list[float] = []  # when each lane is free again
        for record in sorted(own, key=lambda r: float(r["started_at"]) - init_s(r)):
            begin = float(record["started_at"]) - init_s(record)
            lane = next((n for n, moment in enumerate(free) if moment <= begin), len(free))
            free[lane : lane + 1] = [get_end_s(record)]
            found += _split_into_spans(record, row, lane, started_at)
    return found


def _split_into_spans(record: Record, row: str, lane: int, started_at: float) -> list[Span]:
    """Return the stretches of time of one invocation that are longer than zero: INIT, wait for a core, and step. `row`, `lane`: where they
    are drawn; `started_at`: start of the run in unix seconds.
    """
    handler_s = float(record["started_at"]) - started_at
    waited_s = busy_s(record) - float(record["wall_s"])
    pieces = [
        (handler_s - init_s(record), handler_s, COLD),
        (handler_s, handler_s + waited_s, WAIT),
        (handler_s + waited_s, get_end_s(record) - started_at, record["step"]),
    ]
    failed = record["outcome"] != "ok"
    return [Span(row, lane, begin, stop, kind, failed) for begin, stop, kind in pieces if stop > begin]


def merge_to_limit(found: Sequence[Span], *, limit: int = DETAIL) -> list[Span]:
    """Return about `limit` spans or fewer that look the same when drawn: neighbours with the same lane, kind and failure are merged, first
    if the gap between them is too small for a screen, then with larger gaps.
    """
    whole = list(found)
    grain_s = max((span.end_s for span in found), default=0.0) / COLUMNS
    while len(whole) > limit and grain_s > 0:
        fewer = _merge_spans(whole, grain_s=grain_s)
        if len(fewer) == len(whole) and grain_s > max(span.end_s for span in found):
            break  # nothing is left to merge: as many lanes and kinds as that
        whole, grain_s = fewer, 2 * grain_s
    return whole


def _merge_spans(found: Sequence[Span], *, grain_s: float) -> list[Span]:
    """Return the spans in the order of their beginning, with neighbours of the same row, lane, kind and failure merged if the gap between
    them is below `grain_s` seconds.
    """
    merged: list[Span] = []
    last: dict[tuple[str, int, str, bool], int] = {}
    for span in sorted(found, key=lambda s: s.begin_s):
        key = (span.row, span.lane, span.kind, span.failed)
        at = last.get(key)
        if at is not None and span.begin_s - merged[at].end_s < grain_s:
            before = merged[at]
            merged[at] = replace(before, end_s=max(before.end_s, span.end_s))
        else:
            last[key] = len(merged)
            merged.append(span)
    return merged


def draw(records: Sequence[Record], *, started_at: float, epochs: Sequence[Mapping[str, float]], name: str) -> str:
    """Return a picture of all invocations of a run over time as inline SVG, with one row for each worker; above them a row for steps that
    belong to no worker. `records`: of the invocations; `started_at`: unix seconds at which the axis begins; `epochs`: rows of result.json,
    whose ends are drawn as dotted lines unless they are more than EPOCH_LINES; `name`: prefix that makes ids unique in a page.
    """
    found = merge_to_limit(spans(records, started_at=started_at))
    rows = sorted({span.row for span in found}, key=lambda row: (row != "run", len(row), row))
    lanes = {row: 1 + max(span.lane for span in found if span.row == row) for row in rows}
    base, total = {}, 0.0
    for row in rows:
        base[row] = total
        total += lanes[row] + 0.8
    with styled():
        figure = Figure(figsize=(TIMELINE_WIDTH_IN, min(14.0, 1.1 + max(0.32 * len(rows), 0.11 * total))))
        axes = figure.subplots()
        handles = _draw_shapes(axes, found, base, steps=list(dict.fromkeys(r["step"] for r in _by_start(records))))
        ends = [epoch["elapsed_s"] for epoch in epochs] if len(epochs) <= EPOCH_LINES else []
        for end_s in ends:
            axes.axvline(end_s, color=INK, linewidth=0.5, alpha=0.5, linestyle=":")
        axes.set_yticks([base[row] + lanes[row] / 2 for row in rows], rows)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(total, -0.5)
        axes.set_xlim(0, max((span.end_s for span in found), default=1.0) * 1.01)
        axes.set_xlabel("seconds since the run began" + ("; dotted: the end of an epoch" if ends else ""))
        figure.legend(handles=handles, loc="outside upper left", ncols=min(6, max(1, len(handles))))
        return svg(figure, name=name, title="Every invocation, by worker and time")


def select_first_epochs(
    records: Sequence[Record], epochs: Sequence[Mapping[str, float]], *, started_at: float, limit: int = DETAIL
) -> list[Record]:
    """Return the records of a run's first epochs, as many epochs as fit into one picture without merging, at least one; an empty list if
    all records of the run fit, or if `epochs` is empty. `epochs`: rows of result.json; `started_at`: unix seconds at which the run began;
    `limit`: most spans in one picture, two for each record.
    """
    if 2 * len(records) <= limit:
        return []
    found: list[Record] = []
    for epoch in epochs:
        until = [r for r in records if float(r["started_at"]) - started_at < epoch["elapsed_s"]]
        if found and 2 * len(until) > limit:
            break
        found = until
    return found


def _by_start(records: Sequence[Record]) -> list[Record]:
    """Return the records sorted by the start of their invocations."""
    return sorted(records, key=lambda record: float(record["started_at"]))


def _draw_shapes(axes: Axes, found: Sequence[Span], base: Mapping[str, float], *, steps: Sequence[str]) -> list[Patch]:
    """Draw all spans into `axes`, with a single path for each kind, so that thousands of rectangles make a small file, and outline the
    failed ones. Returns the entries of the legend. `base`: lower edge by row; `steps`: names of the steps in the order of their colours.
    """
    fills = {COLD: (INK, ""), WAIT: (FAINT, "")}
    fills |= {step: (series(n), HATCHES[n % len(HATCHES)]) for n, step in enumerate(steps)}
    present = {span.kind for span in found}
    handles = []
    for kind, (colour, hatch) in fills.items():
        if kind in present:
            boxes = [_box(span, base) for span in found if span.kind == kind]
            filled: dict[str, Any] = {"facecolor": colour, "edgecolor": GROUND, "hatch": hatch, "linewidth": 0}
            axes.add_patch(PathPatch(Shape.make_compound_path(*boxes), **filled))
            handles.append(Patch(label=kind, **filled))
    failed = [span for span in found if span.failed]
    if failed:
        boxes = [_box(span, base) for span in failed]
        axes.add_patch(PathPatch(Shape.make_compound_path(*boxes), fill=False, edgecolor=INK, linewidth=1.2))
        handles.append(Patch(fill=False, edgecolor=INK, linewidth=1.2, label="failed or stale"))
    return handles


def _box(span: Span, base: Mapping[str, float]) -> Shape:
    """Return a span's rectangle as a closed matplotlib path. `base`: lower edge of each row."""
    top, bottom = base[span.row] + span.lane + 0.08, base[span.row] + span.lane + 0.92
    corners = [
        (span.begin_s, top),
        (span.end_s, top),
        (span.end_s, bottom),
        (span.begin_s, bottom),
        (span.begin_s, top),
    ]
    return Shape(corners, [Shape.MOVETO, Shape.LINETO, Shape.LINETO, Shape.LINETO, Shape.CLOSEPOLY])
