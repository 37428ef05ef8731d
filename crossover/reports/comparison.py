"""Comparison of several runs: what may be compared, which run reaches the goal first, and the verdict."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Experiment, Metric
from crossover.reports import display, folder
from crossover.reports.display import Band
from crossover.reports.folder import Result, RunFolder
from crossover.reports.on_aws import OnAws, describe_winners

# --- race -------------------------------------------------------------------------------------------------------------

SEEDS = 3  # that two settings must have in common: fewer give no interval to speak of
# Student's t by degrees of freedom from SEEDS - 1 on, two-sided: of time at 4 %, of dollars at 1 %, so that both err once in twenty.
OF_TIME = (4.849, 3.482, 2.999, 2.757, 2.612, 2.517, 2.449, 2.398, 2.359, 2.328)
OF_DOLLARS = (9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106)
STARVED = 0.5  # of the seconds of its computing a run of this machine had a core for so many: nine tenths where nothing else runs
UNEVEN = 0.8  # and so much of what the best of those compared had


@dataclass(frozen=True, kw_only=True)
class RaceEntry:
    """One run's row in a comparison. `name`, `architecture`, `workers`, `seed`: of the run; `outcome`: finished or failed; `epochs`: number
    of finished epochs; `duration_s`: of the whole run; `paper_method_usd`, `full_usd`: its cost by the papers' formula and the total AWS
    bill; `label`, `cost_label`: origin of its figures and of its dollars, such as measured-local; `complete`: whether no record is missing;
    `best_metric`, `final_metric`: of the validation, None if nothing was evaluated; `moved_bytes`, `requests`: of all channels;
    `failed_attempts`: failed and superseded invocations; `goal_*`: seconds and dollars until the first epoch whose metric reached the
    comparison's goal, None if no epoch did; `setting`: digest that is equal for runs that differ only in their seed; `cpu_share`: processor
    seconds of computing divided by its wall seconds, None if nothing was computed.
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
        """Name of the run, marked if the run failed or is incomplete."""
        failed = "" if self.outcome == "finished" else " (failed)"
        return f"{self.name}{failed}{'' if self.complete else ' (incomplete)'}"

    @property
    def to_goal(self) -> list[str]:
        """Three texts: the run's time, dollars by the papers' method, and total AWS bill until it reached the goal; dashes if it did
        not.
        """
        return [display.seconds(self.goal_s), display.usd(self.goal_paper_usd), display.usd(self.goal_full_usd)]

    @property
    def competes(self) -> bool:
        """True if the run can win: a finished, complete run that reached the goal."""
        return self.outcome == "finished" and self.complete and self.goal_s is not None


def _metric_values(result: Result) -> list[float]:
    """Return the values of the run's validation metric, one for each evaluated epoch, in order. `result`: content of result.json."""
    return [epoch["val_metric"] for epoch in result["epochs"] if epoch["val_metric"] is not None]


def race_goal(results: Sequence[Result], at: float | None = None) -> tuple[float | None, str]:
    """Return (value, origin): the value of the metric that compared runs must reach, and where it comes from, in words. It is `at`, or else
    the target that the experiments of all finished runs share; (None, "") if there is neither. Raises ConfigError if the first run's metric
    cannot have the value `at`.
    """
    if at is not None:
        if why := display.metric_of(results[0]).explain_unreachable(at):
            raise ConfigError(f"--at: {why}")
        return at, "--at"
    targets = {run["experiment"].get("training", {}).get("target") for run in results if run["outcome"] == "finished"}
    target = targets.pop() if len(targets) == 1 else None
    return (None, "") if target is None else (float(target), "the runs' common target")


