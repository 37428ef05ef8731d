"""Models of the user's own: what their factories return is looked at before it is trained."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from crossover import own_code, runtime
from crossover.own_code import faults

FIELD = "training.model"
_Layout = list[tuple[str, tuple[int, ...]]]


def checked(name: str, factory: Callable[..., Any]) -> Callable[..., nn.Module]:
    """`factory`, whose failures are told as the user's. Raises OwnCodeError where it raises, or returns what cannot be trained."""

    @wraps(factory, updated=())
    def built(*arguments: Any) -> nn.Module:
        with own_code.blame(FIELD, name, what=factory), own_code.building(FIELD, name):
            module = factory(*arguments)
        if problem := _problem(module, known=(factory, *arguments)):
            raise faults.told(FIELD, name, problem, place=faults.of_definition(factory))
        found: nn.Module = module
        return found

    return built


def _problem(module: object, *, known: tuple[Any, ...]) -> str:
    """Why it cannot be trained; empty where it can."""
    if not isinstance(module, nn.Module):
        return f"returned a {type(module).__name__}; a torch.nn.Module is expected"
    parameters = dict(module.named_parameters())
    if not parameters:
        return "returned a module without parameters: there is nothing to train"
    if lazy := [each for each, parameter in parameters.items() if is_lazy(parameter)]:
        return f"returned a module whose {lazy[0]} gets its shape from the first input; give its layer the shape"
    if unfit := {each: parameter for each, parameter in parameters.items() if not parameter.is_floating_point()}:
        each, parameter = next(iter(unfit.items()))
        return f"returned a module whose {each} is {parameter.dtype}; parameters of float are expected"
    layout = [(each, tuple(parameter.shape)) for each, parameter in parameters.items()]
    layouts: dict[tuple[Any, ...], _Layout] = runtime.kept(
        "layouts of own models", dict
    )  # of what a factory returned first
    first = layouts.setdefault(known, layout)
    if layout != first:
        (before, now), *_ = [pair for pair in _paired(first, layout) if pair[0] != pair[1]]
        return f"returned another shape when called again: {before}, then {now}; it must depend on its arguments alone"
    return ""


def _paired(first: _Layout, layout: _Layout) -> list[tuple[str, str]]:
    longest = max(len(first), len(layout))
    one, other = (
        [f"{name} {shape}" for name, shape in each] + ["nothing"] * (longest - len(each)) for each in (first, layout)
    )
    return list(zip(one, other, strict=True))
