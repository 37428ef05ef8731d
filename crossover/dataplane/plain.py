"""JSON that came from elsewhere, held against the shape that its reader relies on before anybody uses it.

A shape is a type (float: whole numbers too; None: null), or a text: this one; a tuple: one of these; [shape]: a list of such, [shape,
shape]: exactly two; a mapping: an object with these names, one that ends in "?" may be absent, others are let through; {str: shape}: an
object of any names, {int: shape}: of decimal ones.
"""

import json
from collections.abc import Iterator
from typing import Any

from crossover.errors import Corrupt


def read(body: bytes | str, shape: Any, *, key: str) -> Any:
    """The value of the JSON in `body`. Raises Corrupt, naming `key` and the place in it."""
    try:
        return expect(json.loads(body), shape, key=key)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{key}: {body[:80]!r} is not JSON: {error}") from None


def expect(value: Any, shape: Any, *, key: str) -> Any:
    """`value` if it has the shape, else Corrupt."""
    for wrong in misfits(value, shape):
        raise Corrupt(f"{key}: {wrong.removeprefix('.')}")
    return value


def misfits(value: Any, shape: Any, at: str = "") -> Iterator[str]:
    """The places of `value` that are not of the shape, and what was expected there."""
    match shape:
        case tuple() if not all(any(misfits(value, each)) for each in shape):
            return
        case dict() if isinstance(value, dict):
            names = value if (any_name := {str, int} & shape.keys()) else shape
            for name in names:
                known = name if any_name else name.removesuffix("?")
                if int in any_name and not name.isdecimal():
                    yield f"{at}.{name}: its name is no whole number"
                elif known in value:
                    yield from misfits(value[known], shape.get(name, shape.get(str, shape.get(int))), f"{at}.{known}")
                elif known == name:
                    yield f"{at}.{name} is not there"
        case list() if isinstance(value, list) and len(shape) in (1, len(value)):
            for n, each in enumerate(value):
                yield from misfits(each, shape[n % len(shape)], f"{at}[{n}]")
        case _ if value != shape and (shape is None or type(value) not in (shape, int if shape is float else shape)):
            yield f"{at or 'the whole'}: {json.dumps(value)[:60]} is not {_said(shape)}"


def _said(shape: Any) -> str:
    match shape:
        case tuple():
            return " or ".join(map(_said, shape))
        case dict():
            return "an object"
        case list():
            return "a list" if len(shape) == 1 else f"a list of {len(shape)}"
        case str():
            return repr(shape)
    return {None: "null", str: "a text", int: "a whole number", float: "a number"}.get(shape, "true or false")
