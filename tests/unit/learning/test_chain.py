"""A chain of convolutions against the same layers in nn.Sequential: numbers, what is kept for the gradients, what is left behind."""

import copy
import gc
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from crossover.learning import layers
from crossover.learning.layers import Chain, ConvNorm


def units(*, last: bool = True) -> Sequence[ConvNorm]:
    """Return one unit of each kind that MobileNet and ResNet have: dense, depthwise with and without stride, pointwise. `last`: the last
    one has an activation.
    """
    return [
        ConvNorm(3, 8, 3),
        ConvNorm(8, 8, 3, groups=8),
        ConvNorm(8, 16, 1),
        ConvNorm(16, 16, 3, stride=2, groups=16),
        ConvNorm(16, 16, 3, groups=16),
        ConvNorm(16, 12, 3, **({} if last else {"activation": None})),
    ]


def both(*, last: bool = True) -> tuple[Chain, nn.Sequential]:
    """Return a fused chain and the same modules in a plain nn.Sequential, copied. `last`: the last unit has an activation."""
    torch.manual_seed(1)
    found = Chain(*units(last=last))
    for unit in found:  # values that zero and one would hide
        nn.init.uniform_(unit.norm.weight, 0.5, 1.5)
        nn.init.uniform_(unit.norm.bias, -0.5, 0.5)
    return found, nn.Sequential(*copy.deepcopy(list(found)))


def images(format: torch.memory_format = torch.channels_last, *, batch: int = 6, seed: int = 2) -> Tensor:
    """Return random images in the memory format, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, 4, 4, generator=random).contiguous(memory_format=format)


def relative(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference as a share of the largest wanted magnitude."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def step(module: nn.Module, values: Tensor, *, low: bool = False) -> Tensor:
    """Take one forward and one backward pass and return the output; the gradients are in the module. `low`: in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        out: Tensor = module(values)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    (out.float() * weights).sum().backward()
    return out.detach()


@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("last", [True, False], ids=["relu last", "no activation last"])
@pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format])
def test_a_step_is_that_of_the_layers_one_by_one(low: bool, last: bool, format: torch.memory_format) -> None:
    """A forward and backward pass of a fused chain gives the outputs and buffers of nn.Sequential, and its gradients nearly."""
    own, plain = both(last=last)
    values = images(format).requires_grad_()
    reference = images(format).requires_grad_()
    assert torch.equal(step(own, values, low=low), step(plain, reference, low=low))
    within = 0.02 if low else 1e-4
    assert values.grad is not None and reference.grad is not None
    assert relative(values.grad, reference.grad) < within
    for (name, found), wanted in zip(own.named_parameters(), plain.parameters(), strict=True):
        assert found.grad is not None and wanted.grad is not None
        assert relative(found.grad, wanted.grad) < within, name
    for (name, buffer), known in zip(own.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(buffer, known), name


def test_evaluation_is_the_same_to_the_bit() -> None:
    """Check that in evaluation mode a Chain gives the bits of nn.Sequential, with and without recording gradients."""
    own, plain = both()
    step(own, images())
    step(plain, images())
    with torch.inference_mode():
        assert torch.equal(own.eval()(images(seed=3)), plain.eval()(images(seed=3)))
    assert torch.equal(own(images(seed=3)), plain(images(seed=3)))  # with gradients, by the running statistics


def kept(module: nn.Module, values: Tensor) -> int:
    """Return the bytes of activations that the module keeps from the forward to the backward pass."""
    own = {each.data_ptr() for each in (*module.parameters(), *module.buffers())}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        """Note the bytes of a tensor that is kept, unless it is one of the module's own, and return it."""
        if tensor.data_ptr() not in own:
            found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor.detach()  # itself would be a cycle that nobody collects

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module(values)
    del out
    return sum(found.values())


def test_half_of_the_activations_are_kept() -> None:
    """A fused chain keeps less than 62 % of the activation bytes that nn.Sequential keeps."""
    own, plain = both()
    values = images(batch=64)
    assert kept(own, values) < 0.62 * kept(plain, values)


def test_graphs_side_by_side_do_not_disturb_each_other() -> None:
    """Two forward passes before two backward passes give the gradients of nn.Sequential."""
    own, plain = both()
    first, second = images(seed=4), images(seed=5, batch=9)
    for module in (own, plain):
        losses = [module(values).square().mean() for values in (first, second)]
        losses[0].backward()
        losses[1].backward()
    for (name, found), wanted in zip(own.named_parameters(), plain.parameters(), strict=True):
        assert found.grad is not None and wanted.grad is not None
        assert relative(found.grad, wanted.grad) < 1e-4, name


def test_nothing_is_left_behind_after_a_step() -> None:
    """The scratch memory of a fused chain is freed after the backward pass."""
    own, _ = both()
    out = own(images())
    lives = [layers._own.scratch() is not None]  # outside the assertion, which would hold what it looks at
    out.sum().backward()
    del out
    gc.collect()
    lives.append(layers._own.scratch() is not None)
    assert lives == [True, False]


def test_a_single_value_per_channel_is_refused_as_batch_norm_does() -> None:
    """Check that a Chain raises torch's ValueError for one value per channel."""
    own, plain = both()
    single = torch.zeros(1, 3, 1, 1)
    for module in (own, plain):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            module(single)


def test_a_unit_without_relu_belongs_at_the_end() -> None:
    """A chain with a unit without activation before the last one raises ValueError."""
    with pytest.raises(ValueError, match="every ConvNorm but the last"):
        Chain(ConvNorm(3, 4, 3, activation=None), ConvNorm(4, 4, 3))


def test_a_frozen_layer_gets_no_gradient() -> None:
    """Check that in a Chain a frozen convolution has no gradient, and the one before it has one."""
    own, _ = both()
    own[2].convolution.weight.requires_grad_(False)
    step(own, images())
    assert own[2].convolution.weight.grad is None and own[1].convolution.weight.grad is not None
