"""Who won: every run's row, the value of the metric at which runs are compared, and the verdict over repeated runs.

Measured seconds, and dollars that follow from them, are raced between settings: runs of one setting differ in their seed alone. Two
settings are paired by seed, and one has won where Student's interval of the ratio excludes 1. A single run has none, so it never wins.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import fmean, stdev
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Metric
from crossover.reports import bands, display
from crossover.reports.folder import Result

SEEDS = 3  # that two settings must have in common: fewer give no interval to speak of
# Student's t by degrees of freedom from SEEDS - 1 on, two-sided: of time at 4 %, of dollars at 1 %, so that both err once in twenty.
OF_TIME = (4.849, 3.482, 2.999, 2.757, 2.612, 2.517, 2.449, 2.398, 2.359, 2.328)
OF_DOLLARS = (9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106)
STARVED = 0.5  # of the seconds of its computing a run of this machine had a core for so many: nine tenths where nothing else runs
UNEVEN = 0.8  # and so much of what the best of those compared had


@dataclass(frozen=True, kw_only=True)
class RaceEntry:
    """One run's row. `goal_*`: at the first epoch that reached the comparison's goal; None where it never did. `setting`: the same for runs
    that differ in their seed alone. `cpu_share`: processor seconds of computing over its seconds; None where nothing was computed.
    """

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
    setting: str
    seed: int
    cpu_share: float | None

    @property
    def display_name(self) -> str:
        """The name, with what a reader must know about the run's state."""
        failed = "" if self.outcome == "finished" else " (failed)"
        return f"{self.name}{failed}{'' if self.complete else ' (incomplete)'}"

    @property
    def to_goal(self) -> list[str]:
        """Time, dollars by the papers' method and in full until the goal, as people read them."""
        return [display.seconds(self.goal_s), display.usd(self.goal_paper_usd), display.usd(self.goal_full_usd)]

    @property
    def competes(self) -> bool:
        """Only a finished, complete run that reached the goal can win."""
        return self.outcome == "finished" and self.complete and self.goal_s is not None


def _values(result: Result) -> list[float]:
    return [epoch["val_metric"] for epoch in result["epochs"] if epoch["val_metric"] is not None]


def goal(results: Sequence[Result], at: float | None = None) -> tuple[float | None, str]:
    """The metric's value at which runs are compared, named before anybody knew who is there first: `at`, or the target in all runs' files.

    None where nobody named one. Raises ConfigError for a share that is none.
    """
    if at is not None:
        if why := display.metric_of(results[0]).not_reachable(at):
            raise ConfigError(f"--at: {why}")
        return at, "--at"
    targets = {run["experiment"].get("training", {}).get("target") for run in results if run["outcome"] == "finished"}
    target = targets.pop() if len(targets) == 1 else None
    return (None, "") if target is None else (float(target), "the target of all runs")