def race_entry(result: Result, name: str, goal: float | None) -> RaceEntry:
    """Return a run's row in a comparison. `result`: content of its result.json; `name`: the run's name in the comparison; `goal`: value of
    the metric to reach, None for no goal, so that the fields `goal_*` are None.
    """
    metric = display.metric_of(result)
    known = [e for e in result["epochs"] if goal is not None and e["val_metric"] is not None]
    first: Mapping[str, Any] = next(
        (e for e in known if goal is not None and metric.reaches(e["val_metric"], goal)), {}
    )
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
        best_metric=metric.best(_metric_values(result)),
        final_metric=(result.get("final") or {}).get("val_metric"),
        duration_s=result["duration_s"],
        paper_method_usd=result["cost"]["paper_method_usd"],
        full_usd=result["cost"]["full_usd"],
        moved_bytes=display.sum_moved_bytes(result["traffic"]),
        requests=sum(channel["requests"] for channel in result["traffic"].values()),
        invocations=result["invocations"]["count"],
        failed_attempts=result["invocations"]["error"] + result["invocations"]["stale"],
        goal_s=first.get("elapsed_s"),
        goal_paper_usd=first.get("paper_method_usd"),
        goal_full_usd=first.get("full_usd"),
    )


def setting_of(result: Result) -> str:
    """Return a digest of 12 letters of all that makes up a run except its seed: experiment, label, place, versions and code. Runs with the
    same digest are repetitions with different seeds. `result`: content of result.json.
    """
    experiment = {name: value for name, value in result["experiment"].items() if name != "seed"}
    told = [experiment, *(result.get(name) for name in ("label", "where", "versions", "code"))]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _cpu_share(result: Result) -> float | None:
    """Return the processor seconds of a run's computing divided by its wall seconds, None if nothing was computed. A low share means that
    the run waited for a CPU core. `result`: content of result.json.
    """
    computing = [stage for stage in result["stages"] if stage["stage"] == "compute" and stage["wall_s"] > 0]
    return computing[0]["cpu_s"] / computing[0]["wall_s"] if computing else None


# --- the verdict ------------------------------------------------------------------------------------------------------


def race_verdict(entries: Sequence[RaceEntry], goal: float | None, why: str, *, dollars: bool = True) -> str:
    """Return the verdict of a comparison as text: which setting reached the goal first and which at the lowest cost, with 95 % confidence
    intervals over common seeds, or that it is too close to call; or why there is no winner; and which runs were left out. A winner needs
    two settings with at least SEEDS common seeds. `entries`: rows of the compared runs; `goal`: value of the metric to reach; `why`: origin
    of the goal, in words; `dollars`: whether dollars may be compared too.
    """
    if goal is None:
        return "no winner by measured time: the runs have no common target and --at is not given (such as --at 0.85)."
    racers = [entry for entry in entries if entry.competes]
    left = {
        e.name: " (target not reached)" if e.outcome == "finished" and e.complete else ""
        for e in entries
        if not e.competes
    }
    if len(racers) < 2:
        return f"no winner: fewer than two finished and complete runs.{_left_out_sentence(left)}"
    if len({entry.label for entry in racers}) > 1:
        return f"no winner: seconds and dollars with different labels are not comparable.{_left_out_sentence(left)}"
    starving = _find_starved(racers)
    left |= {
        name: f" (had a core for only {display.percent(share)} of its computing time)"
        for name, share in starving.items()
    }
    settings = _raced_settings([entry for entry in racers if entry.name not in starving])
    few = {name: runs for name, runs in settings.items() if len(runs) < SEEDS}
    if len(settings) - len(few) >= 2:
        settings = {name: runs for name, runs in settings.items() if name not in few}
        left |= {name: f" ({len(runs)} of {SEEDS} seeds)" for name, runs in few.items()}
    seeds = sorted(set.intersection(*map(set, settings.values()))) if settings else []
    if len(settings) < 2 or len(seeds) < SEEDS:
        counts = ", ".join(f"{name}: {' '.join(map(str, sorted(runs)))}" for name, runs in settings.items())
        least = (
            f"no winner by measured time: at least two settings with {SEEDS} common seeds are needed (--set seed=...)"
        )
        return f"{least}; seeds of {counts or 'none'}.{_left_out_sentence(left)}"
    at = f"At {display.format_metric(goal, racers[0].metric)} ({why})"

    def draws(of: Callable[[RaceEntry], float | None]) -> dict[str, list[float]]:
        """Return {setting: values}: for each common seed, in ascending order, the mean logarithm of a figure over the setting's runs. `of`:
        returns the figure of a run.
        """
        return {name: [_mean_log(runs[seed], of) for seed in seeds] for name, runs in settings.items()}

    soonest = _compare_settings(draws(lambda entry: entry.goal_s), "soonest", "sooner", OF_TIME)
    if not dollars:
        return f"{at}: {soonest}. Dollars are not compared, because their prices differ.{_left_out_sentence(left)}"
    projected = " Dollars: this machine's seconds at AWS's prices." if racers[0].cost_label == "projected" else ""
    # Cheaper on AWS is said of paired draws alone, not of local seconds.
    most, more = ("lowest", "less") if projected else ("cheapest", "cheaper")
    cheapest = _compare_settings(
        draws(lambda entry: entry.goal_full_usd), f"{most} by total AWS bill", more, OF_DOLLARS
    )
    return f"{at}: {'; '.join(filter(None, (soonest, cheapest)))}.{projected}{_left_out_sentence(left)}"


