"""The replacement of PyTorch's file of this name: the layer has no compiler that would have to be kept away from a function."""

import functools
from collections.abc import Callable
from typing import Any


def _disable_dynamo(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
    """Return the function unchanged; without one, return a decorator that does so. `recursive`: not used."""
    return functools.partial(_disable_dynamo, recursive=recursive) if fn is None else fn
