"""Vectors for the suites, and threads that start at once."""

import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from crossover.algorithms.buffers import view
from crossover.stores.encoding import Vector, VectorKind

T = TypeVar("T")


def vector(*values: float, kind: VectorKind = VectorKind.GRADIENT, samples: int = 0) -> Vector:
    """Return a vector of these float32 values."""
    return Vector(kind, memoryview(struct.pack(f"{len(values)}f", *values)), samples)


def of(tensor: Tensor, kind: VectorKind = VectorKind.GRADIENT, samples: int = 0) -> Vector:
    """Return a vector with the values of a tensor."""
    return Vector(kind, view(tensor), samples)


def random(elements: int, *, seed: int, scale: float = 1.0) -> Tensor:
    """Return a tensor of random normal values with zeros of either sign, equal values and tiny ones among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(elements, generator=generator) * scale
    special = torch.tensor([0.0, -0.0, 1.0, 1e-42])
    where = torch.randint(0, 8, (elements,), generator=generator)
    return torch.where(where < 4, special[where.clamp(max=3)], values) if elements > 3 else values


def at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Call `work(i)` for each i below `count`, in one thread each, all starting together, and return the results in order."""
    line = threading.Barrier(count, timeout=60)

    def start(index: int) -> T:
        """Wait until all threads are ready, then run the work."""
        line.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))
