"""Networks: the published parameter counts, every input size, and helpful words about names that are not there."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from crossover.errors import ConfigError
from crossover.learning import layers, zoo


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("mobilenet", 10, 3_217_226),
        ("vgg11", 1000, 132_863_336),
        ("squeezenet", 1000, 1_235_496),
        ("mobilenet_v3_small", 1000, 2_542_856),
        ("resnet18", 1000, 11_689_512),
        ("resnet50", 1000, 25_557_032),
        ("resnet18_cifar", 10, 11_173_962),
        ("resnet50_cifar", 10, 23_520_842),
        ("small_cnn", 10, 26_266),
    ],
)
def test_parameter_counts(name: str, classes: int, parameters: int) -> None:
    """The built-in model `name` has `parameters` parameters for `classes` classes."""
    with torch.device("meta"):
        model = zoo.find_factory(name)(classes, (3, 32, 32))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 65, 64)])
@pytest.mark.parametrize("name", sorted(zoo.MODEL_FACTORIES.keys() - {"vgg11"}))
def test_every_input_size(name: str, shape: tuple[int, int, int]) -> None:
    """The built-in model `name` returns finite outputs for images of `shape`."""
    model = zoo.find_factory(name)(7, shape).eval()
    with torch.inference_mode():
        logits = model(torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    assert logits.shape == (2, 7)
    assert bool(logits.isfinite().all())


def test_mobilenets_layers_begin_to_turn_at_rates_of_one_order() -> None:
    """The gradients of MobileNet's layers relative to their weights differ by less than a factor of 100 at the start."""
    torch.manual_seed(1)
    model = zoo.find_factory("mobilenet")(10, (3, 32, 32))
    images = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    F.cross_entropy(model(images), torch.arange(64) % 10).backward()
    turns = [
        float(module.weight.grad.norm() / module.weight.detach().norm())
        for module in model.modules()
        if isinstance(module, nn.Conv2d) and module.weight.grad is not None
    ]
    assert len(turns) == 27
    assert max(turns) < 100 * min(turns)


def test_vgg11_takes_small_images() -> None:
    """Check that VGG-11 gives logits for images of 28x28 pixels."""
    with torch.device("meta"):
        model = zoo.find_factory("vgg11")(10, (1, 28, 28))
        assert model(torch.empty(2, 1, 28, 28)).shape == (2, 10)


def test_an_unknown_name_gets_the_likely_one_and_all_others() -> None:
    """Check that the error for an unknown model suggests a similar name, if there is one, and lists all models."""
    with pytest.raises(ConfigError, match=r"'resnet-18' is unknown \(did you mean resnet18\?\); one of mobilenet, "):
        zoo.find_factory("resnet-18")
    with pytest.raises(ConfigError, match="'zzz' is unknown; one of"):
        zoo.find_factory("zzz")


def test_a_factory_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's factory is found by its name; a missing, malformed or wrong name raises ConfigError."""
    module = ModuleType("own_models")
    module.linear = lambda classes, shape: nn.Linear(shape[0], classes)  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_models", module)
    assert zoo.find_factory("own_models:linear")(3, (4, 1, 1)).weight.shape == (3, 4)
    for name, message in (
        ("own_models:missing", "defines no 'missing'"),
        ("no_such_package:model", "there is no module no_such_package"),
        (":model", "is no package.module:name"),
        ("own_models:number", "is of type int; a function"),
    ):
        with pytest.raises(ConfigError, match=message):
            zoo.find_factory(name)


def test_dropout_draws_from_its_generator_alone() -> None:
    """Dropout draws from its own generator, keeps three quarters at 4/3 of their value, and does nothing in evaluation."""
    layer = layers.Dropout(0.25)
    values = torch.ones(100, 100)
    before = torch.random.get_rng_state()
    layer.generator = torch.Generator().manual_seed(1)
    first = layer(values)
    layer.generator.manual_seed(1)
    assert torch.equal(layer(values), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sorted(set(first.flatten().tolist())) == [0.0, pytest.approx(4 / 3)]
    assert 0.72 < float((first > 0).float().mean()) < 0.78
    assert torch.equal(layer.eval()(values), values)


@pytest.mark.parametrize(("stride", "size"), [(1, 8), (2, 8), (1, 2), (2, 5)])
def test_the_bf16_depthwise_gradient_is_the_plain_one_more_precisely(stride: int, size: int) -> None:
    """The project's bf16 depthwise convolution is as close to float32 as torch's own, or closer."""
    random = torch.Generator().manual_seed(1)
    own = layers.DepthwiseConv2d(16, 16, 3, stride, padding=1, groups=16, bias=False)
    nn.init.normal_(own.weight, generator=random)
    # Values that bf16 holds exactly: forward and backward then differ by their sums' rounding alone.
    own.weight.data = own.weight.data.bfloat16().float()
    images = torch.randn(6, 16, size, size, generator=random).bfloat16().float()
    images = images.contiguous(memory_format=torch.channels_last)

    def gradients(form: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return output, gradient of the images and gradient of the weight: by the own layer, by PyTorch in bfloat16, or in float32."""
        leaf, weight = images.clone().requires_grad_(), own.weight
        own.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=form != "float32"):
            plain = F.conv2d(leaf, weight, None, stride, 1, 1, 16)
            out = own(leaf) if form == "own" else plain
        out.float().square().sum().backward()
        assert leaf.grad is not None and weight.grad is not None
        return out.detach().float(), leaf.grad, weight.grad

    exact, torchs, ours = (gradients(form) for form in ("float32", "torch", "own"))
    assert torch.equal(ours[0], torchs[0])
    for ours_, torchs_, exact_ in zip(ours[1:], torchs[1:], exact[1:], strict=True):
        scale = float(exact_.abs().max())
        assert float((ours_ - exact_).abs().max()) <= float((torchs_ - exact_).abs().max()) + 0.01 * scale
