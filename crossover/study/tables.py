"""A study's tables from its rows, cell by cell: what a page shows, what a bundle keeps, and what a reproduction is held against."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite

from crossover.study.conduct import TrialRow
from crossover.study.file import MEASURES, Study
from crossover.study.statistics import holm, interval
from crossover.study.trials import label

SETTINGS, PAIRS = "settings", "pairs"


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """One figure: `low` and `high` are its 95 % interval, None of a figure that has none."""

    table: str
    row: str
    column: str
    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.table, self.row, self.column


def counting(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Trials that ended well: of the others no figure is averaged."""
    return [row for row in rows if row.outcome == "finished" and not row.reason]


def by_setting(rows: Sequence[TrialRow]) -> dict[str, list[TrialRow]]:
    """Trials by their setting's label, by seed; labels in order, whatever order they ran in."""
    found = dict[str, list[TrialRow]]()
    for row in sorted(rows, key=lambda row: (label(row.varied), row.seed)):
        found.setdefault(label(row.varied), []).append(row)
    return found


def cells(study: Study, rows: Sequence[TrialRow]) -> list[StudyCell]:
    """Of both tables. Which trial ran first changes nothing."""
    return [*_settings(study, rows), *_pairs(study, rows)]


def _settings(study: Study, rows: Sequence[TrialRow]) -> Iterator[StudyCell]:
    counted = by_setting(counting(rows))
    for name in by_setting(rows):
        of = counted.get(name, [])
        yield StudyCell(table=SETTINGS, row=name, column="n", value=len(of))
        for measure in dict.fromkeys((study.metric, "duration_s", "full_usd")):
            values = [value for row in of if (value := row.measures[measure]) is not None]
            yield _cell(SETTINGS, name, measure, values)


def _pairs(study: Study, rows: Sequence[TrialRow]) -> Iterator[StudyCell]:
    counted, named = by_setting(counting(rows)), list[tuple[str, list[float]]]()
    settings = {label(row.varied): row.varied for row in rows}
    for name, (one, other) in study.pairs.items():
        for first, varied in settings.items():
            second = label({**varied, **other})
            if all(varied.get(key) == value for key, value in one.items()) and second in settings:
                named.append(
                    (
                        f"{name}: {first} - {second}",
                        _differences(study, counted.get(first, []), counted.get(second, [])),
                    )
                )
    found = [(row, values, interval(values) if values else None) for row, values in named]
    adjusted = holm([each.p if each else 1.0 for _, _, each in found])
    for (row, values, each), p in zip(found, adjusted, strict=True):
        yield StudyCell(table=PAIRS, row=row, column="n", value=len(values))
        yield _cell(PAIRS, row, "difference", values)
        yield StudyCell(table=PAIRS, row=row, column="p", value=each.p if each else None)
        yield StudyCell(table=PAIRS, row=row, column="p, Holm", value=p if each else None)


def _differences(study: Study, first: Sequence[TrialRow], second: Sequence[TrialRow]) -> list[float]:
    """By seed, of those that both have."""
    other = {row.seed: row.measures[study.metric] for row in second}
    both = ((row.measures[study.metric], other.get(row.seed)) for row in first)
    return [a - b for a, b in both if a is not None and b is not None]


def _cell(table: str, row: str, column: str, values: Sequence[float]) -> StudyCell:
    if not values:
        return StudyCell(table=table, row=row, column=column, value=None)
    found = interval(values)
    low, high = (each if isfinite(each) else None for each in (found.low, found.high))
    return StudyCell(table=table, row=row, column=column, value=found.mean, low=low, high=high)


def tidy(study: Study, rows: Sequence[TrialRow]) -> list[dict[str, object]]:
    """One line a trial, one column a variable: settings by their whole names."""
    found = []
    for row in sorted(rows, key=lambda row: (label(row.varied), row.seed)):
        varied = {
            name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.varied.items()
        }
        plain = {
            "trial": row.trial,
            **varied,
            "seed": row.seed,
            "outcome": row.outcome,
            "reason": row.reason,
            "label": row.label,
        }
        found.append(
            {
                **plain,
                "cost_label": row.cost_label,
                **{name: row.measures[name] for name in MEASURES},
                "all_attempts_usd": row.usd,
            }
        )
    return found


def held_against(
    there: Sequence[StudyCell], here: Sequence[StudyCell]
) -> Iterator[tuple[StudyCell, StudyCell | None, str]]:
    """Each cell of `there` with the one made here, and how they stand: equal, within or not. None: it was not made."""
    made = {cell.key: cell for cell in here}
    for cell in there:
        mine = made.get(cell.key)
        yield cell, mine, _stands(cell, mine)


EQUAL, WITHIN, NOT = "equal bits", "within the interval", "not"


def _stands(there: StudyCell, here: StudyCell | None) -> str:
    if here is None:
        return NOT
    if asdict(here) == asdict(there):
        return EQUAL
    if here.value is None or there.low is None or there.high is None:
        return NOT
    return WITHIN if there.low <= here.value <= there.high else NOT
