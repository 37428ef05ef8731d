"""What finished runs would take on AWS: their own settings and epochs, simulated, for their reports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crossover.architecture import architecture_of
from crossover.costs import prices
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import from_resolved
from crossover.reports import display
from crossover.reports.on_aws import OnAws
from crossover.simulation.calibration import AWS
from crossover.simulation.mirror import models_of
from crossover.simulation.repetitions import (
    LIMITS,
    REPETITIONS,
    SIMULATED_EPOCHS,
    RepeatedRun,
    draws,
    figures,
    problems,
    repeated,
)
from crossover.simulation.simulate import sizes_of
from crossover.simulation.workload import calendar


def on_aws(
    results: Sequence[Mapping[str, Any]],
    *,
    repetitions: int = REPETITIONS,
    tell: Callable[[str], object] = lambda reason: None,
) -> list[OnAws | None]:
    """Each of the runs (result.json), in the same draws; None of one that nobody can simulate, and `tell` is told why."""
    tasks = [_task(result, tell) for result in results]
    seed = int(results[0]["experiment"].get("seed", 0)) if results else 0
    done = iter(repeated([task for task in tasks if task is not None], draws(seed, repetitions)))
    words = f"{AWS.name}; {repetitions} repetitions of seed {seed}; {LIMITS}"
    found = list[OnAws | None]()
    for task in tasks:
        outcomes = () if task is None else next(done)
        found.append(
            OnAws(
                seconds=tuple(figures(outcomes, "seconds")),
                usd=tuple(figures(outcomes, "usd")),
                words=words,
                problems=problems(outcomes),
                outside=outcomes[0].outside,
            )
            if outcomes
            else None
        )
    return found


def _task(result: Mapping[str, Any], tell: Callable[[str], object]) -> RepeatedRun | None:
    """As many epochs as the run had. None where a size or a step is not known, or another version wrote it."""
    try:
        experiment = from_resolved(result["experiment"])
        training = experiment.training.of_epochs(display.epochs_of(result) or 1)
        experiment = replace(experiment, training=training)
        architecture = architecture_of(experiment)
        workload = sizes_of(experiment, architecture)
        models_of(architecture)
        calendar(architecture.resolve(experiment), workload)
    except (NoProjection, ConfigError, TypeError) as unknown:
        tell(str(unknown))
        return None
    return RepeatedRun(experiment, AWS.unsure_of(workload.model), workload, prices.load(), SIMULATED_EPOCHS)
