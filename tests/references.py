"""The definitions of averages and robust rules in numpy's float32, as straightforward as they can be told (docs/correctness.md, 2)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def mean(inputs: Sequence[Floats], weights: Sequence[int] | None = None) -> Floats:
    """Return the weighted mean of the vectors: summed in the given order, one division, products and sums rounded separately."""
    counts = weights or [1] * len(inputs)
    if len(inputs) == 1:
        return inputs[0].copy()
    if len(set(counts)) == 1:
        total, divisor = inputs[0].copy(), np.float32(len(inputs))
        for x in inputs[1:]:
            total = total + x
    else:
        total, divisor = np.float32(counts[0]) * inputs[0], np.float32(sum(counts))
        for count, x in zip(counts[1:], inputs[1:], strict=True):
            total = total + np.float32(count) * x
    return (total / divisor).astype(np.float32)


def trimmed_mean(inputs: Sequence[Floats], trim: int) -> Floats:
    """Return the mean of each element without its `trim` smallest and largest values."""
    rows = np.sort(np.stack(inputs), axis=0)[trim : len(inputs) - trim]
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    return np.asarray(total / np.float32(len(rows)), np.float32)


def median(inputs: Sequence[Floats]) -> Floats:
    """Return the median of each element."""
    rows = np.sort(np.stack(inputs), axis=0)
    middle = len(inputs) // 2
    both = rows[middle] if len(inputs) % 2 else (rows[middle - 1] + rows[middle]) * np.float32(0.5)
    return np.asarray(both, np.float32)


def krum(inputs: Sequence[Floats], *, faulty: int, select: int = 1) -> list[int]:
    """Return the indexes of the vectors that Krum chooses, in ascending order. `faulty`: number of assumed faulty vectors; `select`: number
    to choose.
    """
    rows = np.stack(inputs).astype(np.float64)
    distances = ((rows[:, None, :] - rows[None, :, :]) ** 2).sum(axis=2)
    scores = [sum(sorted(np.delete(row, i))[: len(inputs) - faulty - 2]) for i, row in enumerate(distances)]
    return sorted(sorted(range(len(inputs)), key=lambda i: (scores[i], i))[:select])
