"""Memory that the C library keeps, and gives back when it is told to; models that have no room."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from crossover import user_code
from crossover.errors import ConfigError
from crossover.experiment import Experiment, Training
from crossover.learning import fitness, memory
from crossover.learning.learner import Learner

CODE = """
from pathlib import Path
from crossover.learning.memory import release_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

pieces = [bytes(60_000) for _ in range(4_000)]
last = bytes(60_000)  # above them all: what lies below it stays with the heap
del pieces
before = resident_mb()
assert release_freed_memory()
print(before - resident_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_memory_is_given_back() -> None:
    """A process that frees 240 MB returns more than 100 MB of them to the system when it is told to."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 100  # of 240 MB, of which some were given back before


LARGE_MODEL = """
import torch
from torch import nn

class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Parameter(torch.zeros(40_000_000))

    def forward(self, inputs):
        raise AssertionError("computed, though its gradient does not fit")

def network(classes, input_shape):
    return Large()
"""


def build_learner(training: Training) -> None:
    """Build the learner of a model with two classes and four inputs."""
    own = Experiment(name="large", architecture="single", training=training)
    Learner(own, classes=2, input_shape=(4,), affine={"scale": [1.0], "shift": [0.0]})


def measure(training: Training) -> None:
    """Measure a model with two classes and four inputs."""
    fitness.measure_model(training, classes=2, sample=torch.zeros(4))


@pytest.mark.parametrize("use", [build_learner, measure])
def test_a_model_whose_gradient_does_not_fit_is_refused_before_its_weights_are_copied(
    use: Callable[[Training], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose weights and gradient exceed the free memory raises ConfigError with both sizes. `use`: builds or measures the model."""
    (tmp_path / "large_net.py").write_text(LARGE_MODEL)
    monkeypatch.chdir(tmp_path)
    user_code.set_folders(tmp_path)
    monkeypatch.setattr(memory, "find_free_bytes", lambda: 300e6)
    words = r"training.model: .large_net:network. has 40,000,000 parameters.* 320 MB.* 300 MB of memory are free"
    with pytest.raises(ConfigError, match=words):
        use(Training(model="large_net:network"))
