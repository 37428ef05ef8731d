"""study.csv and study.html of a study's rows."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crossover.experiment import Metric
from crossover.reports import display, folder, html, plots
from crossover.reports.display import DASH
from crossover.reports.page import Page, Plot, Sheet, Tile, plot
from crossover.reports.plots import Mark
from crossover.study import tables
from crossover.study.conduct import TrialRow
from crossover.study.file import Study
from crossover.study.statistics import LEVEL, front
from crossover.study.tables import PAIRS, SETTINGS, StudyCell
from crossover.study.trials import label

NO_RUN = ("trial", "seed", "outcome", "reason")
CSV, PAGE, CELLS = "study.csv", "study.html", "cells.json"
SHOWN: dict[str, Callable[[float | None], str]] = {"duration_s": display.seconds, "goal_s": display.seconds}
SHOWN |= dict.fromkeys(("full_usd", "paper_method_usd", "goal_full_usd"), display.usd) | {"moved_bytes": display.bytes_}
WORDS = {"duration_s": "time", "full_usd": "dollars in full"}
Three = tuple[float, float, float]  # low, mean, high
PLOTTED = 200  # settings, above which a picture says nothing


@dataclass(frozen=True, kw_only=True)
class StudyTables:
    """What a terminal shows of them."""

    tables: Sequence[Sheet]
    words: str


def write(
    study: Study,
    rows: Sequence[TrialRow],
    missing: Mapping[str, str],
    out: Path,
    *,
    spent_usd: float,
    drawn: Sequence[Plot] = (),
) -> StudyTables:
    """All three files into `out`."""
    lines, cells, counted = tables.tidy(study, rows), tables.cells(study, rows), tables.counting(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else NO_RUN, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    writer.writerows(_without_run(name, why) for name, why in missing.items())
    folder.write_atomically(out / CSV, text.getvalue().encode())
    folder.write_atomically(out / CELLS, json.dumps([asdict(cell) for cell in cells], indent=1).encode() + b"\n")
    page = _page(study, rows, cells, missing, spent_usd=spent_usd, drawn=drawn)
    folder.write_atomically(out / PAGE, html.render(page).encode())
    label = f"  [{rows[0].cost_label}]" if rows else ""
    words = f"{len(counted)} of {study.count} trials count; {display.usd(spent_usd)} in all{label}"
    return StudyTables(tables=sheets(study, rows, cells), words=words)


def _without_run(trial: str, why: str) -> dict[str, str]:
    """A trial's line in study.csv of which there is no run: its name ends with its seed."""
    outcome = "failed" if why.startswith("it failed here") else "not begun"
    return dict(zip(NO_RUN, (trial, trial.rpartition("seed=")[2], outcome, why), strict=True))


def sheets(study: Study, rows: Sequence[TrialRow], cells: Sequence[StudyCell]) -> list[Sheet]:
    """The two tables, as text."""
    metric = display_metric(rows)
    judged = (
        f"{study.metric}, {metric.words}" if study.metric.endswith("_metric") else WORDS.get(study.metric, study.metric)
    )
    measures = list(dict.fromkeys((study.metric, "duration_s", "full_usd")))
    by_row = {(cell.table, cell.row, cell.column): cell for cell in cells}
    best = _front(study, rows)
    settings = [
        [name + (" *" if name in best else ""), f"{by_row[SETTINGS, name, 'n'].value:g}"]
        + [
            _with_interval(by_row[SETTINGS, name, each], _shown(each, metric), **_possible(each, metric))
            for each in measures
        ]
        for name in tables.by_setting(rows)
    ]
    heads = [judged if each == study.metric else WORDS[each] for each in measures]
    found = [
        Sheet(
            title="Settings",
            head=["setting", "n", *heads],
            rows=settings,
            note="Means over seeds with Student's 95 % interval; none of a single run, and cut where no such figure can be. "
            "*: on the front, where no other setting is better and costs less.",
        )
    ]
    names = list(dict.fromkeys(cell.row for cell in cells if cell.table == PAIRS))
    if names:
        compared = [
            [
                name,
                f"{by_row[PAIRS, name, 'n'].value:g}",
                _with_interval(by_row[PAIRS, name, "difference"], lambda value: f"{value:+.4g}"),
                *(DASH if (p := by_row[PAIRS, name, each].value) is None else f"{p:.3g}" for each in ("p", "p, Holm")),
                _verdict(by_row[PAIRS, name, "p, Holm"].value),
            ]
            for name in names
        ]
        note = (
            f"Differences of {judged}, paired by seed, with Student's 95 % interval; p two-sided, Holm's over all {len(names)} that "
            "the file named."
        )
        found.append(
            Sheet(title="Comparisons", head=["pair", "n", "difference", "p", "p, Holm", ""], rows=compared, note=note)
        )
    return found


