"""Arguments that several commands share, and the experiment that they make."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from crossover import own_code
from crossover.experiment import Experiment
from crossover.validation import load

Config = Annotated[Path, typer.Argument(help="An experiment, for example config/spirt.yaml.", show_default=False)]
Override = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set a field, for example training.epochs=3.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="JSON on standard output and nothing else; crossover schema says its form.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing anything on AWS.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Go on although the stack is another owner's.")]


def print_json(answer: Mapping[str, Any]) -> None:
    """A command's answer, for programs. What has no number, an average of nothing for example, must be None already."""
    print(json.dumps(answer, indent=1, allow_nan=False))


def accepted(config: Path, override: list[str] | None = None, *, travels: bool = True) -> Experiment:
    """The experiment that can be run. Raises ConfigError for all that `run` refuses before it starts anything. `travels`: own code will run
    elsewhere than in this process.
    """
    experiment = load(config, override or [])  # before torch, so that an architecture is noticed that brings it
    from crossover.simulation.workload import MODELS

    for note in own_code.check(experiment, travels=travels):
        print(f"note: {note}", file=sys.stderr)
    if experiment.training.model not in MODELS:
        from crossover.learning.models.registry import factory  # torch takes a second

        factory(experiment.training.model)
    return experiment
