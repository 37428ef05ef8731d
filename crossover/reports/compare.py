"""Several runs side by side: what may be compared, what is only marked, and who won by how much."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.reports import display, folder
from crossover.reports.folder import RunFolder

Result = Mapping[str, Any]
MUST_AGREE = (("data", "dataset"), ("data", "validation"), ("data", "limit"), ("training", "model"))
LEVEL = 1.05  # one run each: a smaller margin is noise
LEAD = 0.01  # accuracy; a lead within a point changes hands by chance
SHOULD_AGREE = ("workers", "seed")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run's row. `goal_*`: at the first epoch that reached the comparison's goal; None where it never did."""

    name: str
    architecture: str
    label: str
    cost_label: str
    outcome: str
    complete: bool
    workers: int
    epochs: int
    best_accuracy: float | None
    final_accuracy: float | None
    duration_s: float
    paper_method_usd: float
    full_usd: float
    moved_bytes: int
    requests: int
    invocations: int
    failed_attempts: int
    goal_s: float | None = None
    goal_paper_usd: float | None = None
    goal_full_usd: float | None = None

    @property
    def display_name(self) -> str:
        """The name, with what a reader must know about the run's state."""
        failed = "" if self.outcome == "finished" else " (failed)"
        return f"{self.name}{failed}{'' if self.complete else ' (incomplete)'}"

    @property
    def competes(self) -> bool:
        """Only a finished, complete run that reached the goal can win."""
        return self.outcome == "finished" and self.complete and self.goal_s is not None


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
    goal, why = _goal(results)
    names = _names(runs)
    entries = tuple(_entry(result, name, goal) for result, name in zip(results, names, strict=True))
    marks = [*apart, *_marks(runs, names)]
    return Comparison(
        runs=tuple(runs),
        entries=entries,
        goal=goal,
        marks=tuple(marks),
        verdict="no verdict: different data or models" if apart else _verdict(entries, goal, why),
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


# --- rows and verdict -------------------------------------------------------------------------------------------------


def _accuracies(result: Result) -> list[float]:
    return [epoch["val_accuracy"] for epoch in result["epochs"] if epoch["val_accuracy"] is not None]


def _goal(results: Sequence[Result]) -> tuple[float | None, str]:
    """The accuracy at which runs are compared: the common target where all reached it, else what all of them
    reached.
    """
    best = [max(found) for result in results if result["outcome"] == "finished" and (found := _accuracies(result))]
    if not best:
        return None, ""
    targets = {result["experiment"].get("training", {}).get("target_accuracy") for result in results}
    target = targets.pop() if len(targets) == 1 else None
    if target is not None and target <= min(best):
        return float(target), "the target of all runs"
    return min(best), "the accuracy that all runs reached"


def _entry(result: Result, name: str, goal: float | None) -> Entry:
    accuracies = _accuracies(result)
    reached = (e for e in result["epochs"] if goal is not None and (e["val_accuracy"] or 0.0) >= goal)
    first = next(reached, None) or {}
    return Entry(
        name=name,
        architecture=result["architecture"],
        label=result["label"],
        cost_label=result["cost"]["label"],
        outcome=result["outcome"],
        complete=not result.get("incomplete"),
        workers=result["experiment"]["workers"],
        epochs=len(result["epochs"]),
        best_accuracy=max(accuracies, default=None),
        final_accuracy=(result.get("final") or {}).get("val_accuracy"),
        duration_s=result["duration_s"],
        paper_method_usd=result["cost"]["paper_method_usd"],
        full_usd=result["cost"]["full_usd"],
        moved_bytes=display.moved(result["traffic"]),
        requests=sum(channel["requests"] for channel in result["traffic"].values()),
        invocations=result["invocations"]["count"],
        failed_attempts=result["invocations"]["error"] + result["invocations"]["stale"],
        goal_s=first.get("elapsed_s"),
        goal_paper_usd=first.get("paper_method_usd"),
        goal_full_usd=first.get("full_usd"),
    )


def _verdict(entries: Sequence[Entry], goal: float | None, why: str) -> str:
    """What won, and by how much, in one line."""
    racers = [entry for entry in entries if entry.competes]
    left_out = [entry.name for entry in entries if not entry.competes]
    aside = f" Left out: {', '.join(left_out)}." if left_out else ""
    if len(racers) < 2 or goal is None:
        return f"no verdict: fewer than two finished, complete runs to compare.{aside}"
    if len({entry.label for entry in racers}) > 1:
        return f"no verdict: seconds and dollars of different labels are not comparable.{aside}"
    projected = " Dollars are projected from local seconds." if racers[0].cost_label == "projected" else ""
    parts = [
        _won(racers, lambda e: e.goal_s, "soonest", "sooner", display.seconds),
        _won(racers, lambda e: e.goal_full_usd, "cheapest in full", "cheaper", display.usd),
        _won(racers, lambda e: e.goal_paper_usd, "cheapest by the papers' method", "cheaper", display.usd),
    ]
    return f"At {display.percent(goal)} ({why}): {'; '.join(parts)}.{projected}{aside}"


def _won(
    racers: Sequence[Entry],
    of: Callable[[Entry], float | None],
    what: str,
    better: str,
    shown: Callable[[float | None], str],
) -> str:
    first, second = sorted(racers, key=lambda entry: of(entry) or 0.0)[:2]
    mine, other = of(first) or 0.0, of(second) or 0.0
    if other <= mine * LEVEL:
        return f"{first.name} ({shown(mine)}) and {second.name} ({shown(other)}) are about level as {what}"
    margin = f"{display.times(other / mine)} {better} than" if mine else "before"
    return f"{first.name} is {what} with {shown(mine)}, {margin} {second.name} ({shown(other)})"


def lead_changes(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, margin: float = LEAD
) -> list[tuple[float, str]]:
    """Where one run overtakes another: (x, name) whenever a run's accuracy at x beats the leader's by `margin`.

    `curves`: (x, accuracy) by run, x ascending: seconds or dollars. Between evaluations the best accuracy so far is
    taken as rising straight; a run takes part from its first evaluation on.
    """
    changes: list[tuple[float, str]] = []
    for x in sorted({x for points in curves.values() for x, _ in points}):
        now = {name: y for name, points in curves.items() if (y := _best_at(points, x)) is not None}
        first = max(now, key=lambda name: now[name])
        leader = changes[-1][1] if changes else None
        if leader is None or (first != leader and now[first] > now[leader] + margin):
            changes.append((x, first))
    return changes


def _best_at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The best accuracy until `x`, rising straight between points; None before the first."""
    best: float | None = None
    before = 0.0
    for at, y in points:
        if at > x:
            if best is None or y <= best:
                return best
            return best + (y - best) * (x - before) / (at - before)
        best, before = max(y, best or 0.0), at
    return best


def to_csv(comparison: Comparison) -> str:
    """One row per run, raw figures: seconds, dollars, bytes, fractions."""
    text = io.StringIO()
    columns = [field.name for field in fields(Entry)]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for entry in comparison.entries:
        writer.writerow({column: getattr(entry, column) for column in columns})
    return text.getvalue()
