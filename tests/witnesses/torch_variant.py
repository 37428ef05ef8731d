"""The tensor module with torch, and a model for it: what judges of its scripts and models need."""

import sys
from pathlib import Path

from tests.redis_module.servers import build


def torch_module() -> Path:
    """Compiled where it is missing, which takes minutes."""
    return build("torch", "tensors-torch.so", PYTHON=sys.executable)


def archive(folder: Path) -> Path:
    """A TorchScript archive of (a + b, a - b)."""
    import torch

    class Both(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return a + b, a - b

    path = folder / "both.pt"
    torch.jit.save(torch.jit.trace(Both(), (torch.ones(2), torch.ones(2))), path)  # type: ignore[no-untyped-call]
    return path
