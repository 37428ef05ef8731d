"""What each architecture's steps ask of the stores, in the order in which they ask: a module for each, found by its name.

Vectors and batches are counted in bytes. JSON texts (decisions, outcomes, claims, reports, what stands around a vector in a checkpoint or a
message) count as requests without bytes: some hundred are nothing to a bill or a transfer.
"""

import importlib
from pathlib import Path

from crossover.architecture import Architecture, steps
from crossover.errors import NoProjection
from crossover.simulation.world import Model


def models_of(architecture: Architecture) -> dict[str, Model]:
    """By step name: the MODELS of the module that `Architecture(simulation=)` names. Raises NoProjection where there is none, or a step
    is missing in it: its tree can be walked, that step's body cannot.
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
