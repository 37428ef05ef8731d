"""Plots and the timeline: inline SVG that follows the page, whole and escaped."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import matplotlib as mpl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from crossover.reports import display, plots
from crossover.reports.display import LOOKS
from crossover.reports.plots import COLD, WAIT, Span
from crossover.reports.usage import busy_s, init_s
from tests.unit.reports.example_run import STARTED_AT, spirt

EXAMPLE = spirt(epochs=3)


def lines(**changes: object) -> str:
    """Return the SVG of a plot of two curves. `changes`: further arguments of the plot."""
    curves = {"a": [(1.0, 0.1), (2.0, 0.2)], "b": [(0.0, 0.3), (90.0, 0.5)]}
    return plots.lines(curves, x="seconds", y="accuracy", name="p1", **changes)  # type: ignore[arg-type]


def test_a_plot_is_one_svg_element_without_colours_or_size_of_its_own() -> None:
    """A plot is an SVG element without width and height, whose colours are all the page's CSS variables."""
    text = lines(log_x=True, percent=True)
    root = ET.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "width" not in root.attrib and "height" not in root.attrib and "viewBox" in root.attrib
    assert root.attrib["aria-label"] == "accuracy against seconds"
    placeholders = [plots.INK, plots.FAINT, *plots.SERIES]
    assert not [colour for colour in placeholders if colour in text]
    assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", text)) == set(), "every colour is the page's"
    assert "var(--series-0)" in text and "var(--series-1)" in text and "currentColor" in text


def test_ids_are_unique_in_a_page_and_every_reference_is_kept() -> None:
    """A plot's ids begin with its name, and each reference in it is to one of them."""
    text = lines()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids and all(name.startswith("p1-") for name in ids)
    references = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert references and set(references) <= set(ids)


def test_the_same_figures_draw_the_same_bytes() -> None:
    """A plot that is drawn twice has the same bytes."""
    assert lines() == lines()


def test_settings_of_matplotlib_are_left_alone() -> None:
    """Drawing a plot changes none of Matplotlib's settings."""
    before = dict(mpl.rcParams)
    lines()
    assert dict(mpl.rcParams) == before


def test_labels_are_escaped() -> None:
    """Labels of plots are escaped for XML, and a dollar sign in them begins no formula."""
    text = plots.lines({"<script>&": [(1.0, 1.0)], "$x$": [(1.0, 2.0)]}, x='"><b>', y="<i>", name="p")
    ET.fromstring(text)
    assert "<script>" not in text and "<b>" not in text and "<i>" not in text
    assert "$x$" in text, "a dollar is a dollar"
    bars = plots.bars([("<script>", 1.0)], x="x", name="p", shown=display.usd, title='"><script>')
    assert "<script>" not in bars


def test_odd_series_can_be_drawn() -> None:
    """Plots of no series, of an empty one, of a single point or of zeros are drawn, on linear and logarithmic axes."""
    odd: list[dict[str, list[plots.PlotPoint]]] = [{}, {"a": []}, {"a": [(1.0, 1.0)]}, {"a": [(0.0, 0.0), (0.0, 0.0)]}]
    for curves in odd:
        for log in (False, True):
            ET.fromstring(plots.lines(curves, x="x", y="y", name="p", log_x=log, log_y=log))
    ET.fromstring(plots.bars([], x="x", name="p", shown=display.usd, title="t"))
    ET.fromstring(plots.bars([("a", 0.0)], x="x", name="p", shown=display.usd, title="t"))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(1, 1e6), st.booleans())
def test_an_axis_has_three_ticks_at_least(least: float, times: float, log: bool) -> None:
    """Each axis of a line plot has at least three different tick labels, for any range of values."""
    curve = {"a": [(least, least), (least * times, least * times)]}
    text = plots.lines(curve, x="x", y="y", name="p", log_x=log, log_y=log)
    for axis in "xy":
        labels = re.findall(rf'<g id="p-{axis}tick_\d+">.*?<text[^>]*>([^<]+)</text>', text, re.DOTALL)
        assert len(labels) >= plots.LEAST_TICKS and len(set(labels)) == len(labels), labels


def test_epochs_are_whole_even_where_there_is_one() -> None:
    """An axis of epochs has whole numbers as its ticks, even if there is only one epoch."""
    text = plots.lines({"a": [(1.0, 0.5)]}, x="epoch", y="y", name="p")
    labels = re.findall(r'<g id="p-xtick_\d+">.*?<text[^>]*>([^<]+)</text>', text, re.DOTALL)
    assert labels == ["0", "1", "2"]


