"""Every invocation of a run on one picture: a row per worker, lanes where its invocations overlap, cold starts and waits visible."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Shape

from crossover.costs.invocations import Record, busy_s, end, init_s
from crossover.reports.plots import FAINT, GROUND, INK, series, styled, svg

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
WIDTH_IN = 11.5
DETAIL = 6_000  # spans in one picture: more than a screen can show, few enough for a small file
EPOCH_LINES = 60
COLUMNS = 2_000


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one lane: `kind` is a step's name, a cold start or a wait; seconds since the run began."""

    row: str
    lane: int
    begin_s: float
    end_s: float
    kind: str
    failed: bool = False


def spans(records: Iterable[Record], *, started_at: float) -> list[Span]:
    """What is drawn of each invocation: INIT before the handler, then the wait for a core, then the step itself."""
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
            free[lane : lane + 1] = [end(record)]
            found += _pieces(record, row, lane, started_at)
    return found


def _pieces(record: Record, row: str, lane: int, started_at: float) -> list[Span]:
    handler_s = float(record["started_at"]) - started_at
    waited_s = busy_s(record) - float(record["wall_s"])
    pieces = [
        (handler_s - init_s(record), handler_s, COLD),
        (handler_s, handler_s + waited_s, WAIT),
        (handler_s + waited_s, end(record) - started_at, record["step"]),
    ]
    failed = record["outcome"] != "ok"
    return [Span(row, lane, begin, stop, kind, failed) for begin, stop, kind in pieces if stop > begin]


def coarsened(found: Sequence[Span], *, limit: int = DETAIL) -> list[Span]:
    """The same picture from at most about `limit` spans: neighbours of one lane and kind become one where they touch, then where the gap is
    too small for a screen, then where it is larger still. Failed ones are never left out.
    """
    whole = list(found)
    grain_s = max((span.end_s for span in found), default=0.0) / COLUMNS
    while len(whole) > limit and grain_s > 0:
        fewer = _merged(whole, grain_s=grain_s)
        if len(fewer) == len(whole) and grain_s > max(span.end_s for span in found):
            break  # nothing is left to merge: as many lanes and kinds as that
        whole, grain_s = fewer, 2 * grain_s
    return whole


def _merged(found: Sequence[Span], *, grain_s: float) -> list[Span]:
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
    """The timeline as inline SVG; `epochs` are the rows of result.json."""
    found = coarsened(spans(records, started_at=started_at))
    rows = sorted({span.row for span in found}, key=lambda row: (row != "run", len(row), row))
    lanes = {row: 1 + max(span.lane for span in found if span.row == row) for row in rows}
    base, total = {}, 0.0
    for row in rows:
        base[row] = total
        total += lanes[row] + 0.8
    with styled():
        figure = Figure(figsize=(WIDTH_IN, min(14.0, 1.1 + max(0.32 * len(rows), 0.11 * total))))
        axes = figure.subplots()
        handles = _shapes(axes, found, base, steps=list(dict.fromkeys(r["step"] for r in _by_start(records))))
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


def opening(
    records: Sequence[Record], epochs: Sequence[Mapping[str, float]], *, started_at: float, limit: int = DETAIL
) -> list[Record]:
    """The invocations of the first epochs, as many as one picture shows singly; none where all of them fit."""
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
    return sorted(records, key=lambda record: float(record["started_at"]))


def _shapes(axes: Axes, found: Sequence[Span], base: Mapping[str, float], *, steps: Sequence[str]) -> list[Patch]:
    """One path per kind: thousands of rectangles stay a small file. The legend's handles."""
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
    top, bottom = base[span.row] + span.lane + 0.08, base[span.row] + span.lane + 0.92
    corners = [
        (span.begin_s, top),
        (span.end_s, top),
        (span.end_s, bottom),
        (span.begin_s, bottom),
        (span.begin_s, top),
    ]
    return Shape(corners, [Shape.MOVETO, Shape.LINETO, Shape.LINETO, Shape.LINETO, Shape.CLOSEPOLY])
