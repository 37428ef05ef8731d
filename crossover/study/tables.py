"""A study's tables from its rows, cell by cell: what a page shows, what a bundle keeps, and what a reproduction is held against."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite

from crossover.study.conduct import TrialRow
from crossover.study.file import MEASURES, Study, Varied
from crossover.study.statistics import MeanInterval, holm, interval
from crossover.study.trials import label, name_of, settings

SETTINGS, PAIRS = "settings", "pairs"
FAILED_HERE = "it failed here"  # how the reason begins of a trial that was begun and left no run


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
    """Trials by their setting's label, by seed; labels in order, whatever order they ran in. The same run twice is no second draw: of a
    setting and a seed the first counts.
    """
    found = dict[str, dict[int, TrialRow]]()
    for row in sorted(rows, key=lambda row: (label(row.varied), row.seed, row.trial)):
        found.setdefault(label(row.varied), {}).setdefault(row.seed, row)
    return {name: list(by_seed.values()) for name, by_seed in found.items()}


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
            yield _cell(SETTINGS, name, measure, interval(values) if values else None)


def _pairs(study: Study, rows: Sequence[TrialRow]) -> Iterator[StudyCell]:
    """Every pair that the file named, also where no trial of it was run: Holm's correction is over them all."""
    counted, named = by_setting(counting(rows)), list[tuple[str, MeanInterval | None]]()
    for name, (one, other) in study.pairs.items():
        for varied in settings(study):
            if all(varied[key] == value for key, value in one.items()):
                first, second = label(varied), label({**varied, **other})
                both = _by_seed(study, counted.get(first, []), counted.get(second, []))
                size = max((abs(value) for two in both for value in two), default=0.0)
                found = interval([a - b for a, b in both], scale=size) if both else None
                named.append((f"{name}: {first} - {second}", found))
    adjusted = holm([each.p if each else None for _, each in named])
    for (row, each), p in zip(named, adjusted, strict=True):
        known = None if each is None else each.p
        yield StudyCell(table=PAIRS, row=row, column="n", value=each.n if each else 0)
        yield _cell(PAIRS, row, "difference", each)
        yield StudyCell(table=PAIRS, row=row, column="p", value=known)
        yield StudyCell(table=PAIRS, row=row, column="p, Holm", value=None if known is None else p)


def _by_seed(study: Study, first: Sequence[TrialRow], second: Sequence[TrialRow]) -> list[tuple[float, float]]:
    """Of the seeds that both have."""
    other = {row.seed: row.measures[study.metric] for row in second}
    both = ((row.measures[study.metric], other.get(row.seed)) for row in first)
    return [(a, b) for a, b in both if a is not None and b is not None]


def _cell(table: str, row: str, column: str, found: MeanInterval | None) -> StudyCell:
    if found is None:
        return StudyCell(table=table, row=row, column=column, value=None)
    low, high = (each if isfinite(each) else None for each in (found.low, found.high))
    return StudyCell(table=table, row=row, column=column, value=found.mean, low=low, high=high)


def tidy(study: Study, rows: Sequence[TrialRow], missing: Mapping[str, str]) -> list[dict[str, object]]:
    """One line a trial, one column a variable: settings by their whole names. Last those `missing`, by name with the reason, which have
    no figures.
    """
    found: list[dict[str, object]] = [
        {
            "trial": row.trial,
            **_plain(row.varied),
            "seed": row.seed,
            "outcome": row.outcome,
            "reason": row.reason,
            "label": row.label,
            "cost_label": row.cost_label,
            **{name: row.measures[name] for name in MEASURES},
            "all_attempts_usd": row.usd,
        }
        for row in sorted(rows, key=lambda row: (label(row.varied), row.seed))
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
    named = {} if study.search else {name_of(each, n): (each, n) for each in settings(study) for n in study.seeds}
    for trial, reason in missing.items():
        varied, seed = named.get(trial, ({}, trial.rpartition("=")[2]))
        outcome = "failed" if reason.startswith(FAILED_HERE) else "not begun"
        known = {"trial": trial, **_plain(varied), "seed": seed, "outcome": outcome, "reason": reason}
        found.append({name: known.get(name) for name in columns})
    return found


def _plain(varied: Varied) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in varied.items()}


def held_against(
    there: Sequence[StudyCell], here: Sequence[StudyCell]
) -> Iterator[tuple[StudyCell | None, StudyCell | None, str]]:
    """Each cell of `there` with the one made here, and how they stand: equal, within or not. None: that side has none."""
    held, made = ({cell.key: cell for cell in cells} for cells in (there, here))
    for key in held | made:
        yield held.get(key), made.get(key), _stands(held.get(key), made.get(key))


EQUAL, WITHIN, NOT = "equal bits", "within the interval", "not"


def _stands(there: StudyCell | None, here: StudyCell | None) -> str:
    if here is None or there is None:
        return NOT
    if asdict(here) == asdict(there):
        return EQUAL
    if here.value is None or there.low is None or there.high is None:
        return NOT
    return WITHIN if there.low <= here.value <= there.high else NOT
