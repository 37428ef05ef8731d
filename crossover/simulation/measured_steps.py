"""A training step's seconds as `crossover probe` measured them on one card, used instead of the rule of gpu_steps.py."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.learning.sizes import digest_of_model
from crossover.simulation.gpu_steps import Precision, card_of_device, load_cards
from crossover.simulation.workload import Workload

FORMAT = 1
# How sure a measured step is on EC2, as a sigma of its logarithm: another machine around the same card. Assumed.
MEASURED_SIGMA = 0.1
WITHOUT_NVIDIA = re.compile(
    r"\+(cpu|rocm|xpu)"
)  # in the version of a PyTorch that uses no NVIDIA GPU; all known cards are NVIDIA's
FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "device": str,
    "precision": str,
    "model": str,
    "digest": str,
    "torch": str,
    "steps": list,
    "parameters": int,
    "buffers": int,
    "macs": int,
}


@dataclass(frozen=True)
class MeasuredSteps:
    """Measured times of training steps on one GPU card in one precision, and a line through them: `constant_s` seconds per step plus
    `sample_s` per sample. `points`: (samples, seconds) that were measured; `card`: the project's name of the card; `device`: its name as
    the driver gives it; `source`: name of the file.
    """

    card: str
    device: str
    precision: Precision
    constant_s: float
    sample_s: float
    points: tuple[tuple[int, float], ...]
    source: str

    def step_s(self, samples: float, *, share: float) -> float:
        """Return the seconds of one step of `samples` samples, by the line through the measurements. `share`: work per sample relative to
        that of a full-size image.
        """
        return self.constant_s + share * self.sample_s * samples


def read_measured_steps(path: Path, workload: Workload, precision: Precision) -> MeasuredSteps:
    """Return the measured steps in the file that `crossover probe` wrote to `path`.

    Raises ConfigError if the file is not from `crossover probe`, or if it was measured on a card that no known instance type has, by a
    PyTorch that cannot have used that card, with another model than the workload's, or in another precision.
    """
    row = _parse(path)
    card = card_of_device(row["device"])
    if card is None:
        known = ", ".join(f"{name} ({'/'.join(each.instances)})" for name, each in load_cards().items())
        raise ConfigError(
            f"--measured: {path}: measured on {row['device']}, which no instance has; expected one of {known}"
        )
    if WITHOUT_NVIDIA.search(row["torch"]):
        raise ConfigError(
            f"--measured: {path}: is from PyTorch {row['torch']}, which cannot use a {row['device']}; expected a file that crossover probe "
            "wrote on the machine with the GPU, unedited"
        )
    if row["digest"] != digest_of_model(workload.parameters, workload.buffers, workload.macs):
        raise ConfigError(
            f"--measured: {path}: measured {row['model']} with {row['parameters']:,} parameters and {row['macs']:,} multiply-accumulates a "
            f"sample; {workload.model} has {workload.parameters:,} and {workload.macs:,}; expected a row of the same model and inputs"
        )
    if row["precision"] != precision:
        raise ConfigError(
            f"--measured: {path}: measured in {row['precision']}, and training.precision is {precision}; expected crossover probe "
            f"--precision {precision}, or --set training.precision={row['precision']}"
        )
    points = tuple((step["batch_size"], step["seconds"]) for step in row["steps"])
    constant_s, sample_s = _fit_line(points)
    return MeasuredSteps(card.name, row["device"], precision, constant_s, sample_s, points, path.name)


def _parse(path: Path) -> dict[str, Any]:
    """Return the content of a file written by `crossover probe`. Raises ConfigError if it cannot be read, has another format or lacks a
    field.
    """
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row["format"] != FORMAT:
            raise ValueError(f"format {row['format']!r} is unknown; this version reads {FORMAT}")
        wrong = [name for name, kind in FIELDS.items() if not isinstance(row[name], kind)]
        points = [(step["batch_size"], step["seconds"]) for step in row["steps"]]
        numbers = all(type(each) in (int, float) and each > 0 for point in points for each in point)
        if wrong or not points or not numbers:
            raise ValueError(f"{', '.join(wrong) or 'steps'}: not as crossover probe writes it")
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise ConfigError(f"--measured: {path}: is no row of crossover probe: {problem}") from problem
    found: dict[str, Any] = row
    return found


def _fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (constant, slope), neither below 0, of the line through the points (samples, seconds) that minimises the squares of the
    relative errors. If the slope or the constant would not be positive, return a line through 0.
    """
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    slope = (
        sum(w * (n - mean_n) * (s - mean_s) for w, (n, s) in zip(weights, points, strict=True)) / spread
        if spread
        else 0.0
    )
    if slope <= 0 or mean_s - slope * mean_n < 0:
        return 0.0, mean_s / mean_n
    return mean_s - slope * mean_n, slope


def describe(steps: MeasuredSteps, workload: Workload) -> list[str]:
    """Return lines for people: for each measured batch size the measured seconds beside those that the general rule projects, and one line
    on the instance types for which `steps` replace the rule. `workload`: model and data of the steps. Raises NoProjection if the rule has
    no figures for that card in the steps' precision.
    """
    card = load_cards()[steps.card]
    lines = []
    for samples, seconds in steps.points:
        ruled = card.step_s(workload.step, samples, parameters=workload.parameters, precision=steps.precision)
        lines.append(
            f"a step of {samples:,} samples on {steps.device}, {steps.precision}: {seconds:.3g} s [measured], {ruled:.3g} s [projected] by "
            "the rule"
        )
    return [
        *lines,
        f"{steps.source} replaces the rule on {', '.join(card.instances)} alone; its band is {MEASURED_SIGMA:g} sigma (assumed: another "
        f"machine around the same card) instead of {card.sigma(workload.step):.2g}",
    ]
