"""Random numbers from keyed hashes: generators that are made where they are used, and one hash per sample for augmentation."""

import torch
from torch import Tensor

from crossover.algorithms.seeds import seed


def generator(purpose: str, *key: int) -> torch.Generator:
    """A CPU generator of its own, seeded by the keyed hash. Nothing global is read or changed."""
    return torch.Generator().manual_seed(seed(purpose, *key))


def hashes(ids: Tensor, purpose: str, *key: int) -> Tensor:
    """One 63-bit hash per id, (N,) int64, all at once: splitmix64 started at the keyed seed plus id times the golden ratio."""
    start = seed(purpose, *key)
    mixed = ids.to(torch.int64) * _signed(0x9E3779B97F4A7C15) + _signed(start)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(mixed ^ _shifted(mixed, 31), 1)


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit number: torch's integers wrap around as two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A logical right shift: torch's `>>` repeats the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
