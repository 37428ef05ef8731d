"""Names that a deployment gives and that somebody has already: found before CloudFormation finds them half way."""

from pathlib import Path
from typing import Any

from crossover.account.resources import inventory, ownership, stacks
from crossover.account.resources.ownership import Whose
from crossover.architecture import architecture_of, steps
from crossover.costs.platform_reports import GROUPS
from crossover.errors import UserError
from crossover.experiment import Experiment


def check_free(session: Any, experiment: Experiment, *, config: Path) -> None:
    """For an experiment that does not stand yet. Raises UserError naming what is there under its names, and whose it is."""
    owner = ownership.of(session, experiment.project, experiment.name)
    if stacks.look(session, owner.stack) is not None:
        return
    names = given(experiment)
    found = [each for each in inventory.take(session, owner, names) if each.name in names[each.kind]]
    found += inventory.take(session, owner, ["parameter"])  # whatever lies below the experiment's path
    for whose, then in (
        (Whose.UNPROVEN, "they are not ours: choose another name or project"),
        (Whose.LEFT, f"crossover destroy {config} removes what an earlier deployment left"),
    ):
        if taken := [str(each) for each in found if each.whose is whose]:
            listed = ", ".join(taken[:3]) + (f" and {len(taken) - 3} more" if len(taken) > 3 else "")
            raise UserError(f"{owner.stack}: names are taken though there is no such stack: {listed}; {then}")


def given(experiment: Experiment) -> dict[str, set[str]]:
    """The fixed names of an experiment's stack, by kind; all others CloudFormation makes up."""
    architecture, stack = architecture_of(experiment), f"{experiment.project}-{experiment.name}"
    named = {f"{stack}-{step.name.replace('_', '-')}" for step in steps(architecture)}
    functions = {*named, f"{stack}-bucket-emptier"}
    return {
        "function": functions,
        "log group": {GROUPS + name for name in functions},
        "state machine": {f"{stack}-{name.replace('_', '-')}" for name in ("run", *architecture.machines)},
        "auto scaling group": {f"{stack}-fleet"},
        "budget": {stack},
    }
