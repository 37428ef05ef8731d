"""A study's report: tables with intervals, and which differences are significant."""

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from crossover.experiment import Metric
from crossover.reports import display, folder, plots, report_pages
from crossover.reports.display import DASH
from crossover.reports.pages import Page, Plot, Sheet, Tile, offer_choice, plot, shorten
from crossover.reports.plots import Mark
from crossover.study.file import MEASURES, Study, Varied
from crossover.study.runner import TrialRow
from crossover.study.trials import format_setting, list_settings, trial_folder_name

# --- statistics -------------------------------------------------------------------------------------------------------

SIGNIFICANCE_LEVEL = 0.05
EQUAL_TOLERANCE = 1e-12  # relative to the figures: rounding errors of equal differences


class MeanInterval(NamedTuple):
    """The mean of `n` values with its 95 % confidence interval, from `low` to `high`. The interval is infinitely wide for a single value,
    and if all values are equal. `p`: two-sided p-value of the hypothesis that the mean is 0; 1 for a single value; None if several values
    are equal and not 0.
    """

    mean: float
    low: float
    high: float
    n: int
    p: float | None


def compute_interval(values: Sequence[float], *, scale: float = 0.0) -> MeanInterval:
    """Return the mean of the finite `values`, at least one, with Student's 95 % confidence interval. `scale`: if the values are differences
    of figures, the magnitude of these figures, else 0: a spread or mean that is tiny against it counts as 0.
    """
    from scipy.stats import t  # a second, for --help

    n, middle = len(values), fmean(values)
    if n < 2:
        return MeanInterval(middle, -inf, inf, n, 1.0)
    spread, least = stdev(values), EQUAL_TOLERANCE * max(scale, *map(abs, values))
    if spread <= least:  # without variation there is no test
        return MeanInterval(middle, -inf, inf, n, 1.0 if abs(middle) <= least else None)
    error = spread / sqrt(n)
    half = float(t.isf(SIGNIFICANCE_LEVEL / 2, n - 1)) * error
    return MeanInterval(middle, middle - half, middle + half, n, float(2 * t.sf(abs(middle) / error, n - 1)))


def adjust_by_holm(p: Sequence[float | None]) -> list[float]:
    """Return the p-values after Holm's correction for multiple tests, in the order of `p`. A result is significant if it is at most
    SIGNIFICANCE_LEVEL. An unknown p-value (None) counts as 1.
    """
    known = [1.0 if each is None else each for each in p]
    adjusted, least = [1.0] * len(p), 0.0
    for rank, at in enumerate(sorted(range(len(p)), key=lambda n: known[n])):
        least = max(least, min(1.0, (len(p) - rank) * known[at]))
        adjusted[at] = least
    return adjusted


def find_pareto_front(points: Sequence[tuple[float, float]], *, rises: bool) -> list[int]:
    """Return the indexes, ascending, of the Pareto front of (cost, value) points: no point that differs is at least as good in both; equal
    points are all on it. `rises`: whether a higher value is better; a lower cost always is.
    """
    signed = [(cost, -value if rises else value) for cost, value in points]
    return [
        n
        for n, (cost, value) in enumerate(signed)
        if not any(a <= cost and b <= value and (a, b) != (cost, value) for a, b in signed)
    ]


# --- tables -----------------------------------------------------------------------------------------------------------
# A study's tables, cell by cell: for its page, its bundle, and the comparison with a reproduction.

SETTINGS, PAIRS = "settings", "pairs"


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """One figure of one of a study's two tables. `table`: "settings" or "pairs"; `row`: label of the setting or pair; `column`: "n", a
    measure, "difference", "p" or "p, Holm"; `value`: None if it is unknown; `low`, `high`: its 95 % interval, None if it has none.
    """

    table: str
    row: str
    column: str
    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """The cell's position: (table, row, column)."""
        return self.table, self.row, self.column


