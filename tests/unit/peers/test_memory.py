"""VGG-11 on a peer: said beforehand where it does not fit, and what a gradient step at 224x224 really takes."""

import subprocess
import sys
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import ConfigError
from crossover.experiment import Experiment, Training
from crossover.training import peer

PARAMETERS = 128_807_306  # VGG-11 for ten classes
EXPERIMENT = Experiment(name="vgg", architecture="p2p_instance", training=Training(model="vgg11", batch_size=1))


def check(free_mb: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the memory of a peer on a t2.medium as if it had `free_mb` available, infinite if that is not known."""
    monkeypatch.setattr(peer, "find_free_bytes", lambda: free_mb * 2**20)
    facts = SimpleNamespace(parameters=PARAMETERS, buffers=0)
    ctx: Any = SimpleNamespace(
        facts=facts, experiment=replace(EXPERIMENT, p2p=replace(EXPERIMENT.p2p, instance_type="t2.medium"))
    )
    peer.check_memory(ctx)


def test_too_little_for_vgg11_is_said_with_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little free memory raises ConfigError with the model's parameters, needed memory, free memory and the setting to change."""
    with pytest.raises(ConfigError) as told:
        check(3_900.0, monkeypatch)
    said = str(told.value)
    assert said.startswith("training.model: vgg11 has 128,807,306 parameters; a peer holds 8 such vectors, 3,931 MB")
    assert "3,900 MB are free here" in said
    assert "a larger p2p.instance_type than t2.medium" in said


def test_the_setting_is_that_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about too little memory names the instance type setting of the experiment's own architecture."""
    monkeypatch.setattr(peer, "find_free_bytes", lambda: 0.0)
    ctx: Any = SimpleNamespace(
        facts=SimpleNamespace(parameters=PARAMETERS, buffers=0), experiment=replace(EXPERIMENT, architecture="gpu")
    )
    with pytest.raises(ConfigError, match=r"use a larger gpu\.instance_type than g4dn\.xlarge, or a smaller model"):
        peer.check_memory(ctx)


@pytest.mark.parametrize("free_mb", [3_932.0, inf])
def test_enough_or_unknown_memory_is_no_reason_to_refuse(free_mb: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of memory raises no error with `free_mb` free, or if that is unknown (inf)."""
    check(free_mb, monkeypatch)


STEP = """
import re, torch
from crossover.learning.batches import Batch
from crossover.learning.learner import Learner
from tests.unit.peers.test_memory import EXPERIMENT, PARAMETERS
torch.set_num_threads(1)
def peak_kb():  # of this program: getrusage would begin with the peak of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
before = peak_kb()
learner = Learner(EXPERIMENT, classes=10, input_shape=(3, 224, 224), affine={"scale": [1 / 255] * 3, "shift": [0.0] * 3})
learner.initialise_model()
assert learner.parameters == PARAMETERS
images = torch.arange(3 * 224 * 224).remainder(256).to(torch.uint8).view(1, 3, 224, 224)
batch = Batch(images, torch.tensor([3]), torch.tensor([0]))
assert learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0) > 0
assert any(learner.gradient.cast("f")[:100])
print((peak_kb() - before) // 1024)
"""


@pytest.mark.slow
def test_a_gradient_of_vgg11_at_224_takes_its_share_of_the_eight_vectors() -> None:
    """Computing a gradient of vgg11 at 224 pixels takes between two and five vectors' memory; a peer has room for eight."""
    ended = subprocess.run([sys.executable, "-c", STEP], text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2_000:]
    vector_mb = 4 * PARAMETERS / 2**20
    assert 2 * vector_mb < int(ended.stdout) < 5 * vector_mb
