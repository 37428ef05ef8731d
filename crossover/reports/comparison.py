"""Several runs side by side: what may be compared, what is only marked, and who won by how much."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Metric
from crossover.reports import comparability, display, folder, race
from crossover.reports.bands import Band
from crossover.reports.folder import RunFolder
from crossover.reports.on_aws import OnAws
from crossover.reports.on_aws import verdict as on_aws_verdict
from crossover.reports.race import RaceEntry


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs with their rows, what makes them differ, and the verdict."""

    runs: tuple[RunFolder, ...]
    entries: tuple[RaceEntry, ...]
    goal: float | None
    marks: tuple[str, ...]
    verdict: str
    on_aws: Mapping[str, OnAws]  # by name, of those that could be simulated

    @property
    def trains(self) -> bool:
        """Whether any of the runs trained a model: without one there is no metric to show."""
        return any(display.trains(run.result) for run in self.runs)

    @property
    def to_goal(self) -> str:
        """To what the columns of the goal are; empty where nobody named one."""
        if not self.trains:
            return "to the mean"
        return "" if self.goal is None else f"to {display.judged(self.goal, self.metric)}"

    @property
    def metric(self) -> Metric:
        """What the runs are judged by: the first one's, where they differ."""
        return self.entries[0].metric


Simulate = Callable[[Sequence[Mapping[str, Any]]], Sequence[OnAws | None]]


def read(
    paths: Sequence[Path], *, at: float | None = None, mixed: bool = False, simulated: Simulate | None = None
) -> Comparison:
    """The comparison of the run folders `paths`. Raises DataError (not a run), ConfigError (not comparable)."""
    return of([folder.read(path) for path in paths], at=at, mixed=mixed, simulated=simulated)


def of(
    runs: Sequence[RunFolder], *, at: float | None = None, mixed: bool = False, simulated: Simulate | None = None
) -> Comparison:
    """Compare `runs`. Different data or models are refused; `mixed` lets them stand side by side, without a verdict. Prices of different
    dates or regions: the verdict says nothing of dollars. `at`: the metric's value that a run must reach. `simulated`: what runs
    (result.json) would take on AWS, in the same draws.
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
    goal, why = race.goal(results, at)
    entries = tuple(_entry(run, name, goal) for run, name in zip(runs, names, strict=True))
    said = simulated(results) if simulated else [None] * len(runs)
    on_aws = {name: each for name, each in zip(names, said, strict=True) if each is not None}
    here = race.verdict(entries, goal, why, dollars=comparability.same_prices(results))
    return Comparison(
        runs=tuple(runs),
        entries=entries,
        goal=goal,
        marks=(*apart, *comparability.marks(runs, names)),
        verdict="no verdict: different data or models"
        if apart
        else " ".join(filter(None, (here, on_aws_verdict(on_aws)))),
        on_aws=on_aws,
    )


def _entry(run: RunFolder, name: str, goal: float | None) -> RaceEntry:
    entry = race.entry(run.result, name, goal)
    return replace(entry, complete=entry.complete and not comparability.lost_records(run))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """For other programs: raw figures, seconds, dollars, bytes."""
    return {
        "verdict": comparison.verdict,
        "goal": comparison.goal,
        "runs": [asdict(entry) for entry in comparison.entries],
        "marks": list(comparison.marks),
        "on_aws": {name: known.as_json() for name, known in comparison.on_aws.items()},
    }


def to_csv(comparison: Comparison) -> str:
    """One row per run, raw figures: seconds, dollars, bytes, the metric's values."""
    text = io.StringIO()
    columns = [field.name for field in fields(RaceEntry)]
    projected = [f"on_aws_{figure}_{name}" for figure in ("seconds", "usd") for name in Band._fields]
    writer = csv.DictWriter(text, [*columns, *projected], lineterminator="\n")
    writer.writeheader()
    for entry in comparison.entries:
        row = {column: getattr(entry, column) for column in columns} | {"metric": entry.metric.name}
        known = comparison.on_aws.get(entry.name)
        if known is not None and known.would_run:
            row |= dict(zip(projected, (*known.time, *known.dollars), strict=True))
        writer.writerow(row)
    return text.getvalue()
