"""Amazon States Language for an architecture: a pure function of tree and experiment, tested without CDK or AWS.

The second interpreter of the tree (`workflow.execute` is the first). JSONPath, STANDARD machines, one machine per Child, each with a fixed
name. The state that travels is the event alone; a Task selects its fields, so what a Map leaves behind never reaches a step.

Placeholders that the stack substitutes: `${step_<name>}` a function's ARN, `${machine_<name>}` a state machine's ARN,
`${executions_<name>}` the ARN prefix of that machine's executions. Sources: AWS Step Functions Developer Guide, "Error handling", "Map
state", "startExecution.sync:2".
"""

import math

from crossover.architecture import Architecture
from crossover.asl.blocks import MachineDefinitions
from crossover.asl.events import StateDefinition
from crossover.asl.limits import INLINE_MAP_LIMIT, inline
from crossover.experiment import Experiment

__all__ = ["INLINE_MAP_LIMIT", "RUN_MACHINE", "StateDefinition", "definitions", "inline", "limit_s"]

RUN_MACHINE = "run"


def definitions(
    architecture: Architecture, experiment: Experiment, *, minibatches: int | None = None
) -> dict[str, StateDefinition]:
    """Every state machine of the architecture by name: `run`, one per Child, one per entry of `machines`.

    `minibatches`: the most that one worker computes side by side; None (unknown) makes those Maps distributed.
    """
    counts = {"workers": experiment.workers, "minibatches": minibatches}
    machines = MachineDefinitions(counts, limit_s=limit_s(experiment))
    roots = [*([(RUN_MACHINE, architecture.run)] if architecture.run else []), *architecture.machines.items()]
    for name, node in roots:
        machines.add(name, node)
    return machines.definitions


def limit_s(experiment: Experiment) -> int:
    """How long an execution may last."""
    return math.ceil(experiment.lifetime.maximum_run_hours * 3_600)