def _verdict(p: float | None) -> str:
    return "no seed in common" if p is None else "different" if p <= LEVEL else "too close to call"


def display_metric(rows: Sequence[TrialRow]) -> Metric:
    return rows[0].metric if rows else Metric()


def _shown(measure: str, metric: Metric) -> Callable[[float | None], str]:
    return SHOWN.get(measure) or (lambda value: display.judged(value, metric))


def _with_interval(
    cell: StudyCell, shown: Callable[[float], str], *, least: float = -math.inf, most: float = math.inf
) -> str:
    """Bounds beyond what such a figure can be are shown as that."""
    if cell.value is None:
        return DASH
    if cell.low is None or cell.high is None:
        return shown(cell.value)
    return f"{shown(cell.value)} ({shown(max(least, cell.low))} to {shown(min(most, cell.high))})"


def _possible(measure: str, metric: Metric) -> dict[str, float]:
    if measure in SHOWN:
        return {"least": 0.0}
    return {"least": 0.0, "most": 1.0} if metric.is_share else {}


def _front(study: Study, rows: Sequence[TrialRow]) -> set[str]:
    means = _means(study, rows)
    rises = study.rises(display_metric(rows))
    points = [(usd[1], value[1]) for _, usd, value in means]
    return {means[n][0] for n in front(points, rises=rises)}


def _means(study: Study, rows: Sequence[TrialRow], cost: str = "full_usd") -> list[tuple[str, Three, Three]]:
    """Of each setting that has both: (low, mean, high) of dollars, and of what is judged."""
    known = {cell.key: cell for cell in tables.cells(study, rows)}

    def three(name: str, column: str) -> Three | None:
        cell = known[SETTINGS, name, column]
        if cell.value is None:
            return None
        low, high = (cell.value if each is None else each for each in (cell.low, cell.high))
        return low, cell.value, high

    both = ((name, three(name, cost), three(name, study.metric)) for name in tables.by_setting(rows))
    return [(name, usd, value) for name, usd, value in both if usd and value]


def _page(
    study: Study,
    rows: Sequence[TrialRow],
    cells: Sequence[StudyCell],
    missing: Mapping[str, str],
    *,
    spent_usd: float,
    drawn: Sequence[Plot],
) -> Page:
    metric, counted = display_metric(rows), tables.counting(rows)
    pictures = []
    for cost, shown in (("full_usd", display.usd), ("duration_s", display.seconds)):
        means = _means(study, rows, cost)
        best = front([(x[1], y[1]) for _, x, y in means], rises=study.rises(metric))
        marks = [Mark(x=x, y=y, title=name, group=name, chosen=n in best) for n, (name, x, y) in enumerate(means)]
        if 0 < len(marks) <= PLOTTED and cost != study.metric:
            title = f"{study.metric} against {WORDS[cost]}"
            svg = plots.marks(marks, x=WORDS[cost], y=study.metric, name=cost, format_x=shown, log=False)
            pictures.append(
                plot(
                    title, svg, caption="Means with their 95 % intervals, ringed on the front; dollars by AWS's prices."
                )
            )
    left_out = [[row.trial, row.reason] for row in rows if row not in counted] + [
        [name, why] for name, why in missing.items()
    ]
    trials = [
        [
            row.trial,
            str(row.seed),
            row.outcome,
            _shown(study.metric, metric)(row.measures[study.metric]),
            display.seconds(row.seconds),
            display.usd(row.usd),
        ]
        for row in sorted(rows, key=lambda row: (label(row.varied), row.seed))
    ]
    found = sheets(study, rows, cells)
    if left_out:
        found.append(Sheet(title="Left out of every mean", head=["trial", "why"], rows=left_out, words=2))
    head = ["trial", "seed", "outcome", study.metric, "time", "dollars"]
    found.append(Sheet(title="Trials", head=head, rows=trials, folded=True, note="Dollars of all attempts."))
    return Page(
        title=f"study {study.name}",
        subtitle=f"varied: {', '.join(study.fields) or 'nothing'}; seeds: {', '.join(map(str, study.seeds))}",
        labels=sorted({row.label for row in rows} | {row.cost_label for row in rows}),
        warnings=_warnings(rows),
        tiles=[
            Tile(name="trials", value=f"{len(counted)} of {study.count}"),
            Tile(
                name="dollars",
                value=display.usd(spent_usd),
                note="all attempts",
                label=rows[0].cost_label if rows else None,
            ),
        ],
        plots=[*pictures, *drawn],
        sheets=found,
    )


def _warnings(rows: Sequence[TrialRow]) -> list[str]:
    """What makes trials of a setting no draws of one thing."""
    by = {name: {row.code for row in of} for name, of in tables.by_setting(rows).items()}
    mixed = [f"{name}: its trials were run by different code" for name, codes in by.items() if len(codes) > 1]
    return mixed[:3]
