"""The trained model as a safetensors file: names and shapes of the module's own state_dict, readable by any safetensors library."""

from collections.abc import Mapping
from typing import Any

from crossover.algorithms import buffers
from crossover.dataplane.vector import Vector
from crossover.errors import Corrupt
from crossover.experiment import Experiment
from crossover.learning import tensor_file
from crossover.learning.flat import FlatModel
from crossover.learning.learner import skeleton, take_constants
from crossover.learning.models import adapters


def safetensors_bytes(
    experiment: Experiment, manifest: Mapping[str, Any], vector: Vector, *, constants: bytes | None = None
) -> bytes:
    """A model vector as a safetensors file; `constants`: the run's, where it has any. Raises Corrupt where it does not fit the
    experiment's model.
    """
    classes, shape = manifest["classes"], tuple(manifest["input_shape"])
    flat = FlatModel(skeleton(experiment.training, classes, shape, seed_=experiment.seed))
    if vector.elements != flat.model.numel():
        raise Corrupt(f"model: {vector.elements} elements; {experiment.training.model} has {flat.model.numel()}")
    if constants is not None:
        take_constants(flat, constants, experiment.training.model)
    flat.model.copy_(buffers.tensor(vector.data))
    flat.evaluate()
    about = {"model": experiment.training.model, "classes": str(classes)}
    match experiment.training.save:
        case "all":
            state = flat.module.state_dict()
        case "merged":
            state = adapters.merged(flat.module, experiment.training.adapters)
        case "adapters":
            fixed = flat.frozen() | flat.constants()
            state = {name: value for name, value in flat.module.state_dict().items() if name not in fixed}
    return tensor_file.encode(state, about)
