"""Tensors by name as one safetensors file, which any safetensors library reads: 8 bytes of length, JSON, then the tensors."""

import hashlib
import json
import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crossover.algorithms import buffers
from crossover.errors import Corrupt

_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def problem(tensors: Mapping[str, Any]) -> str:
    """Why these have no place in such a file, in words; empty where they have."""
    for name, value in tensors.items():
        kind = value.dtype if isinstance(value, Tensor) and value.layout == torch.strided else type(value).__name__
        if kind not in _KINDS:
            return f"{name} is {kind}, which has no place in model.safetensors"
    return ""


def encode(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> bytes:
    """The file's bytes; `about`: what else it says."""
    names: dict[str, Any] = {"__metadata__": about}
    blocks, offset = [], 0
    for name, value in tensors.items():
        block = buffers.view(value.detach().contiguous())
        names[name] = {
            "dtype": _KINDS[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + block.nbytes],
        }
        blocks.append(block)
        offset += block.nbytes
    head = json.dumps(names).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *blocks])


def decode(body: bytes | mmap.mmap) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(the tensors over `body`'s memory, what else it says) of a file of ours. Raises Corrupt where it is none."""
    view, kinds = memoryview(body), {kind: dtype for dtype, kind in _KINDS.items()}
    start = 8 + int.from_bytes(view[:8], "little")
    try:
        names = json.loads(bytes(view[8:start]))
        about = names.pop("__metadata__", {})  # which others leave out
        tensors = {}
        for name, each in names.items():
            first, end = each["data_offsets"]
            tensors[name] = buffers.tensor(view[start + first : start + end], kinds[each["dtype"]]).view(each["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise Corrupt(f"tensor file: {len(body)} bytes that are none: {error}") from error
    return tensors, about


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names and values; empty where there are none."""
    found = hashlib.sha256()
    for name, value in tensors.items():
        found.update(name.encode())
        found.update(buffers.view(value.detach().contiguous()))
    return found.hexdigest() if tensors else ""
