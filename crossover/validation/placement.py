"""Where arithmetic runs: in the tensor database, unless it lacks a command for the experiment's optimizer or rule."""

from dataclasses import replace

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.algorithms.outer import OUTER
from crossover.algorithms.rules import RULES
from crossover.experiment import Experiment


def without_command(e: Experiment) -> list[str]:
    """The optimizer, the rule and the settings that the tensor database cannot compute."""
    optimizer = e.training.optimizer if e.exchange.what == "gradients" else OUTER  # functions take local steps
    commands = {
        optimizer: OPTIMIZERS[optimizer].command,
        e.aggregation.rule: RULES[e.aggregation.rule].command,
    }
    asked = {
        "training.clip": e.training.clip.norm,
        "training.no_decay": e.training.no_decay,
    }  # which its commands do not take
    ours = [name for name, given in asked.items() if given and e.exchange.what == "gradients"]
    return [*(name for name, command in commands.items() if command is None), *ours]


def placed(e: Experiment) -> Experiment:
    """With `database.compute: fetch` where a command is missing: functions then fetch, compute and store, which `plan` says. The others of
    the experiment's computations go with it, for a run that computes in two places compares nothing.
    """
    return replace(e, database=replace(e.database, compute="fetch")) if without_command(e) else e
