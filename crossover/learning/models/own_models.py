"""Models of the user's own: what their factories return is looked at before it is trained."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from crossover import own_code, runtime
from crossover.algorithms.update import MOMENTUM
from crossover.learning.flat import moving_norms, trained
from crossover.own_code import faults

FIELD = "training.model"
_Layout = list[tuple[str, tuple[int, ...]]]


def checked(name: str, factory: Callable[..., Any], fit: Callable[[nn.Module], None]) -> Callable[..., nn.Module]:
    """`factory`, whose failures are told as the user's, and what `fit` makes of its module. Raises OwnCodeError where it raises, or
    returns what cannot be trained.
    """

    @wraps(factory, updated=())
    def built(*arguments: Any) -> nn.Module:
        with own_code.blame(FIELD, name, what=factory), own_code.building(FIELD, name):
            module = factory(*arguments)
        if not (problem := _other(module, known=(factory, *arguments))):
            fit(module)
            problem = _problem(module)
        if problem:
            raise faults.told(FIELD, name, problem, place=faults.of_definition(factory))
        found: nn.Module = module
        return found

    return built


def _other(module: object, *, known: tuple[Any, ...]) -> str:
    """Why it is no module with the parameters that it had before; empty where it is."""
    if not isinstance(module, nn.Module):
        return f"returned a {type(module).__name__}; a torch.nn.Module is expected"
    parameters = dict(module.named_parameters())
    if not parameters:
        return "returned a module without parameters: there is nothing to train"
    if lazy := [each for each, parameter in parameters.items() if is_lazy(parameter)]:
        return f"returned a module whose {lazy[0]} gets its shape from the first input; give its layer the shape"
    layout = [(each, tuple(parameter.shape)) for each, parameter in parameters.items()]
    layouts: dict[tuple[Any, ...], _Layout] = runtime.kept(
        "layouts of own models", dict
    )  # of what a factory returned first
    first = layouts.setdefault(known, layout)
    if layout != first:
        (before, now), *_ = [pair for pair in _paired(first, layout) if pair[0] != pair[1]]
        return f"returned another shape when called again: {before}, then {now}; it must depend on its arguments alone"
    return ""


def _problem(module: nn.Module) -> str:
    """Why it cannot be trained; empty where it can."""
    learnt = trained(module)
    if not learnt:
        return "returned a module whose parameters are all frozen: there is nothing to train"
    if unfit := {each: parameter for each, parameter in learnt.items() if parameter.dtype != torch.float32}:
        each, parameter = next(iter(unfit.items()))
        return (
            f"returned a module whose {each} is {parameter.dtype}; what is trained is torch.float32 here, which module.float() makes of it "
            "(training.precision: bf16 computes in bfloat16)"
        )
    if hooked := [each for each, parameter in learnt.items() if _hooks(parameter)]:
        return (
            f"returned a module whose {hooked[0]} has a hook on its gradient, which not every process would run alike; change the gradient "
            "in a torch.autograd.Function, or freeze what is not to move"
        )
    if twice := _sharing(module, learnt):
        return f"returned a module whose {twice} share memory, of which each has its own here; .clone() one, or make both one parameter"
    for each, norm in moving_norms(module).items():
        if norm.momentum != MOMENTUM:
            return (
                f"returned a module whose {each}.momentum is {norm.momentum}; running statistics move by {MOMENTUM} at each "
                f"synchronisation after one minibatch, else to the round's own: {MOMENTUM} is expected, or a layer kept in eval"
            )
    return ""


def _hooks(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))


def _sharing(module: nn.Module, learnt: dict[str, nn.Parameter]) -> str:
    """Which of what is trained has its memory in common with another parameter or buffer; empty: none."""
    owners: dict[int, str] = {}
    for name, each in [*learnt.items(), *module.named_parameters(), *module.named_buffers()]:
        owner = owners.get(at := each.untyped_storage().data_ptr(), name)
        if at and owner != name:
            return f"{owner} and {name}"
        if name in learnt:
            owners[at] = name
    return ""


def _paired(first: _Layout, layout: _Layout) -> list[tuple[str, str]]:
    longest = max(len(first), len(layout))
    one, other = (
        [f"{name} {shape}" for name, shape in each] + ["nothing"] * (longest - len(each)) for each in (first, layout)
    )
    return list(zip(one, other, strict=True))
