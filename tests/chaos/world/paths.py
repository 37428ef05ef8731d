"""The part of Amazon States Language's reference paths and intrinsic functions that crossover/asl writes.

Source: AWS Step Functions Developer Guide, "Processing input and output", "Intrinsic functions".
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

Lookup = Callable[[Any, Mapping[str, Any]], Any]  # (state's input, context object) -> value
_TOKEN = re.compile(r"\s*(?:'((?:[^'\\]|\\.)*)'|(-?\d+)|(\${1,2}(?:\.\w+)*)|(States\.\w+)|([(),]))")


class NoSuchPath(Exception):
    """Error for a path that the data does not have (States.ParameterPathFailure)."""


def fill_template(template: Any, data: Any, context: Mapping[str, Any]) -> Any:
    """Return a Parameters, ItemSelector or ResultSelector template with its `.$` fields evaluated."""
    if isinstance(template, dict):
        return {
            name.removesuffix(".$"): compile_path(value)(data, context)
            if name.endswith(".$")
            else fill_template(value, data, context)
            for name, value in template.items()
        }
    return [fill_template(each, data, context) for each in template] if isinstance(template, list) else template


@lru_cache(maxsize=4_096)
def compile_path(text: str) -> Lookup:
    """Return a function that evaluates a path or an intrinsic function. Raises ValueError for what crossover/asl does not write."""
    look, end = _expression(text, 0)
    if end != len(text):
        raise ValueError(
            f"{text!r}: the virtual world reads paths and intrinsic functions as crossover/asl writes them"
        )
    return look


def _expression(text: str, at: int) -> tuple[Lookup, int]:
    """Parse an expression at position `at`. Return (function that evaluates it, position after it). Raises ValueError."""
    found = _TOKEN.match(text, at)
    if not found or found[5]:
        raise ValueError(f"{text!r}, character {at}: a path, a number, a text or an intrinsic function was expected")
    word, number, path, function = found[1], found[2], found[3], found[4]
    if function:
        return _call(text, function, found.end())
    if path:
        return _path(path), found.end()
    value = word.replace("\\'", "'") if number is None else int(number)
    return (lambda data, context: value), found.end()


def _path(path: str) -> Lookup:
    """Return a function that looks up a reference path such as `$.a.b`, or `$$.a` in the context object."""
    names, of_context = path.lstrip("$").split(".")[1:], path.startswith("$$")

    def look(data: Any, context: Mapping[str, Any]) -> Any:
        """Return the value at the path. Raises NoSuchPath."""
        value = context if of_context else data
        for name in names:
            if not isinstance(value, Mapping) or name not in value:
                raise NoSuchPath(path)
            value = value[name]
        return value

    return look


def _call(text: str, function: str, at: int) -> tuple[Lookup, int]:
    """Parse the arguments of an intrinsic function's call, whose opening bracket is at `at`. Return (function that evaluates the call,
    position after it). Raises ValueError.
    """
    given: list[Lookup] = []
    opening = _TOKEN.match(text, at)
    if not opening or opening[5] != "(" or function not in _FUNCTIONS:
        raise ValueError(f"{text!r}: {function} is no intrinsic function that crossover/asl writes")
    at = opening.end()
    while True:
        look, at = _expression(text, at)
        given.append(look)
        between = _TOKEN.match(text, at)
        if not between or between[5] not in (",", ")"):
            raise ValueError(f"{text!r}, character {at}: a comma or the closing bracket was expected")
        at = between.end()
        if between[5] == ")":
            return partial(_computed, _FUNCTIONS[function], given), at


def _computed(compute: Callable[..., Any], given: list[Lookup], data: Any, context: Mapping[str, Any]) -> Any:
    """Evaluate the arguments and return the function's result."""
    return compute(*(each(data, context) for each in given))


def _format(template: str, *values: Any) -> str:
    """Return the template with each `{}` replaced by a value, as States.Format does."""
    parts = template.split("{}")
    shown = [each if isinstance(each, str) else json.dumps(each) for each in values]
    return "".join(part + text for part, text in zip(parts, [*shown, ""], strict=True))


def _array_range(first: int, last: int, step: int) -> list[int]:
    """Return the numbers from `first` to `last`, both included, as States.ArrayRange does."""
    return list(range(first, last + 1, step))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "States.Format": _format,
    "States.ArrayRange": _array_range,
    "States.MathAdd": lambda one, other: one + other,
    "States.StringToJson": json.loads,
}
