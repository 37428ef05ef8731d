"""Who won: every run's row, the value of the metric at which runs are compared, the verdict, and where one overtakes another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossover.experiment import Metric
from crossover.reports import display

Result = Mapping[str, Any]
LEVEL = 1.05  # one run each: a smaller margin is noise
LEAD = 0.01  # of the metric's span, 1 for accuracy: a lead within a point changes hands by chance


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
    metric: Metric
    best_metric: float | None
    final_metric: float | None
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


def _values(result: Result) -> list[float]:
    return [epoch["val_metric"] for epoch in result["epochs"] if epoch["val_metric"] is not None]


def goal(results: Sequence[Result]) -> tuple[float | None, str]:
    """The metric's value at which runs are compared: the common target where all reached it, else what all of them reached."""
    finished = [result for result in results if result["outcome"] == "finished"]
    best = [found for run in finished if (found := display.metric_of(run).best(_values(run))) is not None]
    if not best:
        return None, ""
    metric = display.metric_of(finished[0])
    common = metric.worst(best)
    assert common is not None
    targets = {result["experiment"].get("training", {}).get("target") for result in results}
    target = targets.pop() if len(targets) == 1 else None
    if target is not None and metric.reaches(common, target):
        return float(target), "the target of all runs"
    return common, f"the {metric.words} that all runs reached"


def entry(result: Result, name: str, goal: float | None) -> Entry:
    metric = display.metric_of(result)
    known = [e for e in result["epochs"] if goal is not None and e["val_metric"] is not None]
    first: Mapping[str, Any] = next(
        (e for e in known if goal is not None and metric.reaches(e["val_metric"], goal)), {}
    )
    if not display.trains(result):
        first = _aggregated(result)
    return Entry(
        name=name,
        architecture=result["architecture"],
        label=result["label"],
        cost_label=result["cost"]["label"],
        outcome=result["outcome"],
        complete=not result.get("incomplete"),
        workers=result["experiment"]["workers"],
        epochs=display.epochs_of(result),
        metric=metric,
        best_metric=metric.best(_values(result)),
        final_metric=(result.get("final") or {}).get("val_metric"),
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


def _aggregated(result: Result) -> Mapping[str, Any]:
    """An aggregation reaches its goal, the mean, at its end. Nothing where the mean is not what it must be."""
    final, cost = result.get("final") or {}, result["cost"]
    if not final.get("equals_one_process"):
        return {}
    dollars = {name: cost[name] for name in ("paper_method_usd", "full_usd")}
    return {"elapsed_s": final["seconds"], **dollars}


def verdict(entries: Sequence[Entry], goal: float | None, why: str, *, dollars: bool = True) -> str:
    """What won, and by how much, in one line; without `dollars`, whose prices differ, of time alone."""
    racers = [entry for entry in entries if entry.competes]
    left_out = [entry.name for entry in entries if not entry.competes]
    aside = f" Left out: {', '.join(left_out)}." if left_out else ""
    if len(racers) < 2:
        return f"no verdict: fewer than two finished, complete runs to compare.{aside}"
    if len({entry.label for entry in racers}) > 1:
        return f"no verdict: seconds and dollars of different labels are not comparable.{aside}"
    at = "At the mean of all gradients" if goal is None else f"At {display.judged(goal, racers[0].metric)} ({why})"
    soonest = _won(racers, lambda e: e.goal_s, "soonest", "sooner", display.seconds)
    if not dollars:
        return f"{at}: {soonest}. Dollars are not compared: their prices differ.{aside}"
    projected = " Dollars are projected from local seconds." if racers[0].cost_label == "projected" else ""
    # Cheaper on AWS is said of paired draws alone, not of one run's local seconds.
    most, more = ("lowest", "less") if projected else ("cheapest", "cheaper")
    parts = [
        soonest,
        _won(racers, lambda e: e.goal_full_usd, f"{most} in full", more, display.usd),
        _won(racers, lambda e: e.goal_paper_usd, f"{most} by the papers' method", more, display.usd),
    ]
    return f"{at}: {'; '.join(parts)}.{projected}{aside}"


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


def lead_changes(curves: Mapping[str, Sequence[tuple[float, float]]], metric: Metric) -> list[tuple[float, str]]:
    """Where one run overtakes another: (x, name) whenever a run's metric at x beats the leader's by more than `margin`.

    `curves`: (x, value of the metric) by run, x ascending: seconds or dollars. Between evaluations the best value so far is taken as moving
    straight; a run takes part from its first evaluation on.
    """
    changes: list[tuple[float, str]] = []
    lead, sign = margin(curves, metric), 1 if metric.rises else -1
    upward = {name: [(x, sign * y) for x, y in points] for name, points in curves.items()}
    for x in sorted({x for points in upward.values() for x, _ in points}):
        now = {name: y for name, points in upward.items() if (y := _best_at(points, x)) is not None}
        first = max(now, key=lambda name: now[name])
        leader = changes[-1][1] if changes else None
        if leader is None or (first != leader and now[first] > now[leader] + lead):
            changes.append((x, first))
    return changes


def margin(curves: Mapping[str, Sequence[tuple[float, float]]], metric: Metric) -> float:
    """By how much a run must lead: a point of accuracy, or the same share of what another metric ran through."""
    values = [y for points in curves.values() for _, y in points]
    span = 1.0 if metric.is_share or not values else max(values) - min(values)
    return LEAD * span


def _best_at(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """The highest value until `x`, rising straight between points; None before the first."""
    best: float | None = None
    before = 0.0
    for at, y in points:
        if at > x:
            if best is None or y <= best:
                return best
            return best + (y - best) * (x - before) / (at - before)
        best, before = y if best is None else max(y, best), at
    return best
