"""Which runs may stand side by side: what forbids it, and what a reader must know before believing it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import reduce
from typing import Any

from crossover.experiment import Experiment
from crossover.reports import display
from crossover.reports.folder import Result, RunFolder
from crossover.reports.race import setting_of

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
    # What was averaged, where nothing is trained.
    ("data", "gradient_bytes"),
    ("data", "clients"),
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


def names(runs: Sequence[RunFolder]) -> list[str]:
    """Folder names; where two are the same, with the folder above."""
    short = [run.name for run in runs]
    return [
        name if short.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
        for run, name in zip(runs, short, strict=True)
    ]


def apart(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Why these runs must not be compared: one sentence for each difference of data or model."""
    found = [mark for path in MUST_AGREE if (mark := _differs(runs, names, *path))]
    rises = _by(runs, names, lambda r: str(display.metric_of(r).rises))  # said, or implied by the metric's name
    return [*found, *([f"training.metric.higher_is_better differs: {_listed(rises)}"] if len(rises) > 1 else [])]


def same_prices(results: Sequence[Result]) -> bool:
    """Whether all dollars are of one date and region."""
    return len({(result["cost"].get("prices_as_of"), result["cost"].get("region")) for result in results}) == 1


def marks(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Everything a reader must know before believing the comparison."""
    found = [mark for run, name in zip(runs, names, strict=True) for mark in _state(run, name)]
    labels = _by(runs, names, lambda r: str(r["label"]))
    if len(labels) > 1:
        found.append(f"labels differ: {_listed(labels)}; local seconds are not AWS seconds")
    found += [*_seeds(runs, names), *_settings(runs, names)]
    for what, key in (("price dates", "prices_as_of"), ("prices' regions", "region")):
        groups = _by(runs, names, lambda r, key=key: str(r["cost"].get(key)))  # type: ignore[misc]
        if len(groups) > 1:
            found.append(f"{what} differ: {_listed(groups)}; dollars are not compared")
    for key in sorted({key for run in runs for key in run.result["versions"]}):
        versions = _by(runs, names, lambda r, key=key: str(r["versions"].get(key, "none")))  # type: ignore[misc]
        if len(versions) > 1:
            found.append(f"version of {key} differs: {_listed(versions)}")
    return found


def _state(run: RunFolder, name: str) -> list[str]:
    """What is wrong with a run by itself."""
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
    """What its metrics.jsonl lacks of, or has beyond, what its result.json was made from; empty: nothing."""
    counted, there = int(run.result["invocations"]["count"]), len(run.records)
    if counted != there:
        return f"metrics.jsonl has {there} records, result.json was made from {counted}"
    ids = {record["run"] for record in run.records if "run" in record}
    return f"metrics.jsonl has records of {len(ids)} runs" if len(ids) > 1 else ""


def _seeds(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Whether settings have other seeds than one another; runs of one setting may differ in theirs."""
    by_setting: dict[str, set[int]] = {}
    for run in runs:
        by_setting.setdefault(setting_of(run.result), set()).add(run.result["experiment"].get("seed", 0))
    mark = _differs(runs, names, "experiment", "seed")
    return [mark] if mark and len(set(map(frozenset, by_setting.values()))) > 1 else []


def _settings(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    paths: list[tuple[str, ...]] = [(key,) for key in MARKED]
    one = {run.result["architecture"] for run in runs}
    own = {key for run in runs for key in run.result["experiment"].keys() - COMMON} if len(one) == 1 else set()
    for section in (*MARKED_SECTIONS, *sorted(own)):
        keys = {key for run in runs for key in run.result["experiment"].get(section, {})}
        paths += [(section, key) for key in sorted(keys) if (section, key) not in ELSEWHERE]
    return [mark for path in paths if (mark := _differs(runs, names, "experiment", *path))]


def _differs(runs: Sequence[RunFolder], names: Sequence[str], *path: str) -> str | None:
    """`training.model differs: a in spirt, b in gpu`, or None where all agree."""

    def at_path(value: Any, key: str) -> Any:
        return value.get(key) if isinstance(value, Mapping) else None

    values = _by(runs, names, lambda result: str(reduce(at_path, path, result)))
    if len(values) == 1:
        return None
    dotted = ".".join(path).removeprefix("experiment.")
    return f"{dotted} differs: " + ", ".join(f"{value} in {' and '.join(who)}" for value, who in values.items())


def _by(runs: Sequence[RunFolder], names: Sequence[str], of: Callable[[Result], str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        grouped.setdefault(of(run.result), []).append(name)
    return grouped


def _listed(groups: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{value} ({' and '.join(names)})" for value, names in groups.items())
