"""Which parameters of a module are trained: adapters beside its Linear layers, those that the YAML names, or what the factory left.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv 2106.09685, 2021): W x becomes W x + (alpha / rank) B A x, A
(rank, in) drawn as a Linear layer's weights are, B (out, rank) zeros. Names are peft's: `<layer>.lora_A.weight`, `<layer>.lora_B.weight`.
"""

import inspect
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crossover.errors import ConfigError
from crossover.experiment import Adapters, Training
from crossover.learning.models import weights
from crossover.learning.samples import PADDING

_SHOWN = 20  # names in a message
DOWN, UP = "lora_A", "lora_B"


def fit(training: Training, module: nn.Module) -> None:
    """A mask for one whose `forward` asks for it; the base's weights, where there is one; adapters beside the targets, drawn from torch's
    generator; all else is frozen but for `training.trainable`. Raises ConfigError on patterns that match nothing, a rank above a layer's
    width, a base that does not fit.
    """
    asked = inspect.signature(module.forward).parameters.get("mask")
    if asked is not None and asked.default is asked.empty:
        module.register_forward_pre_hook(_masked)
    wanted, named = training.adapters, training.trainable
    if wanted.targets or named is not None:
        parameters = dict(module.named_parameters(remove_duplicate=False))
        learnt = matching(named or (), parameters, field="training.trainable", of="parameters")
        kept = {id(parameters[name]) for name in learnt}  # one that is used twice has two names
        for each in parameters.values():
            each.requires_grad_(id(each) in kept)
    if training.weights.file:
        weights.load(training, module)
    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    targets = matching(wanted.targets, linear, field="training.adapters.targets", of="Linear layers")
    for name in targets:
        _adapt(name, linear[name], wanted)


def matching(patterns: Iterable[str], names: Iterable[str], *, field: str, of: str) -> list[str]:
    """Those of `names` that match any of the patterns, in order. Raises ConfigError on a pattern that matches none."""
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = f"{', '.join(names[:_SHOWN]) or 'none'}{more}"
            raise ConfigError(f"{field}: {pattern!r} matches none of the model's {of}, which are {shown}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def adapted(module: nn.Module) -> dict[str, nn.Linear]:
    """The layers that have an adapter, by name."""
    return {name: each for name, each in module.named_modules() if isinstance(each, nn.Linear) and hasattr(each, DOWN)}


def merged(module: nn.Module, wanted: Adapters) -> dict[str, Tensor]:
    """The state_dict of the module as its factory made it, with what adapters add in the layers' own weights."""
    state: Mapping[str, Tensor] = module.state_dict()
    layers = adapted(module)
    parts = {f"{name}.{part}.weight".lstrip(".") for name in layers for part in (DOWN, UP)}
    found = {name: value for name, value in state.items() if name not in parts}
    for name, layer in layers.items():
        up, down = (getattr(layer, part).weight.detach() for part in (UP, DOWN))
        more = up @ down * (wanted.alpha / wanted.rank)
        found[f"{name}.weight".lstrip(".")] = (layer.weight.detach() + more).to(layer.weight.dtype)
    return found


def _adapt(name: str, layer: nn.Linear, wanted: Adapters) -> None:
    width = min(layer.in_features, layer.out_features)
    if wanted.rank > width:
        raise ConfigError(
            f"training.adapters.rank: {wanted.rank} is above the width of {name}, which has {layer.in_features} inputs and "
            f"{layer.out_features} outputs; at most {width} is expected, or targets without it"
        )
    if hasattr(layer, DOWN) or hasattr(layer, UP):
        raise ConfigError(f"training.adapters.targets: {name} has a {DOWN} or {UP} of its own; leave it out")
    down, up = (
        nn.Linear(layer.in_features, wanted.rank, bias=False),
        nn.Linear(wanted.rank, layer.out_features, bias=False),
    )
    nn.init.zeros_(up.weight)
    layer.add_module(DOWN, down)
    layer.add_module(UP, up)
    # A hook leaves the layer what it is, by its own names; torch's fused transformer, which would pass the adapter by, steps aside for one.
    layer.register_forward_hook(partial(_added, wanted.alpha / wanted.rank), with_kwargs=True)


def _masked(module: Any, given: tuple[Any, ...]) -> Any:
    """Tokens and their mask, of tokens and padding."""
    mask = given[0] != PADDING
    return given[0].masked_fill(~mask, 0), mask


def _added(scale: float, layer: Any, given: tuple[Tensor, ...], named: Mapping[str, Tensor], output: Tensor) -> Tensor:
    inputs = given[0] if given else named["input"]
    more: Tensor = layer.lora_B(layer.lora_A(inputs.to(torch.float32))) * scale
    return output + more.to(output.dtype)
