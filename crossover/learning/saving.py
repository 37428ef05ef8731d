"""The trained model as a safetensors file: names and shapes of the module's own state_dict, readable by any safetensors library."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from crossover.algorithms import buffers
from crossover.dataplane.vector import Vector
from crossover.errors import Corrupt
from crossover.experiment import Experiment
from crossover.learning.flat import FlatModel
from crossover.learning.models import registry

_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def safetensors_bytes(experiment: Experiment, manifest: Mapping[str, Any], vector: Vector) -> bytes:
    """A model vector as a safetensors file. Raises Corrupt where it does not fit the experiment's model."""
    classes, shape = manifest["classes"], tuple(manifest["input_shape"])
    flat = FlatModel(registry.factory(experiment.training.model)(classes, shape))
    if vector.elements != flat.model.numel():
        raise Corrupt(f"model: {vector.elements} elements; {experiment.training.model} has {flat.model.numel()}")
    flat.model.copy_(buffers.tensor(vector.data))
    flat.evaluate()
    names: dict[str, Any] = {"__metadata__": {"model": experiment.training.model, "classes": str(classes)}}
    blocks, offset = [], 0
    for name, value in flat.module.state_dict().items():
        block = buffers.view(value.detach().contiguous())
        names[name] = {
            "dtype": _KINDS[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, offset + block.nbytes],
        }
        blocks.append(block)
        offset += block.nbytes
    head = json.dumps(names).encode()
    head += b" " * (-len(head) % 8)  # the format: 8 bytes of length, JSON padded with blanks, then the tensors
    return b"".join([len(head).to_bytes(8, "little"), head, *blocks])
