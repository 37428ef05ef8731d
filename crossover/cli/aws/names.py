"""Names that a deployment gives and that somebody else has already: found before CloudFormation finds them half way."""

from pathlib import Path
from typing import Any

from crossover.cli.aws import inventory, ownership, stacks
from crossover.errors import UserError
from crossover.experiment import Experiment

GIVEN = (
    "function",
    "state machine",
    "log group",
    "parameter",
    "auto scaling group",
    "budget",
)  # kinds with fixed names


def check_free(session: Any, experiment: Experiment, *, config: Path) -> None:
    """For an experiment that does not stand yet. Raises UserError naming what is there under its names."""
    owner = ownership.of(session, experiment.project, experiment.name)
    if stacks.look(session, owner.stack) is not None:
        return
    taken = [f"{kind} {name}" for kind in GIVEN for name in sorted(set(inventory.LISTERS[kind][0](session, owner)))]
    if taken:
        listed = ", ".join(taken[:3]) + (f" and {len(taken) - 3} more" if len(taken) > 3 else "")
        raise UserError(
            f"{owner.stack}: names are taken though there is no such stack: {listed}; crossover destroy {config} removes what an "
            "earlier deployment left, or choose another name or project"
        )
