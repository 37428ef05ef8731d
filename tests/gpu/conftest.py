"""The device of these tests: the processor as a stand-in, or the GPU under `make gpu-check`."""

import os

import pytest
import torch

from crossover.learning import device as device_learning


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Return the device of CROSSOVER_CHECK_DEVICE, by default the processor, and let the programs of this process use it. TF32 is off,
    because fp32 is compared with the processor's.
    """
    found = torch.device(os.environ.get("CROSSOVER_CHECK_DEVICE", "cpu"))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(device_learning, "choose_device", lambda rank_on_instance: found)
    return found
