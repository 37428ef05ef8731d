"""What a module of the user's own does besides what is carried from worker to worker, seen on one minibatch."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from zlib import crc32

import torch
from torch import Tensor, nn

from crossover.algorithms import buffers
from crossover.learning import tensor_file
from crossover.learning.flat import FlatModel, trained
from crossover.learning.models.adapters import DOWN, UP

Held = dict[str, object]  # by name, what tells two values apart


def problem(
    flat: FlatModel, began: Held, compute: Callable[[], object], evaluate: Callable[[], object], *, decays: bool
) -> str:
    """Why a run would not be what torch makes of the module, in words; empty where it would. `began`: what `as_built` found at first.
    `compute`: the same gradient each time. `decays`: whether there is a weight decay.
    """
    for name, layer in flat.module.named_modules():
        if getattr(layer, "max_norm", None) is not None:
            return f"has {name}.max_norm, by which a forward pass changes weights, in one process alone; scale what it returns instead"
    if unsaved := tensor_file.problem(flat.module.state_dict() | flat.constants()):
        return f"returned a module whose {unsaved}"
    calls, reached, learnt = Counter[str](), set[str](), trained(flat.module)
    hooks = [layer.register_forward_pre_hook(partial(_count, calls, name)) for name, layer in flat.norms.items()]
    for name, each in learnt.items():
        note = partial(_noted, reached, name)
        hooks.append(each.register_post_accumulate_grad_hook(note))  # type: ignore[no-untyped-call]
    compute()
    for hook in hooks:
        hook.remove()
    once = _held(_all(flat.module))
    compute()
    changed = _differing(once, _held(_all(flat.module)))
    evaluate()
    if changed := _differing(began, as_built(flat)) + changed:
        return (
            f"changes {changed[0]} in a forward pass, which stays in one process: what the optimizer does, and BatchNorm's statistics, are "
            "carried from worker to worker; make it one of these, compute it from the inputs, or leave it as it was built"
        )
    if twice := [name for name, count in calls.items() if count > 1]:
        return (
            f"calls its BatchNorm layer {twice[0]} {calls[twice[0]]} times in a forward pass, and the statistics of one call are "
            "carried; give each use a layer of its own"
        )
    idle = [name for name in learnt if name not in reached]
    if passed := [name for name in idle if f".{DOWN}." in f".{name}" or f".{UP}." in f".{name}"]:
        layer = passed[0].rpartition(".lora_")[0]
        return (
            f"takes {layer}'s weight without calling the layer, as torch.nn.MultiheadAttention does with out_proj: its adapter would do "
            "nothing; leave it out of training.adapters.targets"
        )
    if decays and idle:
        return (
            f"has {idle[0]}, which takes no part in the loss: training.weight_decay would shrink it here, where torch leaves it alone; "
            "freeze it by requires_grad_(False), or leave it out"
        )
    return ""


def built_again(flat: FlatModel, again: FlatModel, compute: Callable[[], object]) -> str:
    """What differs between two builds from one seed, in words; empty: nothing. `compute`: the gradient of `again`, after another minibatch
    than that whose gradient `flat` has.
    """
    if not torch.equal(flat.model, again.model) or tensor_file.digest(
        flat.frozen() | flat.constants()
    ) != tensor_file.digest(again.frozen() | again.constants()):
        return (
            "returned other weights or buffers when called again with the same seed; it must draw them from torch alone"
        )
    compute()
    if not torch.equal(flat.gradient, again.gradient):
        return (
            "has another gradient of a minibatch, at the same weights, after another minibatch: it keeps something between forward passes, "
            "or draws random numbers elsewhere than from torch; nothing of that is carried from worker to worker"
        )
    return ""


def _all(module: nn.Module) -> dict[str, object]:
    """Every number and tensor that a layer holds, by name."""
    return {
        f"{name}.{attribute}".lstrip("."): value
        for name, layer in module.named_modules()
        for attribute, value in {**layer._buffers, **vars(layer)}.items()
    }


def as_built(flat: FlatModel) -> Held:
    """What no forward pass may change: all parameters, and buffers other than moving statistics."""
    return _held(flat.constants() | dict(flat.module.named_parameters()))


def _held(values: Mapping[str, object]) -> Held:
    """Of those that are numbers or tensors, what tells two values apart."""
    found: Held = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            found[name] = tuple(value.shape), value.dtype, crc32(buffers.view(value.detach().contiguous()))
        elif isinstance(value, int | float):
            found[name] = repr(value)  # NaN equals itself
    return found


def _differing(one: Held, other: Held) -> list[str]:
    return [name for name in one | other if one.get(name) != other.get(name)]


def _count(calls: Counter[str], name: str, *_: object) -> None:
    calls[name] += 1


def _noted(reached: set[str], name: str, _: Tensor) -> None:
    reached.add(name)
