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
from crossover.reports import billing, infrastructure, prices
from crossover.reports.billing import Line

# Price item -> the beginning of the cost line of a result that counts it.
BY_USE: Mapping[str, str] = {
    "lambda.arm64.gb_second": "Lambda duration",
    "lambda.request": "Lambda requests",
    "stepfunctions.transition": "Step Functions transitions",
    "s3.write": "S3 requests, PUT",
    "s3.read": "S3 requests, GET",
    "logs.ingested_gb": "CloudWatch Logs",
}


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
    basis = from_results(experiment, results / experiment.name)
    return _by_an_earlier_run(experiment, basis) if basis else by_simulation(experiment)


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


@dataclass(frozen=True, kw_only=True)
class Basis:
    """`per_epoch`: quantities by price item, of one worker in one epoch; `start_s`: until the first epoch begins."""

    words: str
    start_s: float
    epoch_s: float
    per_epoch: Mapping[str, float]


def _by_an_earlier_run(experiment: Experiment, basis: Basis) -> Estimate:
    listed, wanted = prices.load(), infrastructure.of(experiment)
    seconds = basis.start_s + experiment.training.epochs * basis.epoch_s
    times = experiment.workers * experiment.training.epochs
    lines = [
        billing.line(listed, item, quantity * times, item=BY_USE[item]) for item, quantity in basis.per_epoch.items()
    ]
    for fleet in wanted.fleets:
        lines += billing.fleet(
            listed,
            purpose=fleet.purpose,
            instance_type=fleet.instance_type,
            count=fleet.count,
            seconds=seconds,
            boot_s=fleet.boot_s,
            volume_gb=fleet.volume_gb,
            spot=fleet.spot,
        )
    if wanted.broker_instance_type:
        lines.append(billing.broker(listed, wanted.broker_instance_type, seconds=seconds))
    lines.append(billing.interface_endpoints(listed, wanted.interface_endpoints, seconds=seconds))
    return Estimate(
        epochs=experiment.training.epochs,
        minutes=seconds / 60,
        boot_minutes=_boot_minutes(experiment),
        lines=[line for line in lines if line.usd > 0],
        words=basis.words,
    )


def work(plain: Mapping[str, Any]) -> dict[str, Any]:
    """What two experiments (as `resolved()` writes them) must have in common for one to tell of the other's epochs."""
    training, data = plain["training"], plain["data"]
    return {
        "architecture": str(plain["architecture"]).replace("-", "_"),
        "workers": plain["workers"],  # they share the data: fewer have more to do
        "model": training["model"],
        "batch_size": training["batch_size"],
        "dataset": data["dataset"],
        "limit": data["limit"],
    }


def from_results(experiment: Experiment, folder: Path) -> Basis | None:
    """By the last run that lies where this one would be written."""
    try:
        result = json.loads((folder / "result.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if result.get("outcome") != "finished" or work(result["experiment"]) != work(experiment.resolved()):
        return None
    return basis_of(result, words=f"the {result['label']} run of {result['started_at'][:10]} in {folder}")


def basis_of(result: Mapping[str, Any], *, words: str) -> Basis | None:
    """A finished run's own epochs and bill."""
    epochs = result["epochs"]
    if not epochs:
        return None
    lasting_s = sorted(float(each["wall_s"]) for each in epochs)
    epoch_s = lasting_s[len(lasting_s) // 2]
    times = result["experiment"]["workers"] * len(epochs)
    billed = result["cost"]["lines"]
    quantities = {
        item: sum(float(line["quantity"]) for line in billed if line["item"].startswith(begins)) / times
        for item, begins in BY_USE.items()
    }
    return Basis(
        words=words,
        start_s=max(0.0, float(result["duration_s"]) - len(epochs) * epoch_s),
        epoch_s=epoch_s,
        per_epoch={item: quantity for item, quantity in quantities.items() if quantity > 0},
    )
