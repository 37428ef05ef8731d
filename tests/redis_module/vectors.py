"""Tensors on the wire, and straightforward references for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.redis_module.servers import Client

Floats = npt.NDArray[np.float32]

DTYPES: dict[str, type[np.generic]] = {
    "FLOAT": np.float32,
    "DOUBLE": np.float64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "BOOL": np.bool_,
}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def floats(values: object) -> Floats:
    return np.array(values, np.float32)


def put(client: Client, key: str, array: npt.NDArray[Any], *options: object) -> Any:
    """AI.TENSORSET with a blob; options stand before it."""
    return client.execute_command(
        "AI.TENSORSET", key, NAMES[array.dtype], *array.shape, *options, "BLOB", array.tobytes()
    )


def get(client: Client, key: str) -> npt.NDArray[Any]:
    """TENSOR.GET as an array."""
    dtype, shape, _, _, blob = client.execute_command("TENSOR.GET", key)
    return np.frombuffer(blob, dtype=DTYPES[dtype.decode()]).reshape(shape)


def same_bits(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def mean(inputs: Sequence[Floats], weights: Sequence[int] | None = None) -> Floats:
    """Sum in the given order, one division; products and sums rounded separately."""
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
    rows = np.sort(np.stack(inputs), axis=0)[trim : len(inputs) - trim]
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    return np.asarray(total / np.float32(len(rows)), np.float32)


def median(inputs: Sequence[Floats]) -> Floats:
    rows = np.sort(np.stack(inputs), axis=0)
    middle = len(inputs) // 2
    both = rows[middle] if len(inputs) % 2 else (rows[middle - 1] + rows[middle]) * np.float32(0.5)
    return np.asarray(both, np.float32)


def krum(inputs: Sequence[Floats], *, faulty: int, select: int = 1) -> list[int]:
    """The chosen inputs' indexes, ascending."""
    rows = np.stack(inputs).astype(np.float64)
    distances = ((rows[:, None, :] - rows[None, :, :]) ** 2).sum(axis=2)
    scores = [sum(sorted(np.delete(row, i))[: len(inputs) - faulty - 2]) for i, row in enumerate(distances)]
    return sorted(sorted(range(len(inputs)), key=lambda i: (scores[i], i))[:select])
