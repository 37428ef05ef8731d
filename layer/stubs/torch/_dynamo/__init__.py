"""The replacement of PyTorch's compiler: the functions that eager code calls, doing nothing."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


def disable(fn: Callable[..., Any] | None = None, *arguments: Any, **options: Any) -> Any:
    """Return the function unchanged; without one, return a decorator that does so."""
    return fn if fn is not None else lambda inner: inner


allow_in_graph = disallow_in_graph = forbid_in_graph = nonstrict_trace = disable


def graph_break(*arguments: Any, **options: Any) -> None:
    """Do nothing, because there is no graph to break or mark."""


mark_static = mark_dynamic = maybe_mark_dynamic = mark_static_address = reset = graph_break


def is_compiling() -> bool:
    """Return False, because nothing is ever compiled."""
    return False


is_dynamo_supported = is_compiling


@contextlib.contextmanager
def _nothing(*arguments: Any, **options: Any) -> Iterator[None]:
    """Do nothing when the context is entered and left."""
    yield


compiled_autograd = SimpleNamespace(
    _disable=_nothing, compiled_autograd_enabled=False, in_compiled_autograd_region=False
)


def optimize(*arguments: Any, **options: Any) -> Any:
    """Raise RuntimeError, because the Lambda layer contains no compiler."""
    raise RuntimeError("torch.compile: the Lambda layer carries no compiler; call the model as it is")
