"""Several runs side by side: what may be compared, what is only marked, and who won by how much."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from crossover.errors import ConfigError
from crossover.experiment import Metric
from crossover.reports import comparability, display, folder, race
from crossover.reports.folder import RunFolder
from crossover.reports.race import Entry


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs with their rows, what makes them differ, and the verdict."""

    runs: tuple[RunFolder, ...]
    entries: tuple[Entry, ...]
    goal: float | None
    marks: tuple[str, ...]
    verdict: str

    @property
    def trains(self) -> bool:
        """Whether any of the runs trained a model: without one there is no metric to show."""
        return any(display.trains(run.result) for run in self.runs)

    @property
    def metric(self) -> Metric:
        """What the runs are judged by: the first one's, where they differ."""
        return self.entries[0].metric


def read(paths: Sequence[Path], *, mixed: bool = False) -> Comparison:
    """The comparison of the run folders `paths`. Raises DataError (not a run), ConfigError (not comparable)."""
    return of([folder.read(path) for path in paths], mixed=mixed)


def of(runs: Sequence[RunFolder], *, mixed: bool = False) -> Comparison:
    """Compare `runs`. Different data or models are refused; `mixed` lets them stand side by side, without a verdict. Prices of different
    dates or regions: the verdict says nothing of dollars.
    """
    if not runs:
        raise ConfigError("compare: no run was given; give the folders of at least one run")
    results, names = [run.result for run in runs], comparability.names(runs)
    if len(twice := {run.path.resolve() for run in runs}) < len(runs):
        raise ConfigError(f"compare: {len(runs)} folders are {len(twice)} runs; give each once")
    apart = comparability.apart(runs, names)
    if apart and not mixed:
        raise ConfigError(
            f"compare: these runs cannot be compared: {'; '.join(apart)}. With --mixed they stand side by side"
        )
    goal, why = race.goal(results)
    entries = tuple(_entry(run, name, goal) for run, name in zip(runs, names, strict=True))
    return Comparison(
        runs=tuple(runs),
        entries=entries,
        goal=goal,
        marks=(*apart, *comparability.marks(runs, names)),
        verdict="no verdict: different data or models"
        if apart
        else race.verdict(entries, goal, why, dollars=comparability.same_prices(results)),
    )


def _entry(run: RunFolder, name: str, goal: float | None) -> Entry:
    entry = race.entry(run.result, name, goal)
    return replace(entry, complete=entry.complete and not comparability.lost_records(run))


def to_csv(comparison: Comparison) -> str:
    """One row per run, raw figures: seconds, dollars, bytes, the metric's values."""
    text = io.StringIO()
    columns = [field.name for field in fields(Entry)]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for entry in comparison.entries:
        writer.writerow({column: getattr(entry, column) for column in columns} | {"metric": entry.metric.name})
    return text.getvalue()
