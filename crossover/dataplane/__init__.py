"""The data plane: how steps reach stores, databases and each other. Protocols here, one module per implementation beside it.

An implementation knows its server and nothing of training. `dataplane/connecting.py` chooses one by URL; `tests/conformance/` holds each to
the same suite.
"""

from crossover.dataplane.protocols import (
    Buffer,
    MessageBus,
    ObjectStore,
    StateKeys,
    TensorCompute,
    TensorStore,
)
from crossover.dataplane.vector import Vector, VectorKind

__all__ = ["Buffer", "MessageBus", "ObjectStore", "StateKeys", "TensorCompute", "TensorStore", "Vector", "VectorKind"]
