"""What one run of an experiment takes, before it is run: minutes and dollars, each with what it is projected from.

An earlier run of the same work tells it best: what is billed by use grows with workers and epochs, everything else with time. Otherwise
the run is simulated, as `crossover project` does. Without a basis nothing is guessed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.reports import cost, infrastructure, prices
from crossover.reports.billing import Line


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Always `projected`. `lines` add up to the dollars of one run, standing costs for its minutes and `boot_minutes` included.

    `problems`: why AWS would not run it so.
    """

    epochs: int
    minutes: float
    boot_minutes: float
    lines: Sequence[Line]
    words: str
    problems: Sequence[str] = ()

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)


def estimate(experiment: Experiment, *, results: Path = Path("results")) -> Estimate | None:
    """None where there is no basis. Raises ConfigError (no price)."""
    return by_an_earlier_run(experiment, results / experiment.name) or by_simulation(experiment)


def _boot_minutes(experiment: Experiment) -> float:
    return max((fleet.boot_s for fleet in infrastructure.of(experiment).fleets), default=0.0) / 60


# --- a simulation -----------------------------------------------------------------------------------------------------


def by_simulation(experiment: Experiment) -> Estimate | None:
    """None for a model or data of sizes that only loading them would tell."""
    from crossover.simulation import AWS, Workload, simulate

    try:
        workload = Workload.of(experiment)
    except ConfigError:
        return None
    run = simulate(experiment, AWS, workload=workload)
    return Estimate(
        epochs=experiment.training.epochs,
        minutes=run.seconds / 60,
        boot_minutes=_boot_minutes(experiment),
        lines=[line for line in run.lines if line.usd > 0],
        words=f"a simulation, call by call (crossover project), with {run.calibration.name}",
        problems=run.problems,
    )


# --- an earlier run ---------------------------------------------------------------------------------------------------


def by_an_earlier_run(experiment: Experiment, folder: Path) -> Estimate | None:
    """By the run in `folder`, which is where this one would be written; None unless it finished the same work."""
    try:
        result = json.loads((folder / "result.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    done = result.get("epochs")
    if result.get("outcome") != "finished" or not done or _work(result["experiment"]) != _work(experiment.resolved()):
        return None
    epochs = experiment.training.epochs
    epoch_s = sorted(float(each["wall_s"]) for each in done)[len(done) // 2]
    seconds = max(0.0, float(result["duration_s"]) - len(done) * epoch_s) + epochs * epoch_s

    def billed(begins: str) -> float:
        quantities = (float(line["quantity"]) for line in result["cost"]["lines"] if line["item"].startswith(begins))
        return sum(quantities) * epochs / len(done)

    used = cost.Quantities(
        gb_s=billed("Lambda duration"),
        invocations=round(billed("Lambda requests")),
        cold_starts=0,  # of secrets' calls and of storage a run takes less than is shown
        stored_bytes=0,
        writes=round(billed("S3 requests, PUT")),
        reads=round(billed("S3 requests, GET")),
    )
    transitions = round(billed("Step Functions transitions"))
    lines = cost.bill(used, infrastructure.of(experiment), prices.load(), duration_s=seconds, transitions=transitions)
    return Estimate(
        epochs=epochs,
        minutes=seconds / 60,
        boot_minutes=_boot_minutes(experiment),
        lines=[line for line in lines if line.usd > 0],
        words=f"the {result['label']} run of {result['started_at'][:10]} in {folder}",
    )


def _work(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What two experiments (as `resolved()` writes them) must have in common for one to tell of the other's epochs."""
    training, data = plain["training"], plain["data"]
    return {
        "architecture": str(plain["architecture"]).replace("-", "_"),
        "workers": plain["workers"],  # they share the data: fewer have more to do
        "model": training["model"],
        "batch_size": training["batch_size"],
        "dataset": data["dataset"],
        "limit": data["limit"],
        "channel": plain["storage"]["channel"],
    }