def select_counted(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the trials whose run finished with complete records; only these are averaged."""
    return [row for row in rows if row.outcome == "finished" and not row.reason]


def group_by_setting(rows: Sequence[TrialRow]) -> dict[str, list[TrialRow]]:
    """Return the trials by their setting's label, sorted by label and seed. If a setting has several trials with one seed, as a search may,
    only the first by name is returned, because a repeated run is not another sample.
    """
    found = dict[str, dict[int, TrialRow]]()
    for row in sorted(rows, key=lambda row: (format_setting(row.varied), row.seed, row.trial)):
        found.setdefault(format_setting(row.varied), {}).setdefault(row.seed, row)
    return {name: list(by_seed.values()) for name, by_seed in found.items()}


def make_cells(study: Study, rows: Sequence[TrialRow]) -> list[StudyCell]:
    """Return the cells of a study's two tables in one list: those of each setting in `rows`, sorted by the setting's label, then those of
    each pair that the study declares, with one table row for each setting that the pair fits, run or not. Only finished trials with
    complete records are averaged, one for each seed. The order of `rows` does not matter.
    """
    return [*_make_setting_cells(study, rows), *_make_pair_cells(study, rows)]


def _make_setting_cells(study: Study, rows: Sequence[TrialRow]) -> Iterator[StudyCell]:
    """Yield the cells of the table of settings: for each setting the number of counted trials, and the mean with its interval of the
    study's metric, of the duration and of the dollars.
    """
    counted = group_by_setting(select_counted(rows))
    for name in group_by_setting(rows):
        of = counted.get(name, [])
        yield StudyCell(table=SETTINGS, row=name, column="n", value=len(of))
        for measure in dict.fromkeys((study.metric, "duration_s", "full_usd")):
            values = [value for row in of if (value := row.measures[measure]) is not None]
            yield _make_interval_cell(SETTINGS, name, measure, compute_interval(values) if values else None)


def _make_pair_cells(study: Study, rows: Sequence[TrialRow]) -> Iterator[StudyCell]:
    """Yield the cells of the table of pairs, which has a row for each declared pair and each setting that the pair fits: number of common
    seeds, difference, p-value, and p-value after Holm's correction. Rows without any trial are included, because the correction counts
    every one that the file declares.
    """
    counted, named = group_by_setting(select_counted(rows)), list[tuple[str, MeanInterval | None]]()
    for name, (one, other) in study.pairs.items():
        for varied in list_settings(study):
            if all(varied[key] == value for key, value in one.items()):
                first, second = format_setting(varied), format_setting({**varied, **other})
                both = _pair_by_seed(study, counted.get(first, []), counted.get(second, []))
                size = max((abs(value) for two in both for value in two), default=0.0)
                found = compute_interval([a - b for a, b in both], scale=size) if both else None
                named.append((f"{name}: {first} - {second}", found))
    adjusted = adjust_by_holm([each.p if each else None for _, each in named])
    for (row, each), p in zip(named, adjusted, strict=True):
        known = None if each is None else each.p
        yield StudyCell(table=PAIRS, row=row, column="n", value=each.n if each else 0)
        yield _make_interval_cell(PAIRS, row, "difference", each)
        yield StudyCell(table=PAIRS, row=row, column="p", value=known)
        yield StudyCell(table=PAIRS, row=row, column="p, Holm", value=None if known is None else p)


def _pair_by_seed(study: Study, first: Sequence[TrialRow], second: Sequence[TrialRow]) -> list[tuple[float, float]]:
    """Return (metric of `first`, metric of `second`) for each seed for which both settings have the study's metric, in the order of
    `first`.
    """
    other = {row.seed: row.measures[study.metric] for row in second}
    both = ((row.measures[study.metric], other.get(row.seed)) for row in first)
    return [(a, b) for a, b in both if a is not None and b is not None]


def _make_interval_cell(table: str, row: str, column: str, found: MeanInterval | None) -> StudyCell:
    """Return the cell of a mean with its interval at (`table`, `row`, `column`). If `found` is None, the cell has no value; infinite bounds
    become None.
    """
    if found is None:
        return StudyCell(table=table, row=row, column=column, value=None)
    low, high = (each if isfinite(each) else None for each in (found.low, found.high))
    return StudyCell(table=table, row=row, column=column, value=found.mean, low=low, high=high)


def make_tidy_rows(
    study: Study, rows: Sequence[TrialRow], missing: Mapping[str, str], *, failed: Collection[str] = ()
) -> list[dict[str, object]]:
    """Return the lines of study.csv: one mapping from column to value per trial, with the full names of the varied fields, sorted by
    setting and seed. Columns: trial, varied fields, seed, outcome, reason, label, cost_label, MEASURES, all_attempts_usd. `rows`: trials
    with a run; `missing`: reason by name of trials without one, which come last and have no figures; `failed`: names of those of them that
    started and failed.
    """
    found: list[dict[str, object]] = [
        {
            "trial": row.trial,
            **_to_plain(row.varied),
            "seed": row.seed,
            "outcome": row.outcome,
            "reason": row.reason,
            "label": row.label,
            "cost_label": row.cost_label,
            **{name: row.measures[name] for name in MEASURES},
            "all_attempts_usd": row.usd,
        }
        for row in sorted(rows, key=lambda row: (format_setting(row.varied), row.seed))
    ]
    columns = (
        "trial",
        *study.fields,
        "seed",
        "outcome",
        "reason",
        "label",
        "cost_label",
        *MEASURES,
        "all_attempts_usd",
    )
    named = (
        {}
        if study.search
        else {trial_folder_name(each, n): (each, n) for each in list_settings(study) for n in study.seeds}
    )
    for trial, reason in missing.items():
        varied, seed = named.get(trial, ({}, trial.rpartition("=")[2]))
        outcome = "failed" if trial in failed else "not started"
        known = {"trial": trial, **_to_plain(varied), "seed": seed, "outcome": outcome, "reason": reason}
        found.append({name: known.get(name) for name in columns})
    return found


def _to_plain(varied: Varied) -> dict[str, object]:
    """Return a setting's values by field, with lists and mappings as JSON text."""
    return {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in varied.items()}


def compare_cells(
    there: Sequence[StudyCell],
    here: Sequence[StudyCell],
    *,
    incomparable: Collection[str] = (),
    same_records: bool = False,
) -> Iterator[tuple[StudyCell | None, StudyCell | None, str]]:
    """Yield (cell of `there`, cell of `here`, result of the comparison) for every cell of either side; a side that lacks the cell has None.
    The result is one of EQUAL, ROUNDED, WITHIN, NOT and INCOMPARABLE. `incomparable`: columns that differ even between equal runs; for
    them NOT becomes INCOMPARABLE; `same_records`: whether both sides come from the same runs, so that only rounding may differ.
    """
    held, made = ({cell.key: cell for cell in cells} for cells in (there, here))
    for key in held | made:
        stands = _judge_cell(held.get(key), made.get(key), same_records=same_records)
        if stands == NOT and key in held and key in made and key[-1] in incomparable:
            stands = INCOMPARABLE
        yield held.get(key), made.get(key), stands


def list_incomparable(study: Study) -> set[str]:
    """Return the names of the columns that cannot be compared between two runs of the same trials: traffic, which depends on which worker
    evaluates first and how often a worker polls, and p-values of all measures that equal seeds do not reproduce exactly.
    """
    by_traffic = {"moved_bytes", "difference"} if study.metric == "moved_bytes" else set[str]()
    return by_traffic | ({"p", "p, Holm"} if study.metric not in OF_THE_MODEL else set())


OF_THE_MODEL = ("final_metric", "best_metric")  # equal seeds give equal bits of these measures
EQUAL, WITHIN, NOT, INCOMPARABLE = "equal bits", "within the interval", "not", "not comparable"
ROUNDED = "equal but for rounding"  # another version of a library added up in another order
ROUNDING = 1e-9  # relative


def _judge_cell(there: StudyCell | None, here: StudyCell | None, *, same_records: bool) -> str:
    """Return how the cell `here` compares with the recorded cell `there`: EQUAL if all fields are equal; ROUNDED if they differ by rounding
    and both come from the same runs (`same_records`); WITHIN if the runs are others and its value lies in the recorded interval; else NOT.
    """
    if here is None or there is None:
        return NOT
    if asdict(here) == asdict(there):
        return EQUAL
    if same_records:
        pairs = ((there.value, here.value), (there.low, here.low), (there.high, here.high))
        return ROUNDED if all(_are_close(one, other) for one, other in pairs) else NOT
    if here.value is None or there.low is None or there.high is None:
        return NOT
    return WITHIN if there.low <= here.value <= there.high else NOT


def _are_close(one: float | None, other: float | None) -> bool:
    """Return whether two figures of a cell are equal but for rounding, or are both missing."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=1e-12)


# --- report -----------------------------------------------------------------------------------------------------------
# study.csv and study.html of a study's rows.

CSV, PAGE, CELLS = "study.csv", "study.html", "cells.json"
MEASURE_FORMATS: dict[str, Callable[[float | None], str]] = {"duration_s": display.seconds, "goal_s": display.seconds}
MEASURE_FORMATS |= dict.fromkeys(("full_usd", "paper_method_usd", "goal_full_usd"), display.usd) | {
    "moved_bytes": display.bytes_
}
MEASURE_NAMES = {"duration_s": "time", "full_usd": "total AWS bill"}
LowMeanHigh = tuple[float, float, float]  # low, mean, high
MAX_PLOTTED = 200  # most settings in a plot; more would be unreadable


@dataclass(frozen=True, kw_only=True)
class StudyTables:
    """The tables of a study for the terminal. `tables`: settings, and comparisons if the study declares pairs; `words`: one line with the
    number of counted trials and the dollars.
    """

    tables: Sequence[Sheet]
    words: str


def write(
    study: Study,
    rows: Sequence[TrialRow],
    missing: Mapping[str, str],
    out: Path,
    *,
    spent_usd: float,
    failed: Collection[str] = (),
    drawn: Sequence[Plot] = (),
) -> StudyTables:
    """Write a study's study.csv, cells.json and study.html into the folder `out`, and return its tables. `rows`: trials with a run;
    `missing`: reason by name of trials without one; `spent_usd`: dollars of the whole study; `failed`: names of the missing trials that
    started and failed; `drawn`: further plots for the page.
    """
    lines, cells, counted = (
        make_tidy_rows(study, rows, missing, failed=failed),
        make_cells(study, rows),
        select_counted(rows),
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else ["trial"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(display.escape_row, lines))
    folder.write_atomically(out / CSV, text.getvalue().encode())
    folder.write_atomically(out / CELLS, json.dumps([asdict(cell) for cell in cells], indent=1).encode() + b"\n")
    page = _build_page(study, rows, cells, missing, spent_usd=spent_usd, drawn=drawn)
    folder.write_atomically(out / PAGE, report_pages.render(page).encode())
    label = f"{_describe_dollars(rows)}  [{rows[0].cost_label}]" if rows else ""
    words = f"{len(counted)} of {study.count} trials count; {display.usd(spent_usd)} in all{label}"
    return StudyTables(tables=make_sheets(study, rows, cells), words=words)


def make_sheets(study: Study, rows: Sequence[TrialRow], cells: Sequence[StudyCell]) -> list[Sheet]:
    """Return the study's tables with all figures as text: settings, those on the Pareto front marked, and comparisons if the study declares
    pairs. `rows`: trials with a run; `cells`: result of `make_cells`.
    """
    metric = find_metric(rows)
    judged = (
        f"{study.metric}, {metric.words}"
        if study.metric.endswith("_metric")
        else MEASURE_NAMES.get(study.metric, study.metric)
    )
    measures = list(dict.fromkeys((study.metric, "duration_s", "full_usd")))
    by_row = {(cell.table, cell.row, cell.column): cell for cell in cells}
    best = _find_front_labels(study, rows)
    settings = [
        [name + (" *" if name in best else ""), f"{by_row[SETTINGS, name, 'n'].value:g}"]
        + [
            _format_with_interval(
                by_row[SETTINGS, name, each], _find_format(each, metric), **_find_bounds(each, metric)
            )
            for each in measures
        ]
        for name in group_by_setting(rows)
    ]
    heads = [judged if each == study.metric else MEASURE_NAMES[each] for each in measures]
    found = [
        Sheet(
            title="Settings",
            head=["setting", "n", *heads],
            rows=settings,
            note="Means over seeds with Student's 95 % confidence interval, if there are several runs with different figures. "
            "Intervals are cut at impossible values. *: on the Pareto front (no other setting is both better and cheaper).",
        )
    ]
    names = list(dict.fromkeys(cell.row for cell in cells if cell.table == PAIRS))
    if names:
        compared = [
            [
                name,
                f"{by_row[PAIRS, name, 'n'].value:g}",
                _format_with_interval(by_row[PAIRS, name, "difference"], lambda value: f"{value:+.4g}"),
                *(DASH if (p := by_row[PAIRS, name, each].value) is None else f"{p:.3g}" for each in ("p", "p, Holm")),
                _judge_pair(by_row[PAIRS, name, "n"].value, by_row[PAIRS, name, "p, Holm"].value),
            ]
            for name in names
        ]
        note = (
            f"Differences of {judged}, paired by seed, with Student's 95 % confidence interval; two-sided p, corrected by Holm for the "
            f"{len(names)} pairs that the study declares."
        )
        found.append(
            Sheet(title="Comparisons", head=["pair", "n", "difference", "p", "p, Holm", ""], rows=compared, note=note)
        )
    return found


def _judge_pair(n: float | None, p: float | None) -> str:
    """Return the verdict on one comparison as text, such as "significantly different" or "no common seed". `n`: number of common seeds;
    `p`: p-value after Holm's correction, None if there was no test.
    """
    if not n:
        return "no common seed"
    return (
        "all differences equal: no test"
        if p is None
        else "significantly different"
        if p <= SIGNIFICANCE_LEVEL
        else "too close to call"
    )


def find_metric(rows: Sequence[TrialRow]) -> Metric:
    """Return the metric of the trials' models (that of the first trial); the default metric if there is no trial."""
    return rows[0].metric if rows else Metric()


def _find_format(measure: str, metric: Metric) -> Callable[[float | None], str]:
    """Return the function that formats values of a measure as text, None as a dash. `metric`: used for measures that are values of the
    model's metric.
    """
    return MEASURE_FORMATS.get(measure) or (lambda value: display.format_metric(value, metric))


def _format_with_interval(
    cell: StudyCell, shown: Callable[[float], str], *, least: float = -math.inf, most: float = math.inf
) -> str:
    """Return a cell's figure as text, with its interval in parentheses if it has one. `shown`: formats one number; `least`, `most`: bounds
    of the possible values, to which the interval is cut.
    """
    if cell.value is None:
        return DASH
    if cell.low is None or cell.high is None:
        return shown(cell.value)
    return f"{shown(cell.value)} ({shown(max(least, cell.low))} to {shown(min(most, cell.high))})"


def _find_bounds(measure: str, metric: Metric) -> dict[str, float]:
    """Return the bounds of a measure's possible values as keyword arguments (`least`, `most`) of `_format_with_interval`; {} if there are
    none.
    """
    if measure in MEASURE_FORMATS:
        return {"least": 0.0}
    return {"least": 0.0, "most": 1.0} if metric.is_share else {}


def _find_front_labels(study: Study, rows: Sequence[TrialRow]) -> set[str]:
    """Return the labels of the settings on the Pareto front of mean dollars and mean metric of the study."""
    means = _compute_means(study, rows)
    rises = study.rises(find_metric(rows))
    points = [(usd[1], value[1]) for _, usd, value in means]
    return {means[n][0] for n in find_pareto_front(points, rises=rises)}


def _compute_means(
    study: Study, rows: Sequence[TrialRow], cost: str = "full_usd"
) -> list[tuple[str, LowMeanHigh, LowMeanHigh]]:
    """Return (label, (low, mean, high) of the cost, (low, mean, high) of the study's metric) for each setting that has both. A bound that
    is unknown equals the mean. `cost`: name of a measure, "full_usd" or "duration_s".
    """
    known = {cell.key: cell for cell in make_cells(study, rows)}

    def three(name: str, column: str) -> LowMeanHigh | None:
        """Return (low, mean, high) of one column of the setting called `name`; None if it has no figure. Missing bounds equal the mean."""
        cell = known[SETTINGS, name, column]
        if cell.value is None:
            return None
        low, high = (cell.value if each is None else each for each in (cell.low, cell.high))
        return low, cell.value, high

    both = ((name, three(name, cost), three(name, study.metric)) for name in group_by_setting(rows))
    return [(name, usd, value) for name, usd, value in both if usd and value]


def summarize(study: Study, rows: Sequence[TrialRow], cells: Sequence[StudyCell]) -> str:
    """Return one sentence for the page's title: which setting is best by the study's metric, how many declared pairs differ significantly,
    and, if some trials do not count, how many do. `rows`: trials with a run; `cells`: result of `make_cells`.
    """
    metric, shown = find_metric(rows), _find_format(study.metric, find_metric(rows))
    count = len(select_counted(rows))
    counted = f"{count} of {study.count} trials count"
    known = [cell for cell in cells if (cell.table, cell.column) == (SETTINGS, study.metric) and cell.value is not None]
    if not known:
        return f"Nothing to compare: {counted}."
    first = sorted(known, key=lambda cell: cell.value or 0.0, reverse=study.rises(metric))[0]
    figure = _format_with_interval(first, shown, **_find_bounds(study.metric, metric))
    what = _name_measure(study, metric)
    best = f"{first.row} has the best {what}: {figure}" if len(known) > 1 else f"{first.row}: {what} {figure}"
    adjusted = [cell.value for cell in cells if (cell.table, cell.column) == (PAIRS, "p, Holm")]
    differ = sum(value is not None and value <= SIGNIFICANCE_LEVEL for value in adjusted)
    pairs = f"; {differ} of {len(adjusted)} named pairs differ significantly (95 %, after Holm)" if adjusted else ""
    return f"{best}{pairs}{'' if count == study.count else f'; {counted}'}."


def _build_page(
    study: Study,
    rows: Sequence[TrialRow],
    cells: Sequence[StudyCell],
    missing: Mapping[str, str],
    *,
    spent_usd: float,
    drawn: Sequence[Plot],
) -> Page:
    """Build the study's HTML page as data: two plots (metric against dollars, and against time), tables, excluded trials. `cells`: result
    of `make_cells`; `missing`: reason by name of trials without a run; `spent_usd`: dollars of the whole study; `drawn`: plots of the
    search.
    """
    metric, counted = find_metric(rows), select_counted(rows)
    judged = _name_measure(study, metric)
    pictures = []
    for cost, shown in (("full_usd", display.usd), ("duration_s", display.seconds)):
        means = _compute_means(study, rows, cost)
        best = find_pareto_front([(x[1], y[1]) for _, x, y in means], rises=study.rises(metric))
        ends = _label_ends(means, "cheapest" if cost == "full_usd" else "soonest", rises=study.rises(metric))
        marks = [
            Mark(x=x, y=y, title=name, group=name, chosen=n in best, label=ends.get(n, ""))
            for n, (name, x, y) in enumerate(means)
        ]
        if 0 < len(marks) <= MAX_PLOTTED and cost != study.metric:
            title = f"{judged.capitalize()} against {MEASURE_NAMES[cost]}"
            svg = plots.marks(
                marks,
                x=MEASURE_NAMES[cost],
                y=judged,
                name=cost,
                format_x=shown,
                log=False,
                percent=metric.is_share and study.metric not in MEASURE_FORMATS,
            )
            pictures.append(
                plot(
                    title,
                    svg,
                    caption="Means with 95 % intervals. The Pareto front is ringed. Dollars at AWS's prices.",
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
            _find_format(study.metric, metric)(row.measures[study.metric]),
            display.seconds(row.seconds),
            display.usd(row.usd),
        ]
        for row in sorted(rows, key=lambda row: (format_setting(row.varied), row.seed))
    ]
    settings, *others = make_sheets(study, rows, cells)
    found = shorten(
        settings, best=_rank_rows(study, cells, settings, rises=study.rises(metric)), what=f"with the best {judged}"
    )
    for sheet in others:
        found += shorten(sheet)
    if left_out:
        found += shorten(Sheet(title="Excluded from all means", head=["trial", "reason"], rows=left_out, words=2))
    head = ["trial", "seed", "outcome", study.metric, "time", "dollars"]
    found.append(Sheet(title="Trials", head=head, rows=trials, folded=True, note="Dollars of all attempts."))
    return Page(
        kind=f"Study {study.name}",
        title=summarize(study, rows, cells),
        subtitle=f"varied fields: {', '.join(study.fields) or 'none'}; seeds: {', '.join(map(str, study.seeds))}",
        links=[(CSV, CSV), (CELLS, CELLS)],
        labels=sorted({row.label for row in rows} | {row.cost_label for row in rows}),
        warnings=_list_warnings(rows),
        tiles=[
            Tile(name="trials", value=f"{len(counted)} of {study.count}"),
            Tile(
                name="dollars",
                value=display.usd(spent_usd),
                note=f"all attempts{_describe_dollars(rows)}",
                label=rows[0].cost_label if rows else None,
            ),
        ],
        **offer_choice(pictures),
        sheets=found,
        folded=[Page(title="How the search went", subtitle="", labels=[], plots=drawn)] if drawn else [],
    )


def _name_measure(study: Study, metric: Metric) -> str:
    """Return the name of the study's measure in words: for best_metric and final_metric that of `metric`, the trials' metric, such as
    "accuracy"; for others as in MEASURE_NAMES, such as "total AWS bill"; the measure's key if it is not there.
    """
    return metric.words if study.metric.endswith("_metric") else MEASURE_NAMES.get(study.metric, study.metric)


def _label_ends(means: Sequence[tuple[str, LowMeanHigh, LowMeanHigh]], least: str, *, rises: bool) -> dict[int, str]:
    """Return labels for two points of a chart, by their index in `means`: the point with the best metric and the point of least cost; one
    label if both are the same point, {} without points. `means`: (name, cost, metric) of each point. `least`: word for the latter, such as
    "cheapest"; `rises`: whether a higher metric is better.
    """
    if not means:
        return {}
    first = min(range(len(means)), key=lambda n: means[n][1][1])
    best = (max if rises else min)(range(len(means)), key=lambda n: means[n][2][1])
    if first == best:
        return {best: f"best and {least}: {means[best][0]}"}
    return {first: f"{least}: {means[first][0]}", best: f"best: {means[best][0]}"}


def _rank_rows(study: Study, cells: Sequence[StudyCell], settings: Sheet, *, rises: bool) -> list[Sequence[str]]:
    """Return the rows of the table of settings, sorted from best to worst by the study's measure; rows without a value come last. `rises`:
    whether a higher value is better.
    """
    values = {cell.row: cell.value for cell in cells if (cell.table, cell.column) == (SETTINGS, study.metric)}
    sign = -1 if rises else 1

    def rank(row: Sequence[str]) -> float:
        """Return the number by which a table row is sorted, lowest first: its value, negated if a higher one is better; infinite if it has
        none.
        """
        value = values.get(row[0].removesuffix(" *"))
        return math.inf if value is None else sign * value

    return sorted(settings.rows, key=rank)


def _describe_dollars(rows: Sequence[TrialRow]) -> str:
    """Return an addition to a sentence that says how the dollars were computed, if the trials ran on this machine; "" for trials on AWS or
    if there are none.
    """
    return ", from this machine's seconds at AWS's prices" if rows and rows[0].cost_label == "projected" else ""


def _list_warnings(rows: Sequence[TrialRow]) -> list[str]:
    """Return a warning for each setting whose trials ran with different versions of the code; the first three of them."""
    by = {name: {row.code for row in of} for name, of in group_by_setting(rows).items()}
    mixed = [f"{name}: its trials ran with different code" for name, codes in by.items() if len(codes) > 1]
    return mixed[:3]
