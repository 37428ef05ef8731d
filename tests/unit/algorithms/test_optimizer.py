"""Optimizer steps on flat vectors equal torch.optim bit for bit; the buffer rule; nothing passed in changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from crossover.algorithms.optimizers import OPTIMIZERS, Update
from crossover.algorithms.updates import clip_gradient, step
from crossover.experiment import Clip, Training

SIZES = ((37, 5), (1000,), (3, 3, 3, 3))  # what the flat vector is made of: shaped and odd
COUNT = sum(int(torch.Size(size).numel()) for size in SIZES)


def random(seed: int, count: int = COUNT) -> torch.Tensor:
    """Return normally distributed numbers, the same for the same seed."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def parameters(flat: torch.Tensor) -> list[torch.nn.Parameter]:
    """Return parameters of the shapes in SIZES with the values of a flat vector, copied."""
    pieces = torch.split(flat, [int(torch.Size(size).numel()) for size in SIZES])
    return [torch.nn.Parameter(piece.clone().view(size)) for piece, size in zip(pieces, SIZES, strict=True)]


def set_gradients(shaped: list[torch.nn.Parameter], flat: torch.Tensor) -> None:
    """Set each parameter's gradient to its part of a flat vector, copied."""
    for parameter, piece in zip(shaped, torch.split(flat, [p.numel() for p in shaped]), strict=True):
        parameter.grad = piece.clone().view(parameter.shape)


def flat(shaped: list[torch.nn.Parameter]) -> torch.Tensor:
    """Return the parameters' values in one flat vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in shaped])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weight_decay": 0.01},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 5e-4},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    ],
)
def test_sgd_equals_torch_over_100_steps(settings: dict[str, Any]) -> None:
    """Check that 100 steps of SGD, at falling learning rates, have the bits of torch.optim.SGD."""
    model = random(0)
    state: tuple[torch.Tensor, ...] = ()
    shaped = parameters(model)
    optimizer = torch.optim.SGD(shaped, lr=0.1, **settings)
    for number in range(100):
        rate = 0.1 / (1 + number)
        optimizer.param_groups[0]["lr"] = rate
        gradient = random(number + 1)
        set_gradients(shaped, gradient)
        optimizer.step()
        model, state = step(model, gradient, state, Update(number=number, learning_rate=rate, **settings))
        assert torch.equal(model, flat(shaped)), number


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_equals_torch_over_100_steps(decoupled: bool, weight_decay: float) -> None:
    """Check that 100 steps of Adam, or AdamW if `decoupled`, have the bits of torch's."""
    model = random(0)
    shaped = parameters(model)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind(shaped, lr=1e-3, weight_decay=weight_decay)
    state: tuple[torch.Tensor, ...] = ()
    settings: dict[str, Any] = {"optimizer": "adamw" if decoupled else "adam", "weight_decay": weight_decay}
    for number in range(100):
        gradient = random(number)
        set_gradients(shaped, gradient)
        optimizer.step()
        model, state = step(model, gradient, state, Update(number=number, learning_rate=1e-3, **settings))
        assert torch.equal(model, flat(shaped)), number


def test_statistics_take_the_place_of_buffers() -> None:
    """A step replaces the model's buffers by the statistics at the end of the gradient, without computing with the old ones."""
    model, gradient = torch.tensor([1.0, 5.0, float("inf")]), torch.tensor([1.0, 2.0, 3.0])
    moved, _ = step(model, gradient, (), Update(learning_rate=0.5, buffers=2))
    assert moved.tolist() == [0.5, 2.0, 3.0]  # an infinite buffer does not survive as 0 * inf


def test_statistics_with_a_momentum_are_rounded_once() -> None:
    """A step with statistics_momentum mixes old buffers and new statistics, rounded once to float32."""
    model, gradient = random(1, 1000), random(2, 1000)
    update = Update(optimizer="adam", learning_rate=1.0, buffers=1000, statistics_momentum=0.1)
    moved, _ = step(model, gradient, (), update)
    expected = (0.1 * gradient.double() + (1 - 0.1) * model.double()).float()
    assert torch.equal(moved, expected)


