"""What one run of an experiment takes, before it is run: minutes and dollars, each with what it is projected from.

An earlier run of the same work tells it best: what is billed by use grows with workers and epochs, everything else with time. Otherwise the
run is simulated, as `crossover project` does. Without a basis nothing is guessed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from crossover.architecture import architecture_of
from crossover.costs import cost, infrastructure, prices
from crossover.costs.billing import Line
from crossover.errors import NoProjection
from crossover.experiment import Experiment, flat, from_resolved
from crossover.reports import display
from crossover.reports.bands import Band

# With which an epoch takes as long and moves as much; what they make dearer by the hour is priced anew.
_ALIKE = re.compile(
    r"(name|project|owner|seed|recipe|baseline|(faults|lifetime|network)\..*|data\.directory|database\.image_generation"
    r"|training\.(epochs|learning_rate|nesterov|weight_decay|label_smoothing|schedule|warm_up|plateau_\w+|early_stopping"
    r"|target|metric\..*))$"
).match


@dataclass(frozen=True, kw_only=True)
class PlanEstimate:
    """Always `projected`. `minutes`, `usd`: p5, p50 and p95 over repetitions; all the same where no simulation can tell how they spread.
    `lines` add up to the dollars in the middle session, standing costs for its minutes and `boot_minutes` included.

    `problems`: why AWS would not run it so. `outside`: what lies beyond all that was measured.
    `spread`: what p5 and p95 are of, or why there are none.
    """

    epochs: int
    minutes: Band
    boot_minutes: float
    usd: Band
    lines: Sequence[Line]
    words: str
    spread: str
    problems: Sequence[str] = ()
    outside: Sequence[str] = ()


def estimate(
    experiment: Experiment, *, results: Path = Path("results"), repetitions: int | None = None
) -> PlanEstimate:
    """By the earlier run in `results`, else by simulation. Raises NoProjection where neither can tell, ConfigError (no price)."""
    earlier = by_an_earlier_run(experiment, results / experiment.name)
    if earlier is None:
        return by_simulation(experiment, repetitions=repetitions)
    try:
        simulated = by_simulation(experiment, repetitions=repetitions)
    except NoProjection as unknown:
        return replace(earlier, spread=f"how sure: not known: {unknown}")
    return replace(
        earlier,
        minutes=_spread(earlier.minutes.p50, simulated.minutes),
        usd=_spread(earlier.usd.p50, simulated.usd),
        spread=f"{simulated.spread}, around what the earlier run took",
    )


def _boot_minutes(experiment: Experiment) -> float:
    return max((fleet.boot_s for fleet in infrastructure.of(experiment).fleets), default=0.0) / 60


# --- a simulation -----------------------------------------------------------------------------------------------------


def by_simulation(experiment: Experiment, *, repetitions: int | None = None) -> PlanEstimate:
    """Raises NoProjection for a model or data of sizes that only loading them would tell, and for steps that nobody has described."""
    from crossover.simulation import AWS
    from crossover.simulation.repetitions import REPETITIONS, project

    found = project(experiment, AWS, repetitions=REPETITIONS if repetitions is None else repetitions)
    return PlanEstimate(
        epochs=experiment.training.epochs,
        minutes=Band(*(each / 60 for each in found.band("seconds"))),
        boot_minutes=_boot_minutes(experiment),
        usd=found.band("usd"),
        lines=[line for line in found.run.lines if line.usd > 0],
        words=f"a simulation, call by call (crossover project), calibration: {found.run.calibration.name}",
        spread=found.words,
        problems=found.problems,
        outside=found.run.outside,
    )


def _spread(middle: float, like: Band) -> Band:
    """`middle` between as large a part below and above as `like` has."""
    return Band(*(middle * each / like.p50 for each in like))


# --- an earlier run ---------------------------------------------------------------------------------------------------


def by_an_earlier_run(experiment: Experiment, folder: Path) -> PlanEstimate | None:
    """By the run in `folder`, which is where this one would be written; None unless it finished the same work. One run has no
    percentiles.
    """
    try:
        result = json.loads((folder / "result.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    done = result.get("epochs")
    if result.get("outcome") != "finished" or not done:
        return None
    try:
        there = from_resolved(result["experiment"])
    except TypeError:  # of a version with other fields
        return None
    if _work(there) != _work(experiment):
        return None
    epochs, trained = experiment.training.epochs, display.epochs_of(result)
    ends = (int(each.get("epoch", number)) for number, each in enumerate(done, 1))  # a row may be of several epochs
    counts = [last - before for before, last in pairwise((0, *ends))]
    epoch_s = sorted(float(each["wall_s"]) / count for each, count in zip(done, counts, strict=True))[len(done) // 2]
    seconds = max(0.0, float(result["duration_s"]) - trained * epoch_s) + epochs * epoch_s

    def billed(begins: str) -> float:
        quantities = (float(line["quantity"]) for line in result["cost"]["lines"] if line["item"].startswith(begins))
        return sum(quantities) * epochs / trained

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
    usd = sum(line.usd for line in lines)
    return PlanEstimate(
        epochs=epochs,
        minutes=Band(seconds / 60, seconds / 60, seconds / 60),
        boot_minutes=_boot_minutes(experiment),
        usd=Band(usd, usd, usd),
        spread="",
        lines=[line for line in lines if line.usd > 0],
        words=f"the {result['label']} run of {result['started_at'][:10]} in {folder}",
    )


def _work(experiment: Experiment) -> dict[str, Any]:
    """What two experiments must have in common for one to tell of the other's epochs: every setting that is not known to leave an epoch's
    time and traffic as they are.
    """
    whole = architecture_of(experiment).resolve(experiment).resolved()
    return {name: value for name, value in flat({**whole, "architecture": experiment.module}) if not _ALIKE(name)}
