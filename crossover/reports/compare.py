"""Several runs side by side: what may be compared, what is only marked, and who won by how much."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.reports import folder, race
from crossover.reports.folder import RunFolder
from crossover.reports.race import Entry, Result

MUST_AGREE = (("data", "dataset"), ("data", "validation"), ("data", "limit"), ("training", "model"))
SHOULD_AGREE = ("workers", "seed")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs with their rows, what makes them differ, and the verdict."""

    runs: tuple[RunFolder, ...]
    entries: tuple[Entry, ...]
    goal: float | None
    marks: tuple[str, ...]
    verdict: str


def read(paths: Sequence[Path], *, mixed: bool = False) -> Comparison:
    """The comparison of the run folders `paths`. Raises DataError (not a run), ConfigError (not comparable)."""
    return of([folder.read(path) for path in paths], mixed=mixed)


def of(runs: Sequence[RunFolder], *, mixed: bool = False) -> Comparison:
    """Compare `runs`. Different data or models are refused; `mixed` lets them stand side by side, without a verdict."""
    if not runs:
        raise ConfigError("compare: no run was given; give the folders of at least one run")
    results = [run.result for run in runs]
    apart = [mark for path in MUST_AGREE if (mark := _differs(runs, *path))]
    if apart and not mixed:
        raise ConfigError(
            f"compare: these runs cannot be compared: {'; '.join(apart)}. With --mixed they stand side by side"
        )
    goal, why = race.goal(results)
    names = _names(runs)
    entries = tuple(race.entry(result, name, goal) for result, name in zip(results, names, strict=True))
    marks = [*apart, *_marks(runs, names)]
    return Comparison(
        runs=tuple(runs),
        entries=entries,
        goal=goal,
        marks=tuple(marks),
        verdict="no verdict: different data or models" if apart else race.verdict(entries, goal, why),
    )


# --- what may be compared ---------------------------------------------------------------------------------------------


def _names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names; where two are the same, with the folder above."""
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
        for run, name in zip(runs, short, strict=True)
    ]


def _differs(runs: Sequence[RunFolder], *path: str) -> str | None:
    """`training.model differs: a in spirt, b in gpu`, or None where all agree."""
    values: dict[str, list[str]] = {}
    for run, name in zip(runs, _names(runs), strict=True):
        value: Any = run.result["experiment"]
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        values.setdefault(str(value), []).append(name)
    if len(values) == 1:
        return None
    return f"{'.'.join(path)} differs: " + ", ".join(f"{value} in {' and '.join(who)}" for value, who in values.items())


def _marks(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Everything a reader must know before believing the comparison."""
    found: list[str] = []
    for run, name in zip(runs, names, strict=True):
        if run.result["outcome"] != "finished":
            found.append(f"{name} failed: {run.result.get('failure') or 'no cause was recorded'}")
        if run.result.get("incomplete"):
            found.append(f"{name} is incomplete: {'; '.join(run.result['incomplete'])}")
        if run.result.get("completeness", "checked") != "checked":
            found.append(f"{name}: completeness {run.result['completeness']}")
    labels = _by(runs, names, lambda r: str(r["label"]))
    if len(labels) > 1:
        found.append(f"labels differ: {_listed(labels)}; local seconds are not AWS seconds")
    training = {key for run in runs for key in run.result["experiment"].get("training", {})} - {"model"}
    paths = [*((key,) for key in SHOULD_AGREE), *(("training", key) for key in sorted(training))]
    found += [mark for path in paths if (mark := _differs(runs, *path))]
    dates = _by(runs, names, lambda r: str(r["cost"].get("prices_as_of")))
    if len(dates) > 1:
        found.append(f"price dates differ: {_listed(dates)}")
    for key in sorted({key for run in runs for key in run.result["versions"]}):
        versions = _by(runs, names, lambda r, key=key: str(r["versions"].get(key, "none")))  # type: ignore[misc]
        if len(versions) > 1:
            found.append(f"version of {key} differs: {_listed(versions)}")
    return found


def _by(runs: Sequence[RunFolder], names: Sequence[str], of: Callable[[Result], str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        grouped.setdefault(of(run.result), []).append(name)
    return grouped


def _listed(groups: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{value} ({' and '.join(names)})" for value, names in groups.items())


def to_csv(comparison: Comparison) -> str:
    """One row per run, raw figures: seconds, dollars, bytes, fractions."""
    text = io.StringIO()
    columns = [field.name for field in fields(Entry)]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for entry in comparison.entries:
        writer.writerow({column: getattr(entry, column) for column in columns})
    return text.getvalue()
