"""Which steps are simulated how: by architecture's step modules."""

from crossover.errors import NoProjection
from crossover.simulation import lambdaml, mlless, p2p_serverless
from crossover.simulation.spirt import SPIRT
from crossover.simulation.world import Model
from crossover.workflow import Architecture, steps

MODELS: dict[str, dict[str, Model]] = {
    "functions.spirt": SPIRT,
    "functions.all_reduce": lambdaml.models(lambdaml.all_reduce),
    "functions.scatter_reduce": lambdaml.models(lambdaml.scatter_reduce),
    "functions.mlless": mlless.MLLESS,
    "functions.p2p_serverless": p2p_serverless.FUNCTIONS,
}


def models_of(architecture: Architecture) -> dict[str, Model]:
    """By step name. Raises NoProjection naming a step that nobody has described: its tree can be walked, its body not."""
    found = {}
    for step in steps(architecture):
        model = MODELS.get(step.module, {}).get(step.name)
        if model is None:
            raise NoProjection(
                f"architecture: {architecture.name}: {step.module}.{step.name} has no model in crossover/simulation/models.py"
            )
        found[step.name] = model
    return found