def _left_out_sentence(left: Mapping[str, str]) -> str:
    """Return a sentence that names the runs left out; "" if there are none. `left`: by run the reason as text in brackets, or ""."""
    return f" Left out: {', '.join(f'{name}{why}' for name, why in left.items())}." if left else ""


def _find_starved(racers: Sequence[RaceEntry]) -> dict[str, float]:
    """Return {run: share} for those of the runs `racers` that were measured on this machine and often waited for a CPU core: the share of
    its computing time in which the run had one, if it is below STARVED, or below UNEVEN times that of the best of the compared runs.
    """
    shares = {e.name: e.cpu_share for e in racers if e.cpu_share is not None and e.label == "measured-local"}
    least = max(STARVED, UNEVEN * max(shares.values(), default=0.0))
    return {name: share for name, share in shares.items() if share < least}


def _raced_settings(racers: Sequence[RaceEntry]) -> dict[str, dict[int, list[RaceEntry]]]:
    """Return {setting: {seed: runs}}. A setting, that is all runs that differ only in their seed, is named after its first run."""
    found: dict[str, dict[int, list[RaceEntry]]] = {}
    for entry in racers:
        found.setdefault(entry.setting, {}).setdefault(entry.seed, []).append(entry)
    return {_name_of_several([run for runs in by_seed.values() for run in runs]): by_seed for by_seed in found.values()}


def _name_of_several(runs: Sequence[RaceEntry]) -> str:
    """Return the name of the first run, followed by `and N more` if there are several."""
    return runs[0].name if len(runs) == 1 else f"{runs[0].name} and {len(runs) - 1} more"


def _mean_log(runs: Sequence[RaceEntry], of: Callable[[RaceEntry], float | None]) -> float:
    """Return the mean natural logarithm of a figure over `runs`, minus infinity if the figure of one is zero or missing. `of`: returns the
    figure of a run.
    """
    return fmean(log(value) if (value := of(run) or 0.0) > 0 else -inf for run in runs)


def _compare_settings(draws: Mapping[str, Sequence[float]], what: str, better: str, student: Sequence[float]) -> str:
    """Return in words which setting has the smallest mean, and by what factor another one is larger, with its confidence interval: the one
    whose interval begins lowest. Or return that these two are too close to call; "" if a figure is zero.

    `draws`: logarithms of a figure by setting, paired by seed; `what`, `better`: words such as soonest and sooner; `student`: critical
    values of Student's t, as for `interval`.
    """
    if any(value == -inf for values in draws.values() for value in values):
        return ""
    first, *others = sorted(draws, key=lambda name: fmean(draws[name]))
    found = {
        other: interval([b - a for a, b in zip(draws[first], draws[other], strict=True)], student) for other in others
    }
    second = min(found, key=lambda name: found[name][0])
    low, middle, high = (exp(value) for value in found[second])
    ratio = f"{display.times(middle)} ({display.times(low)} to {display.times(high)}, {len(draws[first])} seeds)"
    if low <= 1 or middle < display.LEVEL:
        return f"{first} and {second} are {display.OPEN} as {what}: {ratio}"
    return f"{first} is {what}, {ratio} {better} than {second}"


