"""The saved model: what the safetensors library reads is what was trained."""

import pytest
import torch
from safetensors.torch import load
from torch import nn

from crossover.algorithms import buffers
from crossover.errors import Corrupt
from crossover.experiment import Experiment, Training
from crossover.learning import zoo
from crossover.learning.learner import Learner, encode_model
from crossover.stores.encoding import Vector, VectorKind

MANIFEST = {"classes": 10, "input_shape": [3, 32, 32]}


@pytest.mark.parametrize("model", ["small_cnn", "squeezenet"])
def test_a_saved_model_is_the_trained_one(model: str) -> None:
    """The saved file loads into a module of the model with the learner's parameters and buffers."""
    experiment = Experiment(name="test", architecture="spirt", training=Training(model=model))
    affine = {"scale": [1.0] * 3, "shift": [0.0] * 3}
    learner = Learner(experiment, classes=10, input_shape=(3, 32, 32), affine=affine)
    learner.initialise_model()
    buffers.tensor(learner.model)[learner.parameters :] = torch.rand(learner.buffers) + 0.5
    saved = load(encode_model(experiment, MANIFEST, Vector(VectorKind.MODEL, learner.model)))
    module = zoo.find_factory(model)(10, (3, 32, 32))
    module.load_state_dict(saved, strict=False)  # without BatchNorm's counts, which mean nothing here
    missing = set(module.state_dict()) - set(saved)
    assert all(name.endswith("num_batches_tracked") for name in missing)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(flat, buffers.tensor(learner.model)[: learner.parameters])
    statistics = [torch.empty(0)]
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            statistics += [layer.running_mean, layer.running_var]
    assert torch.equal(torch.cat(statistics), buffers.tensor(learner.model)[learner.parameters :])


def test_a_vector_of_another_model_is_refused() -> None:
    """Saving a vector of another length than the model's raises Corrupt."""
    experiment = Experiment(name="test", architecture="spirt")
    with pytest.raises(Corrupt, match="3 elements; small_cnn has 26490"):
        encode_model(experiment, MANIFEST, Vector(VectorKind.MODEL, memoryview(bytes(12))))
