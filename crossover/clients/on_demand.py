"""What is made when it is first asked for."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):
    """A property computed once per object. functools.cached_property of Python 3.11 holds one lock for all objects while it computes, and
    ours do I/O: an attempt that hangs would hang every other worker of an inline run.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # found there first from now on
        return value


class ByWorker(Mapping[int, T], Generic[T]):
    """Clients by worker, made when first asked for: one warm process serves several workers."""

    def __init__(self, workers: int, make: Callable[[int], T]) -> None:
        self._workers, self._make = workers, make
        self._made: dict[int, T] = {}

    def __getitem__(self, worker: int) -> T:
        if not 0 <= worker < self._workers:
            raise KeyError(worker)
        if worker not in self._made:
            self._made[worker] = self._make(worker)
        return self._made[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._workers))

    def __len__(self) -> int:
        return self._workers
