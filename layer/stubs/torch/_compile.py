"""The replacement of PyTorch's file of this name: the layer has no compiler that would have to be kept away from a function."""

import functools
from collections.abc import Callable
from typing import Any


def _disable_dynamo(fn: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
    """Return the function itself, also if it is used as a decorator with arguments."""
    return functools.partial(_disable_dynamo, recursive=recursive) if fn is None else fn