def entry(result: Result, name: str, goal: float | None) -> RaceEntry:
    metric = display.metric_of(result)
    known = [e for e in result["epochs"] if goal is not None and e["val_metric"] is not None]
    first: Mapping[str, Any] = next(
        (e for e in known if goal is not None and metric.reaches(e["val_metric"], goal)), {}
    )
    if not display.trains(result):
        first = _aggregated(result)
    return RaceEntry(
        name=name,
        setting=setting_of(result),
        seed=int(result["experiment"].get("seed", 0)),
        cpu_share=_cpu_share(result),
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


def setting_of(result: Result) -> str:
    """A digest of what runs that may stand for one another have in common: all but the seed, where they ran, and what computed."""
    experiment = {name: value for name, value in result["experiment"].items() if name != "seed"}
    told = [experiment, *(result.get(name) for name in ("label", "where", "versions", "code"))]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _cpu_share(result: Result) -> float | None:
    computing = [stage for stage in result["stages"] if stage["stage"] == "compute" and stage["wall_s"] > 0]
    return computing[0]["cpu_s"] / computing[0]["wall_s"] if computing else None


def _aggregated(result: Result) -> Mapping[str, Any]:
    """An aggregation reaches its goal, the mean, at its end. Nothing where the mean is not what it must be."""
    final, cost = result.get("final") or {}, result["cost"]
    if not final.get("equals_one_process"):
        return {}
    dollars = {name: cost[name] for name in ("paper_method_usd", "full_usd")}
    return {"elapsed_s": final["seconds"], **dollars}


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(entries: Sequence[RaceEntry], goal: float | None, why: str, *, dollars: bool = True) -> str:
    """What won, and by how much, in one line, or why nobody did; without `dollars`, whose prices differ, of time alone."""
    if goal is None and any(entry.epochs for entry in entries):
        return "no verdict on measured seconds: no goal was named beforehand (--at, such as --at 0.85); the curves stand side by side."
    racers = [entry for entry in entries if entry.competes]
    left = {
        e.name: " (never there)" if e.outcome == "finished" and e.complete else "" for e in entries if not e.competes
    }
    if len(racers) < 2:
        return f"no verdict: fewer than two finished, complete runs to compare.{_aside(left)}"
    if len({entry.label for entry in racers}) > 1:
        return f"no verdict: seconds and dollars of different labels are not comparable.{_aside(left)}"
    starving = _starved(racers)
    left |= {
        name: f" (its computing had a core for {display.percent(share)} of its time)"
        for name, share in starving.items()
    }
    settings = _settings([entry for entry in racers if entry.name not in starving])
    few = {name: runs for name, runs in settings.items() if len(runs) < SEEDS}
    if len(settings) - len(few) >= 2:
        settings = {name: runs for name, runs in settings.items() if name not in few}
        left |= {name: f" ({len(runs)} of {SEEDS} seeds)" for name, runs in few.items()}
    seeds = sorted(set.intersection(*map(set, settings.values()))) if settings else []
    if len(settings) < 2 or len(seeds) < SEEDS:
        counts = ", ".join(f"{name}: {' '.join(map(str, sorted(runs)))}" for name, runs in settings.items())
        least = f"no verdict on measured seconds: it takes two settings with {SEEDS} seeds or more in common (--set seed=...)"
        return f"{least}; seeds of {counts or 'none'}.{_aside(left)}"
    at = "At the mean of all gradients" if goal is None else f"At {display.judged(goal, racers[0].metric)} ({why})"

    def draws(of: Callable[[RaceEntry], float | None]) -> dict[str, list[float]]:
        return {name: [_middle(runs[seed], of) for seed in seeds] for name, runs in settings.items()}

    soonest = _won(draws(lambda entry: entry.goal_s), "soonest", "sooner", OF_TIME)
    if not dollars:
        return f"{at}: {soonest}. Dollars are not compared: their prices differ.{_aside(left)}"
    projected = " Dollars are projected from local seconds." if racers[0].cost_label == "projected" else ""
    # Cheaper on AWS is said of paired draws alone, not of local seconds.
    most, more = ("lowest", "less") if projected else ("cheapest", "cheaper")
    cheapest = _won(draws(lambda entry: entry.goal_full_usd), f"{most} in full", more, OF_DOLLARS)
    return f"{at}: {'; '.join(filter(None, (soonest, cheapest)))}.{projected}{_aside(left)}"


def _aside(left: Mapping[str, str]) -> str:
    return f" Left out: {', '.join(f'{name}{why}' for name, why in left.items())}." if left else ""


def _starved(racers: Sequence[RaceEntry]) -> dict[str, float]:
    """Those of this machine whose computing waited for a core, by name, with the share of its time that it had one."""
    shares = {e.name: e.cpu_share for e in racers if e.cpu_share is not None and e.label == "measured-local"}
    least = max(STARVED, UNEVEN * max(shares.values(), default=0.0))
    return {name: share for name, share in shares.items() if share < least}


def _settings(racers: Sequence[RaceEntry]) -> dict[str, dict[int, list[RaceEntry]]]:
    """By what a setting is called, after its first run: its runs by seed."""
    found: dict[str, dict[int, list[RaceEntry]]] = {}
    for entry in racers:
        found.setdefault(entry.setting, {}).setdefault(entry.seed, []).append(entry)
    return {_called([run for runs in by_seed.values() for run in runs]): by_seed for by_seed in found.values()}


def _called(runs: Sequence[RaceEntry]) -> str:
    return runs[0].name if len(runs) == 1 else f"{runs[0].name} and {len(runs) - 1} more"


def _middle(runs: Sequence[RaceEntry], of: Callable[[RaceEntry], float | None]) -> float:
    """The mean logarithm of runs of one seed."""
    return fmean(log(value) if (value := of(run) or 0.0) > 0 else -inf for run in runs)


def _won(draws: Mapping[str, Sequence[float]], what: str, better: str, student: Sequence[float]) -> str:
    """Who is first, and its interval against whoever comes closest; nothing of a figure that is zero somewhere. `draws`: logarithms."""
    if any(value == -inf for values in draws.values() for value in values):
        return ""
    first, *others = sorted(draws, key=lambda name: fmean(draws[name]))
    found = {
        other: interval([b - a for a, b in zip(draws[first], draws[other], strict=True)], student) for other in others
    }
    second = min(found, key=lambda name: found[name][0])
    low, middle, high = (exp(value) for value in found[second])
    ratio = f"{display.times(middle)} ({display.times(low)} to {display.times(high)}, {len(draws[first])} seeds)"
    if low <= 1 or middle < bands.LEVEL:
        return f"{first} and {second} are {bands.OPEN} as {what}: {ratio}"
    return f"{first} is {what}, {ratio} {better} than {second}"


def interval(differences: Sequence[float], student: Sequence[float] = OF_TIME) -> tuple[float, float, float]:
    """Student's, of the mean of so many: from, the mean, to."""
    count, middle = len(differences), fmean(differences)
    half = student[min(count - SEEDS, len(student) - 1)] * stdev(differences) / sqrt(count)
    return middle - half, middle, middle + half
