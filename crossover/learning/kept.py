"""Results that one command asks for several times, such as its data set, computed once within a block."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_kept = ContextVar[dict[Hashable, Any] | None]("kept", default=None)


@contextmanager
def keep_results() -> Iterator[None]:
    """Within the `with` block, let `compute_once` store the results it computes. At the end of the block they are discarded. An inner block
    starts without the results of the outer one, and threads that start within the block do not share its results.
    """
    before = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(before)


def compute_once(key: Hashable, compute: Callable[[], T]) -> T:
    """Return the result of `compute`. Within a block of `keep_results`, the result of an earlier call with an equal `key` is returned
    instead of calling it again: the same object, which must not be changed. If `compute` raises, nothing is kept, and the next call tries
    again.
    """
    known = _kept.get()
    if known is None:
        return compute()
    if key not in known:
        known[key] = compute()
    found: T = known[key]
    return found
