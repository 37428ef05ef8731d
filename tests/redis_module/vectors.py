"""Tensors on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.redis_module.servers import Client
from tests.references import Floats

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
    """Return the values as a float32 array."""
    return np.array(values, np.float32)


def put(client: Client, key: str, array: npt.NDArray[Any], *options: object) -> Any:
    """Store an array by AI.TENSORSET with a blob, and return the reply. `options`: words before the blob."""
    return client.execute_command(
        "AI.TENSORSET", key, NAMES[array.dtype], *array.shape, *options, "BLOB", array.tobytes()
    )


def get(client: Client, key: str) -> npt.NDArray[Any]:
    """Return the array that TENSOR.GET returns for the key."""
    dtype, shape, _, _, blob = client.execute_command("TENSOR.GET", key)
    return np.frombuffer(blob, dtype=DTYPES[dtype.decode()]).reshape(shape)


def same_bits(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    """Return whether two arrays have the same type, shape and bits."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
