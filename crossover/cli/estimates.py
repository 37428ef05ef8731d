"""What one run of an experiment takes, before it is run: minutes and dollars, each with what it is projected from.

A closed form: seconds of an epoch come from an earlier run of the same work, from the runs that this project measured on one machine
(config/aws/measured.yaml), or from what a paper printed, scaled by the batch; they are looked for in this order. What is billed by use
grows with workers and epochs, everything else with time. Without a basis nothing is guessed.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from crossover import workflow
from crossover.errors import UserError
from crossover.expectations import expected_records, state_transitions
from crossover.experiment import Experiment
from crossover.reports import billing, infrastructure, prices, published
from crossover.reports.billing import Line
from crossover.rounds import Calendar

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "config" / "aws" / "measured.yaml"
PAPERS_BATCH, PAPERS_BATCHES = 512, 24  # of Table 2 of the 2025 paper
COLD_START_S = 5.0  # the first functions import PyTorch from its layer: assumed, docs/aws.md
LOG_BYTES = 1_000

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
class Basis:
    """`per_epoch`: quantities by price item, of one worker in one epoch; `start_s`: until the first epoch begins."""

    words: str
    start_s: float
    epoch_s: float
    per_epoch: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Always `projected`. `lines` add up to the dollars of one run, standing costs for its minutes included."""

    epochs: int
    minutes: float
    lines: Sequence[Line]
    words: str

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)


def estimate(experiment: Experiment, *, results: Path = Path("results")) -> Estimate | None:
    """None where there is no basis. Raises ConfigError (no price)."""
    for find in (lambda e: from_results(e, results / e.name), from_measured, from_paper):
        if basis := find(experiment):
            return _estimate(experiment, basis)
    return None


def _estimate(experiment: Experiment, basis: Basis) -> Estimate:
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
    boot_s = max((fleet.boot_s for fleet in wanted.fleets), default=0.0)
    return Estimate(
        epochs=experiment.training.epochs,
        minutes=(seconds + boot_s) / 60,
        lines=[line for line in lines if line.usd > 0],
        words=basis.words,
    )


# --- an earlier run ---------------------------------------------------------------------------------------------------


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


def from_measured(experiment: Experiment, path: Path = MEASURED) -> Basis | None:
    """By the runs that come with the project."""
    plain = yaml.safe_load(path.read_text("utf-8"))
    asked = work(experiment.resolved())
    for entry in plain["runs"]:
        if entry["work"] == asked:
            words = f"this project's own local run of {entry['at']}, on {plain['machine']}"
            return Basis(
                words=words, start_s=entry["start_s"], epoch_s=entry["epoch_s"], per_epoch=entry["per_worker_epoch"]
            )
    return None


def measured(folders: Sequence[Path]) -> str:
    """config/aws/measured.yaml anew, from runs on one machine: `python -m crossover.cli.estimates results/* > config/aws/measured.yaml`."""
    runs = []
    for folder in folders:
        result = json.loads((folder / "result.json").read_text("utf-8"))
        basis = basis_of(result, words="")
        if basis is None or result["outcome"] != "finished" or result["label"] != "measured-local":
            raise UserError(f"{folder}: not a finished run on this machine")
        figures = {item: float(f"{quantity:.4g}") for item, quantity in basis.per_epoch.items()}
        runs.append(
            {
                "work": work(result["experiment"]),
                "at": result["started_at"][:10],
                "start_s": round(basis.start_s, 2),
                "epoch_s": round(basis.epoch_s, 3),
                "per_worker_epoch": figures,
            }
        )
    head = "# What `crossover plan` projects runs from where nothing nearer is known: this project's own runs on one machine.\n"
    head += "# Made by `python -m crossover.cli.estimates`: measured-local seconds, quantities by price item.\n"
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    return head + yaml.safe_dump({"machine": machine, "runs": runs}, sort_keys=False)


# --- a paper ----------------------------------------------------------------------------------------------------------


def from_paper(experiment: Experiment) -> Basis | None:
    """By Table 2 of the 2025 paper: seconds of one gradient of 512 samples, scaled by the batch."""
    from crossover.running import resolve

    rows = {
        row.figures["architecture"]: row
        for row in published.rows(paper="comparison-2025", table="Table 2", model=experiment.training.model)
    }
    resolved, minibatches = resolve(experiment, workflow.load(experiment.architecture)), _minibatches(experiment)
    own = rows.get(experiment.module)
    row = own or rows.get("spirt")
    if row is None or not minibatches:
        return None
    share = minibatches * experiment.training.batch_size / (PAPERS_BATCH * PAPERS_BATCHES)
    gradient_s = float(row.figures.get("function_s", 0)) * experiment.training.batch_size / PAPERS_BATCH
    by_architecture: Mapping[str, Callable[[], float]] = {
        "gpu": lambda: share * float(row.figures.get("epoch_s", 0)),
        "spirt": lambda: gradient_s,  # a worker's minibatches side by side
        "p2p_serverless": lambda: gradient_s,
    }
    epoch_s = by_architecture.get(experiment.module, lambda: minibatches * gradient_s)()
    days = Calendar(minibatches, _rounds_of(resolved, minibatches), 1)
    borrowed = "" if own else ", the seconds of SPIRT's gradient"
    return Basis(
        words=f"{row.source}, scaled to batches of {experiment.training.batch_size}{borrowed}; waits for one another not counted",
        start_s=COLD_START_S,
        epoch_s=epoch_s,
        per_epoch=_uses(experiment, days, gradient_s=gradient_s),
    )


def _minibatches(experiment: Experiment) -> int | None:
    """Of one worker in an epoch; None for a data set whose size only loading it would tell."""
    from cdk.maps import most_minibatches

    one_by_one = replace(experiment.training, batch_size=1, sync_every="epoch")
    samples = most_minibatches(replace(experiment, training=one_by_one))
    if samples is None:
        return None
    batch = experiment.training.batch_size
    return max(1, samples // batch) if experiment.data.drop_last else -(-samples // batch)


def _rounds_of(experiment: Experiment, minibatches: int) -> int:
    every = experiment.training.sync_every
    return every if isinstance(every, int) else minibatches


def _uses(experiment: Experiment, days: Calendar, *, gradient_s: float) -> dict[str, float]:
    """Quantities by price item of one worker and epoch, by the steps that the tree must execute."""
    architecture, workers = workflow.load(experiment.architecture), experiment.workers
    counts = expected_records(architecture, workers=workers, days=days, epochs=1)
    steps = workflow.steps(architecture)
    computing = {
        step.name: experiment.functions.memory_of(step.name, torch=True) for step in steps if step.torch is True
    }
    if not computing:
        return {}
    gradients_s = days.minibatches * gradient_s
    records = [
        {"step": step.name, "outcome": "ok", "worker": number % workers, "epoch": 1, "round": 0}
        for step in steps
        for number in range(counts[step.name])
    ]
    memory_mb = max(computing.values())
    invocations = len(records) / workers
    return {
        "lambda.arm64.gb_second": billing.gb_seconds(round(gradients_s * 1_000), memory_mb=memory_mb),
        "lambda.request": invocations,
        "stepfunctions.transition": state_transitions(architecture, records, workers=workers, epochs=1) / workers,
        "s3.write": invocations,  # a record each
        "s3.read": 2 * invocations,
        "logs.ingested_gb": invocations * LOG_BYTES / billing.GB,
    }


if __name__ == "__main__":
    sys.stdout.write(measured([Path(each) for each in sys.argv[1:]]))