def test_curves_are_told_apart_without_colours() -> None:
    """Each curve has its name at its end; the second of two with the same look is dashed and has hollow markers."""
    curves = {name: [(1.0, n + 1.0), (2.0, n + 2.0)] for n, name in enumerate(("first run", "second run", "third run"))}
    looks = dict.fromkeys(("first run", "second run"), LOOKS["spirt"]) | {"third run": LOOKS["gpu"]}
    root = ET.fromstring(plots.lines(curves, x="x", y="y", name="p", looks=looks))
    shown = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(curves) <= shown
    drawn = [each.attrib.get("style", "") for each in root.iter("{http://www.w3.org/2000/svg}path")]
    spirt_, gpu = (f"stroke: var(--series-{LOOKS[name].colour})" for name in ("spirt", "gpu"))
    assert any("stroke-dasharray" in style and spirt_ in style for style in drawn)
    assert any(gpu in style for style in drawn)


def marked(
    size_in: tuple[float, float], points: list[tuple[float, float, str]], *, spread: float = 1.0
) -> tuple[list[plots._Box], ...]:
    """Draw labelled points with error bars, and return the rectangles of the labels, of the points, of the error bars and of the axes, in
    pixels. `spread`: factor from a point to either end of its error bars.
    """
    found = [
        plots.Mark(
            x=(x / spread, x, x * spread), y=(y / spread, y, y * spread), title="", group="functions", label=label
        )
        for x, y, label in points
    ]
    drawn: list[Figure] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plots, "svg", lambda figure, **_: drawn.append(figure) or "")
        plots.marks(found, x="dollars", y="minutes", name="p", format_x=display.usd_tick, size_in=size_in)
    (axes,) = drawn[0].axes
    with plots.styled():
        drawn[0].draw_without_rendering()
        labels = [plots._Box(*Text.get_window_extent(each).extents) for each in axes.texts]  # without its arrow
        dots = [axes.transData.transform(line.get_xydata()[0]) for line in axes.lines if line.get_gid()]
        ends = [axes.transData.transform(line.get_xydata()) for line in axes.lines if len(line.get_xydata()) == 2]
        bars = [plots._Box(x - 0.5, y - 0.5, right + 0.5, top + 0.5) for (x, y), (right, top) in ends]
        frame = plots._Box(*axes.get_window_extent().extents)
    return labels, [plots._Box(x - 2, y - 2, x + 2, y + 2) for x, y in dots], bars, [frame]


CROWD = [
    (0.0, 66.0, "this machine"),
    (0.165, 11.0, "cheapest, balanced, soonest: one g6e.2xlarge spot"),
    (0.17, 11.5, "advice: 2 functions of 7,076 MB, scatter-reduce through the bucket"),
    (0.11, 31.0, ""),
    (0.6, 10.2, "soonest: 2 g4dn.xlarge spot, gpu"),
]


@pytest.mark.parametrize("size_in", [(6.4, 3.4), (3.4, 3.6)])
@pytest.mark.parametrize("points", [CROWD, CROWD[1:], [(0.0, 1.0, "this machine")], [*CROWD, (3.0, 300.0, "far away")]])
def test_labels_cover_neither_each_other_nor_a_point(
    points: list[tuple[float, float, str]], size_in: tuple[float, float]
) -> None:
    """Each named point has its label, which covers no other label and no point."""
    labels, dots, *_ = marked(size_in, points)
    assert len(labels) == sum(bool(label) for *_, label in points)
    for n, label in enumerate(labels):
        assert not any(map(label.share_with, labels[n + 1 :])), n
        assert not any(map(label.share_with, dots)), n


@pytest.mark.parametrize("size_in", [(6.4, 3.4), (3.4, 3.6)])
def test_labels_cover_neither_an_error_bar_nor_an_axis(size_in: tuple[float, float]) -> None:
    """Labels of points at the axes' edges lie within the axes, beside the error bars of all points."""
    points = [
        (0.1, 10.0, "cheapest, balanced: one g4dn.xlarge spot"),
        (1.0, 12.0, "soonest: one p5.4xlarge"),
        (0.3, 90.0, ""),
    ]
    labels, _, bars, (frame,) = marked(size_in, points, spread=1.15)
    assert len(labels) == 2 and len(bars) == 6
    for label in labels:
        assert frame.left < label.left and label.right < frame.right
        assert frame.bottom < label.bottom and label.top < frame.top
        assert not any(map(label.share_with, bars))