def interval(differences: Sequence[float], student: Sequence[float] = OF_TIME) -> tuple[float, float, float]:
    """Return (lower end, mean, upper end) of Student's confidence interval for the mean.

    `differences`: SEEDS or more values. `student`: critical values of Student's t for SEEDS, SEEDS + 1, ... values, which decide the
    confidence level; the last one is used for more.
    """
    count, middle = len(differences), fmean(differences)
    half = student[min(count - SEEDS, len(student) - 1)] * stdev(differences) / sqrt(count)
    return middle - half, middle, middle + half


# --- comparability ----------------------------------------------------------------------------------------------------
# Which runs may stand side by side: what forbids it, and what a reader must know before believing it.

MUST_AGREE = (
    ("experiment", "data", "dataset"),
    ("experiment", "data", "validation"),
    ("experiment", "data", "limit"),
    ("experiment", "training", "model"),
    ("experiment", "training", "metric", "name"),
    # What was staged: a data set of the same name may still be another one.
    ("data", "classes"),
    ("data", "train_samples"),
    ("data", "validation_samples"),
)
MARKED = ("workers", "recipe")  # and every field of these sections:
MARKED_SECTIONS = ("training", "data", "aggregation", "faults", "exchange")
COMMON = {each.name for each in fields(Experiment)}  # what is not among them is an architecture's own section
ELSEWHERE = {
    ("training", "model"),
    ("training", "metric"),
    ("data", "dataset"),
    ("data", "validation"),
    ("data", "limit"),
    ("data", "directory"),
}


def run_names(runs: Sequence[RunFolder]) -> list[str]:
    """Return a name for each run, in their order: its folder's name, with the parent folder's name in front if several runs have that
    name.
    """
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
        for run, name in zip(runs, short, strict=True)
    ]


