"""What of a module is in the flat vectors, and what is left to it."""

import pytest
import torch
from torch import nn

from crossover.errors import ConfigError, Corrupt, Refused
from crossover.learning import batches
from crossover.learning.flat import FlatModel, flatten_module
from crossover.learning.learner import take_constants


class Warming(nn.Module):
    """A module that keeps its layer in evaluation mode from the third switch to training mode on, as a schedule of the user's own might."""

    def __init__(self) -> None:
        """Make one BatchNorm layer, and count from 0."""
        super().__init__()
        self.norm, self.seen = nn.BatchNorm1d(2), 0

    def train(self, mode: bool = True) -> "Warming":
        """Switch to training mode as usual, but keep the layer in evaluation mode from the third time on."""
        self.seen += mode
        super().train(mode)
        self.norm.train(mode and self.seen < 3)
        return self


def test_a_layer_that_changes_sides_is_refused_by_name() -> None:
    """A BatchNorm layer that is in training mode at some steps only raises Refused, which names it."""
    flat = FlatModel(Warming())
    flat.switch_to_training()
    with pytest.raises(Refused, match=r"BatchNorm layer norm is in training at some steps"):
        flat.switch_to_training()


class Skipping(nn.Module):
    """A module that leaves its layer out if its inputs sum to less than 0, as stochastic depth does at random (Huang et al. 2016)."""

    def __init__(self) -> None:
        """Make one BatchNorm layer."""
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised inputs, or the inputs themselves if they sum to less than 0."""
        return inputs if inputs.sum() < 0 else self.norm(inputs)


def test_a_layer_that_a_minibatch_leaves_out_is_named() -> None:
    """A module that leaves out its BatchNorm layer for a minibatch has a problem that names the layer."""
    flat = FlatModel(Skipping())
    for sign, found in ((1.0, ""), (-1.0, "leaves its BatchNorm layer norm out")):
        flat.switch_to_training()
        flat.module(sign * torch.ones(3, 2))
        assert flat.find_norm_problem()[: len(found) or None] == found


def frozen(seed: int) -> FlatModel:
    """Return a flat model with a frozen layer, frozen normalisation and a buffer, initialised by the seed."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Linear(2, 3).requires_grad_(False), nn.BatchNorm1d(3).requires_grad_(False), nn.Linear(3, 2)
    )
    module.register_buffer("table", torch.randn(4))
    return FlatModel(module)


def constants_of(flat: FlatModel) -> bytes:
    """Return the encoded constants of the model with the digest of its frozen part."""
    return batches.encode_tensors(flat.list_constants(), {"frozen": batches.compute_digest(flat.list_frozen())})


def test_the_vector_has_what_is_trained_and_moving_statistics() -> None:
    """The flat vector has the trainable parameters and the running statistics; frozen parameters and other buffers are apart."""
    flat = frozen(1)
    assert (flat.parameters, flat.buffers) == (8, 6)
    assert set(flat.list_frozen()) == {"0.weight", "0.bias", "1.weight", "1.bias"} and set(flat.list_constants()) == {
        "table"
    }
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).requires_grad_(False)
    module[2].requires_grad_(True)
    assert flatten_module(module).numel() == flat.model.numel()


def test_buffers_come_from_where_the_run_was_started() -> None:
    """A model takes over the constants that the machine which started the run has encoded."""
    one, other = frozen(1), frozen(1)
    one.list_constants()["table"].fill_(7.0)
    take_constants(other, constants_of(one), "task:factory")
    assert torch.equal(other.list_constants()["table"], torch.full((4,), 7.0))


def test_frozen_parameters_that_are_built_to_other_bits_are_refused_by_name() -> None:
    """Check that take_constants raises ConfigError, naming the parameters, if frozen parameters differ."""
    with pytest.raises(ConfigError, match=r"task:factory: its frozen parameters, 0\.weight, .* other bits here"):
        take_constants(frozen(2), constants_of(frozen(1)), "task:factory")


def test_the_constants_of_another_module_are_no_run_of_this_one() -> None:
    """Constants whose names are not those of the module raise Corrupt."""
    other = nn.Linear(2, 3)
    other.register_buffer("other", torch.ones(2))
    with pytest.raises(Corrupt, match="table of the run's model; this module has other"):
        take_constants(FlatModel(other), constants_of(frozen(1)), "task:factory")
