"""Adapters and what else of a model is trained: what is refused, and what a file then holds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from crossover import user_code
from crossover.algorithms import buffers
from crossover.errors import ConfigError, UserError
from crossover.experiment import Adapters, Data, Experiment, Training
from crossover.learning.datasets import load as load_data
from crossover.learning.learner import encode_model, learner_for
from crossover.learning.staging import take_first_samples
from crossover.stores.encoding import Vector, VectorKind
from tests.architectures import zoo

TARGETS = Adapters(rank=2, alpha=4.0, targets=("body.linear?",))
MANIFEST = {"classes": zoo.CLASSES, "input_shape": [zoo.PLACES, zoo.WIDTH]}


def experiment_of(**training: object) -> Experiment:
    """Return an experiment that trains adapters of the zoo's transformer; the zoo becomes the folder of user code."""
    user_code.set_folders(Path(zoo.__file__).parent)
    asked = Training(**{"model": "zoo:transformer", "adapters": TARGETS, **training})  # type: ignore[arg-type]
    data = Data(dataset="zoo:rows", validation=0.25, preprocess="none")
    return Experiment(name="tuned", architecture="all-reduce", training=asked, data=data)


def tried(experiment: Experiment) -> None:
    """Load the experiment's data and try out its model on the first samples."""
    dataset = load_data(experiment)
    learner_for(experiment, dataset).try_out(take_first_samples(dataset))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (
            {"adapters": Adapters(targets=("*.query",))},
            r"'\*\.query' matches none .* layers, which are .*body\.linear1",
        ),
        ({"adapters": Adapters(rank=9, targets=("body.linear1",))}, r"rank: 9 is above .*body\.linear1, .*8 inputs"),
        (
            {"adapters": Adapters(rank=2, targets=("*.out_proj", "body.linear1"))},
            r"body\.self_attn\.out_proj's weight without calling",
        ),
        ({"trainable": ("tail.*",)}, r"training\.trainable: 'tail\.\*' matches none .*, which are .*head\.weight"),
    ],
)
def test_what_would_train_nothing_is_refused_before_anything_starts(training: dict[str, object], said: str) -> None:
    """Settings of adapters or trainable parameters that match no layer, or train nothing, raise UserError with `said` if they are tried."""
    with pytest.raises(UserError, match=said):
        tried(experiment_of(**training))


def test_many_names_are_cut() -> None:
    """An error that lists 25 layers names 20 of them and the number of the others."""
    from crossover.learning.weights import match_names

    with pytest.raises(ConfigError, match=r"layers, which are l0, .*, l19 and 5 more$"):
        match_names(["x"], [f"l{number}" for number in range(25)], field="f", of="layers")


def test_a_fused_transformer_does_not_pass_adapters_by() -> None:
    """Changing the adapters changes the loss of an evaluation, although torch evaluates encoder layers in one kernel."""
    experiment = experiment_of()
    dataset = load_data(experiment)
    learner = learner_for(experiment, dataset)
    learner.initialise_model()
    batch = take_first_samples(dataset)
    before = learner.evaluate([batch])
    buffers.tensor(learner.model).add_(0.5)
    assert learner.evaluate([batch]).loss != before.loss


def saved(experiment: Experiment, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors of the model file that is saved for the trained vector, by name."""
    held = Vector(VectorKind.MODEL, buffers.view(vector))
    found: dict[str, torch.Tensor] = load(encode_model(experiment, MANIFEST, held))
    return found


def test_a_file_has_all_or_the_adapters_or_the_base_with_them_in_its_weights() -> None:
    """The saved file has all tensors, only the trained ones, or the base's names with the adapters added to the weights, by `save`."""
    experiment = experiment_of(trainable=("head.*",))
    learner = learner_for(experiment, load_data(experiment))
    learner.initialise_model()
    vector = torch.randn(learner.parameters + learner.buffers)
    every, alone, merged = (
        saved(replace(experiment, training=replace(experiment.training, save=save)), vector)  # type: ignore[arg-type]
        for save in ("all", "adapters", "merged")
    )
    layers = ("body.linear1", "body.linear2")
    own = {f"{layer}.lora_{part}.weight" for layer in layers for part in "AB"}
    assert alone.keys() == own | {"head.weight", "head.bias"}
    assert sum(value.numel() for value in alone.values()) == learner.parameters
    assert all(torch.equal(value, every[name]) for name, value in alone.items())
    plain = zoo.transformer(zoo.CLASSES, ())
    plain.load_state_dict(merged, strict=True)
    assert merged.keys() == every.keys() - own
    for layer in layers:
        more = every[f"{layer}.lora_B.weight"] @ every[f"{layer}.lora_A.weight"] * 2
        assert torch.allclose(merged[f"{layer}.weight"], every[f"{layer}.weight"] + more)


def test_the_seed_decides_the_adapters() -> None:
    """Equal seeds give equal initial models with adapters, other seeds others."""
    one, same, other = (
        bytes(learner_for(replace(experiment_of(), seed=seed), load_data(experiment_of())).initialise_model())
        for seed in (1, 1, 2)
    )
    assert one == same != other
