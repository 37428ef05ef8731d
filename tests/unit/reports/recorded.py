"""Runs of one small experiment as this project measured them: real noise, to hold verdicts against.

measured_runs.json is of 2 workers, small_cnn on digits, 3 epochs, in one process on a machine of two cores that others used at the same
time: each seed several times, one seed after the other. The last epoch's seconds and dollars, and the processor share of computing.
"""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from crossover.reports import comparison
from crossover.reports.folder import RunFolder
from tests.unit.reports.example_run import spirt

GOAL = 0.85  # which every seed has reached in its last epoch


@cache
def runs() -> dict[int, list[dict[str, float]]]:
    """Return the measured runs by seed."""
    found: dict[int, list[dict[str, float]]] = {}
    for each in json.loads((Path(__file__).parent / "measured_runs.json").read_text())["runs"]:
        found.setdefault(each["seed"], []).append(each)
    return found


@cache
def _example() -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Return result.json and records of a small example run."""
    example = spirt(workers=1, minibatches=1, epochs=1, retry=False)
    return example.result(), tuple(example.records)


def as_run(measured: dict[str, float], setting: str, *, times: float = 1.0, number: int = 1) -> RunFolder:
    """Return a run of `setting` that took `times` as long, and as many dollars, as the measured one."""
    result, records = _example()
    seed, share = int(measured["seed"]), measured["cpu_share"]
    figures = {name: times * measured[name] for name in ("elapsed_s", "paper_method_usd", "full_usd")}
    epochs = [{**result["epochs"][0], **figures, "val_metric": 0.9}]
    stages = [{"stage": "compute", "count": 1, "wall_s": 1.0, "cpu_s": share, "max_rss_mb": 1.0}]
    experiment = {**result["experiment"], "name": setting, "seed": seed}
    result = {**result, "experiment": experiment, "epochs": epochs, "stages": stages}
    return RunFolder(path=Path(f"{setting}-{seed}-{number}"), result=result, records=records)


def paired(rng: Random, seeds: int, *, times: float = 1.0, least_share: float = 0.0) -> list[RunFolder]:
    """Return runs of two settings by `seeds` seeds, each drawn from the measured runs of its seed that had at least `least_share` of a
    core; those of b take `times` as long.
    """
    drawn = []
    for seed in rng.sample(sorted(runs()), seeds):
        one, other = rng.sample([each for each in runs()[seed] if each["cpu_share"] >= least_share], 2)
        drawn += [as_run(one, "a"), as_run(other, "b", times=times)]
    return drawn


def verdict(drawn: list[RunFolder]) -> str:
    """Return the verdict of a comparison of the runs."""
    return comparison.compare_runs(drawn, at=GOAL).verdict


def winners(said: str) -> set[str]:
    """Return the settings that a verdict calls first in anything."""
    return {part.strip()[0] for part in _claims(said)}


def _claims(said: str) -> list[str]:
    """Return what stands before `is soonest` or `is lowest` in a verdict, clause by clause."""
    body = said.partition("Left out:")[0].partition(": ")[2]
    return [part.partition(", ")[0] for part in body.split("; ") if " is soonest" in part or " is lowest" in part]