def test_every_invocation_is_drawn_with_its_cold_start_and_wait() -> None:
    """The timeline's spans are all steps, cold starts and waits for a core of the records, and as long as these."""
    spans = plots.spans(EXAMPLE.records, started_at=STARTED_AT)
    steps = [span for span in spans if span.kind not in (COLD, WAIT)]
    assert len(steps) == len(EXAMPLE.records)
    assert len([s for s in spans if s.kind == COLD]) == sum(bool(init_s(r)) for r in EXAMPLE.records)
    assert len([s for s in spans if s.kind == WAIT]) == sum(r["slot_wait_s"] > 0 for r in EXAMPLE.records)
    drawn = sum(span.end_s - span.begin_s for span in spans)
    assert abs(drawn - sum(init_s(r) + busy_s(r) for r in EXAMPLE.records)) < 1e-3
    assert sum(span.failed for span in steps) == 2
    assert {span.row for span in spans} == {"run", "worker 0", "worker 1", "worker 2", "worker 3"}


def test_no_two_spans_of_a_lane_overlap() -> None:
    """The timeline's spans in one lane of one row do not overlap."""
    lanes: dict[tuple[str, int], list[Span]] = {}
    for span in plots.spans(EXAMPLE.records, started_at=STARTED_AT):
        lanes.setdefault((span.row, span.lane), []).append(span)
    for spans in lanes.values():
        ordered = sorted(spans, key=lambda s: (s.begin_s, s.end_s))
        assert all(a.end_s <= b.begin_s + 1e-6 for a, b in pairwise(ordered))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 100), st.floats(0.001, 5), st.sampled_from("ab"), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_a_coarser_picture_covers_the_same_spans(raw: list[tuple[int, float, float, str, bool]]) -> None:
    """Spans that are merged to a limit still cover all spans of the same row, kind and outcome; below the limit nothing is merged."""
    spans = [Span(f"w{lane}", 0, begin, begin + length, kind, bad) for lane, begin, length, kind, bad in raw]
    coarse = plots.merge_to_limit(spans, limit=1)
    assert len(coarse) <= min(len(spans), len({(s.row, s.kind, s.failed) for s in spans}) + 1)
    for span in spans:
        same = [s for s in coarse if (s.row, s.kind, s.failed) == (span.row, span.kind, span.failed)]
        assert any(s.begin_s <= span.begin_s and span.end_s <= s.end_s for s in same)
    assert plots.merge_to_limit(spans) == spans


@pytest.mark.slow
def test_a_long_runs_timeline_stays_small() -> None:
    """A timeline of 60,000 invocations has less than 1.5 MB."""
    records = [
        EXAMPLE.records[5] | {"worker": n % 4, "started_at": STARTED_AT + n * 0.05, "wall_s": 0.04, "slot_wait_s": 0.0}
        for n in range(60_000)
    ]
    text = plots.draw(records, started_at=STARTED_AT, epochs=[], name="t")
    assert len(text) < 1_500_000


def test_the_first_epochs_are_shown_singly_where_all_are_too_many() -> None:
    """`select_first_epochs` returns the records of as many first epochs as the limit permits, of one at least, and none if all fit."""
    epochs = EXAMPLE.result()["epochs"]
    count = len(EXAMPLE.records)
    assert plots.select_first_epochs(EXAMPLE.records, epochs, started_at=STARTED_AT) == []
    first = plots.select_first_epochs(EXAMPLE.records, epochs, started_at=STARTED_AT, limit=count)
    assert 0 < len(first) < count
    assert {0, 1} <= {record["epoch"] for record in first} <= {0, 1, 2}
    assert plots.select_first_epochs(EXAMPLE.records, epochs, started_at=STARTED_AT, limit=1), "one epoch at least"


def test_every_bar_of_a_timeline_lies_within_its_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bar of a drawn timeline extends beyond the vertical limits of its axes."""
    drawn = list[Figure]()
    monkeypatch.setattr(plots, "svg", lambda figure, **_: drawn.append(figure) or "")
    plots.draw(EXAMPLE.records, started_at=STARTED_AT, epochs=[], name="p")
    (axes,) = drawn[0].axes
    bars = [each.get_path().get_extents() for each in axes.patches]
    bottom, top = axes.get_ylim()
    assert bars and all(top <= bar.y0 <= bar.y1 <= bottom for bar in bars)


def test_the_timeline_of_nothing_but_a_failed_step() -> None:
    """A timeline of a single failed step is drawn."""
    record = EXAMPLE.records[0] | {"outcome": "error"}
    ET.fromstring(plots.draw([record], started_at=STARTED_AT, epochs=[], name="t"))