def list_mismatches(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Return a sentence for each difference in data, model or metric because of which the runs must not be compared; empty if there is
    none. `names`: the runs' names, in their order.
    """
    found = [mark for path in MUST_AGREE if (mark := _describe_difference(runs, names, *path))]
    rises = _group_names(
        runs, names, lambda r: str(display.metric_of(r).higher_wins)
    )  # said, or implied by the metric's name
    return [*found, *([f"training.metric.higher_is_better differs: {_format_groups(rises)}"] if len(rises) > 1 else [])]


def same_prices(results: Sequence[Result]) -> bool:
    """Return True if the dollars of all runs are based on prices of one date and region."""
    return len({(result["cost"].get("prices_as_of"), result["cost"].get("region")) for result in results}) == 1


def list_caveats(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Return the caveats of a comparison, one sentence each: runs that failed or are incomplete, and differences in label, seeds, settings,
    prices or versions. `names`: the runs' names, in their order.
    """
    found = [mark for run, name in zip(runs, names, strict=True) for mark in _list_faults(run, name)]
    labels = _group_names(runs, names, lambda r: str(r["label"]))
    if len(labels) > 1:
        found.append(f"labels differ: {_format_groups(labels)}; local seconds are not AWS seconds")
    found += [*_list_seed_differences(runs, names), *_list_setting_differences(runs, names)]
    for what, key in (("price dates", "prices_as_of"), ("prices' regions", "region")):
        groups = _group_names(runs, names, lambda r, key=key: str(r["cost"].get(key)))  # type: ignore[misc]
        if len(groups) > 1:
            found.append(f"{what} differ: {_format_groups(groups)}; dollars are not compared")
    for key in sorted({key for run in runs for key in run.result["versions"]}):
        versions = _group_names(runs, names, lambda r, key=key: str(r["versions"].get(key, "none")))  # type: ignore[misc]
        if len(versions) > 1:
            found.append(f"version of {key} differs: {_format_groups(versions)}")
    return found


def _list_faults(run: RunFolder, name: str) -> list[str]:
    """Return a sentence for each thing that is wrong with a run called `name`: it failed, is incomplete, was not checked, or
    lost records.
    """
    result, found = run.result, []
    if result["outcome"] != "finished":
        found.append(f"{name} failed: {result.get('failure') or 'no cause was recorded'}")
    if result.get("incomplete"):
        found.append(f"{name} is incomplete: {'; '.join(result['incomplete'])}")
    if result.get("completeness", "checked") != "checked":
        found.append(f"{name}: completeness {result['completeness']}")
    if lost := lost_records(run):
        found.append(f"{name} is incomplete: {lost}")
    return found


def lost_records(run: RunFolder) -> str:
    """Return in words how a run's metrics.jsonl differs from the records that its result.json was made from: their number, or records of
    several runs; "" if it does not.
    """
    counted, there = int(run.result["invocations"]["count"]), len(run.records)
    if counted != there:
        return f"metrics.jsonl has {there} records, but result.json was computed from {counted}"
    ids = {record["run"] for record in run.records if "run" in record}
    return f"metrics.jsonl contains records of {len(ids)} runs" if len(ids) > 1 else ""


def _list_seed_differences(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Return a sentence on the runs' seeds, in a list, if not all settings were run with the same set of seeds; otherwise an empty list.
    `names`: the runs' names, in their order.
    """
    by_setting: dict[str, set[int]] = {}
    for run in runs:
        by_setting.setdefault(setting_of(run.result), set()).add(run.result["experiment"].get("seed", 0))
    mark = _describe_difference(runs, names, "experiment", "seed")
    return [mark] if mark and len(set(map(frozenset, by_setting.values()))) > 1 else []


def _list_setting_differences(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Return a sentence for each field of the experiments in which the runs differ, of those fields that may change results: MARKED, those
    of MARKED_SECTIONS, and, if all runs have one architecture, its own section. `names`: the runs' names, in their order.
    """
    paths: list[tuple[str, ...]] = [(key,) for key in MARKED]
    one = {run.result["architecture"] for run in runs}
    own = {key for run in runs for key in run.result["experiment"].keys() - COMMON} if len(one) == 1 else set()
    for section in (*MARKED_SECTIONS, *sorted(own)):
        keys = {key for run in runs for key in run.result["experiment"].get(section, {})}
        paths += [(section, key) for key in sorted(keys) if (section, key) not in ELSEWHERE]
    return [mark for path in paths if (mark := _describe_difference(runs, names, "experiment", *path))]


def _describe_difference(runs: Sequence[RunFolder], names: Sequence[str], *path: str) -> str | None:
    """Return a sentence such as `training.model differs: a in spirt, b in gpu`, None if all runs have the same value. `names`: the runs'
    names; `path`: keys that lead to the value in result.json.
    """

    def at_path(value: Any, key: str) -> Any:
        """Take one step of a path: return the value under `key`, None if `value` is no mapping or lacks the key."""
        return value.get(key) if isinstance(value, Mapping) else None

    values = _group_names(runs, names, lambda result: str(reduce(at_path, path, result)))
    if len(values) == 1:
        return None
    dotted = ".".join(path).removeprefix("experiment.")
    return f"{dotted} differs: " + ", ".join(f"{value} in {' and '.join(who)}" for value, who in values.items())


def _group_names(runs: Sequence[RunFolder], names: Sequence[str], of: Callable[[Result], str]) -> dict[str, list[str]]:
    """Return {value: names of the runs that have it}. `names`: the runs' names; `of`: returns the value for the content of a run's
    result.json.
    """
    grouped: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        grouped.setdefault(of(run.result), []).append(name)
    return grouped


def _format_groups(groups: Mapping[str, Sequence[str]]) -> str:
    """Return groups of runs as text: `a (run1 and run2), b (run3)`. `groups`: names of the runs by value."""
    return ", ".join(f"{value} ({' and '.join(names)})" for value, names in groups.items())


# --- comparison -------------------------------------------------------------------------------------------------------
# Several runs side by side: what may be compared, what is only marked, and who won by how much.


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several compared runs. `entries`: a row for each, in the order of `runs`; `goal`: value of the metric to reach, or None; `marks`:
    caveats, a sentence each; `verdict`: who won, in words; `on_aws`: projections on AWS by run name, of the runs that could be simulated.
    """

    runs: tuple[RunFolder, ...]
    entries: tuple[RaceEntry, ...]
    goal: float | None
    marks: tuple[str, ...]
    verdict: str
    on_aws: Mapping[str, OnAws]  # by name; only runs that could be simulated

    @property
    def to_goal(self) -> str:
        """The goal as text for column heads, such as `to 85.0 %`; "" if there is no goal."""
        return "" if self.goal is None else f"to {display.format_metric(self.goal, self.metric)}"

    def describe(self, entry: RaceEntry) -> str:
        """Return in words what the compared run `entry` is: its architecture, its number of workers, and its model if the models differ."""
        models = {
            each.name: str(run.result["experiment"]["training"]["model"])
            for run, each in zip(self.runs, self.entries, strict=True)
        }
        model = [models[entry.name]] if len(set(models.values())) > 1 else []
        return ", ".join((entry.architecture, display.count(entry.workers, "worker"), *model))

    @property
    def metric(self) -> Metric:
        """The metric of the first run, by which all runs are compared."""
        return self.entries[0].metric


Simulate = Callable[[Sequence[Mapping[str, Any]]], Sequence[OnAws | None]]


def compare_folders(
    paths: Sequence[Path], *, at: float | None = None, mixed: bool = False, simulated: Simulate | None = None
) -> Comparison:
    """Read the runs in the folders `paths` and return their comparison; `at`, `mixed` and `simulated` are those of `compare_runs`. Raises
    DataError for a folder that holds no run, ConfigError if the runs are not comparable.
    """
    return compare_runs([folder.read(path) for path in paths], at=at, mixed=mixed, simulated=simulated)


def compare_runs(
    runs: Sequence[RunFolder], *, at: float | None = None, mixed: bool = False, simulated: Simulate | None = None
) -> Comparison:
    """Return the comparison of `runs`. If their prices differ in date or region, the verdict ignores dollars.

    `at`: value of the metric that a run must reach, by default the runs' common target; `mixed`: accept runs with different data or models,
    which get no verdict; `simulated`: function that takes contents of result.json and returns for each run its projection on AWS, with the
    same random draws for all, or None. Raises ConfigError for no run, the same run twice, different data or models (unless `mixed`), or a
    goal that the metric cannot reach.
    """
    if not runs:
        raise ConfigError("compare: no run given; give the folder of at least one run")
    results, names = [run.result for run in runs], run_names(runs)
    if len(twice := {run.path.resolve() for run in runs}) < len(runs):
        raise ConfigError(f"compare: {len(runs)} folders contain only {len(twice)} different runs; give each run once")
    apart = list_mismatches(runs, names)
    if apart and not mixed:
        raise ConfigError(
            f"compare: these runs cannot be compared: {'; '.join(apart)}. --mixed shows them side by side without naming a winner"
        )
    goal, why = race_goal(results, at)
    entries = tuple(_build_entry(run, name, goal) for run, name in zip(runs, names, strict=True))
    said = simulated(results) if simulated else [None] * len(runs)
    on_aws = {name: each for name, each in zip(names, said, strict=True) if each is not None}
    here = race_verdict(entries, goal, why, dollars=same_prices(results))
    return Comparison(
        runs=tuple(runs),
        entries=entries,
        goal=goal,
        marks=(*apart, *list_caveats(runs, names)),
        verdict="no winner: data or models differ"
        if apart
        else " ".join(filter(None, (here, describe_winners(on_aws)))),
        on_aws=on_aws,
    )


def _build_entry(run: RunFolder, name: str, goal: float | None) -> RaceEntry:
    """Return the run's row in the comparison, marked as incomplete if the run lost records. `name`: the run's name; `goal`: value of the
    metric to reach, or None.
    """
    entry = race_entry(run.result, name, goal)
    return replace(entry, complete=entry.complete and not lost_records(run))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a dictionary for --json: {"verdict", "goal", "runs", "marks" (caveats), "on_aws"}. `runs` has the fields of
    each entry, `on_aws` the projections by run name; seconds, dollars and bytes are plain numbers.
    """
    return {
        "verdict": comparison.verdict,
        "goal": comparison.goal,
        "runs": [asdict(entry) for entry in comparison.entries],
        "marks": list(comparison.marks),
        "on_aws": {name: known.as_json() for name, known in comparison.on_aws.items()},
    }


def to_csv(comparison: Comparison) -> str:
    """Return the comparison as CSV text with a head and one row for each run: seconds, dollars, bytes and values of the metric as plain
    numbers. Projected percentiles are empty for runs without a projection.
    """
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
        writer.writerow(display.escape_row(row))
    return text.getvalue()