def test_weight_decay_and_momentum_leave_the_buffers_alone() -> None:
    """Check that a step with weight decay and momentum moves the parameters as without buffers, and replaces the buffers by
    the statistics.
    """
    model, gradient, velocity = random(1, 10), random(2, 10), random(3, 6)
    settings: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}
    moved, (new,) = step(model, gradient, [velocity], Update(number=1, buffers=4, **settings))
    alone, _ = step(model[:6], gradient[:6], [velocity], Update(number=1, **settings))
    assert torch.equal(moved[:6], alone)
    assert torch.equal(moved[6:], gradient[6:])
    assert new.numel() == 6


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_passed_in_changes(name: str) -> None:
    """An optimizer step leaves model, gradient and state that it is given unchanged."""
    update = Update(
        optimizer=name,
        number=1,
        learning_rate=0.1,
        momentum=0.9,
        nesterov=True,
        weight_decay=0.1,
        buffers=3,
        statistics_momentum=0.1,
    )
    count = len(OPTIMIZERS[name].vectors(update.momentum))
    model, gradient, *state = given = [random(0, 12), random(1, 12), *(random(2 + i, 9).abs() for i in range(count))]
    before = [tensor.clone() for tensor in given]
    step(model, gradient, state, update)
    assert all(torch.equal(now, then) for now, then in zip(given, before, strict=True))


def test_misuse_is_named() -> None:
    """`step` raises ValueError for settings, numbers and shapes that do not fit."""
    plain = Update(learning_rate=0.1)
    with pytest.raises(ValueError, match="nesterov"):
        step(random(1), random(2), (), replace(plain, nesterov=True))
    with pytest.raises(ValueError, match="count from 1"):
        step(random(1), random(2), (), replace(plain, optimizer="adam", number=-1))
    with pytest.raises(ValueError, match=r"shape \(3,\) for a model of shape \(4,\)"):
        step(random(1, 4), random(2, 3), (), plain)
    with pytest.raises(ValueError, match="buffers: 5 of"):
        step(random(1, 4), random(2, 4), (), replace(plain, buffers=5))


@pytest.mark.parametrize(
    ("name", "built"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_clipping_betas_and_groups_of_decay_equal_torch(name: str, built: Any) -> None:
    """Clipped gradients, other betas and a parameter without weight decay give the bits of torch's optimizers over 20 steps."""
    model, betas = random(0), (0.8, 0.95)
    state: tuple[torch.Tensor, ...] = ()
    shaped = parameters(model)
    decay, spared = (
        {"params": [shaped[0], shaped[2]], "weight_decay": 0.1},
        {"params": [shaped[1]], "weight_decay": 0.0},
    )
    optimizer = built([decay, spared], lr=0.01, **({} if name == "sgd" else {"betas": betas}))
    asked = Training(optimizer=name, momentum=0.0, betas=betas, weight_decay=0.1, clip=Clip(norm=12.0))
    for number in range(20):
        gradient = random(number + 1)
        set_gradients(shaped, gradient * min(1.0, 12.0 / (float(gradient.double().norm()) + 1e-6)))
        optimizer.step()
        update = Update.from_training(asked, number=number, rate=0.01, buffers=0, sync_every=1, undecayed=[(185, 1185)])
        model, state = step(model, gradient, state, update)
        assert torch.equal(model, flat(shaped)), number


def test_a_clipped_gradient_is_torch_s_and_a_short_one_itself() -> None:
    """`clip_gradient` equals torch's clipping, and leaves a gradient shorter than the limit alone."""
    gradient = random(3, 40_000)
    parameter = torch.nn.Parameter(torch.zeros(40_000))
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 1.5)
    assert torch.allclose(clip_gradient(gradient, 1.5), parameter.grad, rtol=1e-6, atol=0)
    assert torch.equal(clip_gradient(gradient, 1e6), gradient)
