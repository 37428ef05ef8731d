"""Requests of each architecture's steps to the stores, in their order: one module per architecture, found by its name.

Vectors and batches are counted in bytes. JSON texts (decisions, outcomes, claims, reports, the facts around a vector in a checkpoint or a
message) count as requests without bytes, because some hundred bytes do not matter to a bill or a transfer.
"""

import importlib
from pathlib import Path

from crossover.errors import NoProjection
from crossover.simulation.world import Model
from crossover.workflow.architecture import Architecture, steps


def models_of(architecture: Architecture) -> dict[str, Model]:
    """Return the simulation models of an architecture's steps, by name of the step. They are MODELS of the module
    crossover/simulation/mirror/NAME.py, imported if necessary; NAME is `Architecture.simulation`, or the architecture's own name. It is the
    module's own mapping, which must not be changed and may have models of further steps. Raises NoProjection if there is no such module, or
    if a step has no model in it.
    """
    name = architecture.simulation or architecture.name
    there = name.isidentifier() and (Path(__file__).parent / f"{name}.py").is_file()
    module = importlib.import_module(f"crossover.simulation.mirror.{name}") if there else None
    models: dict[str, Model] | None = getattr(module, "MODELS", None)
    if models is None:
        raise NoProjection(
            f"architecture: {architecture.name}: crossover/simulation/mirror/{name}.py with MODELS of its steps is not there; "
            "simulation= of its ARCHITECTURE names one whose steps ask the same of the stores, such as all_reduce"
        )
    for step in steps(architecture):
        if step.name not in models:
            raise NoProjection(
                f"architecture: {architecture.name}: {step.module}.{step.name} has no model in crossover/simulation/mirror/{name}.py"
            )
    return models
