"""Counting what a step takes: nothing of the step stays in memory."""

import gc
import subprocess
import sys

import torch

from crossover.experiment import Training
from crossover.learning import fitness, layers


def test_counting_leaves_nothing_behind() -> None:
    """Measuring a model frees the scratch memory of its layers."""
    counted = fitness.measure_model(Training(model="mobilenet"), classes=10, sample=torch.zeros(3, 32, 32))
    assert counted.kept_bytes > 0
    gc.collect()
    lives = layers._own.scratch() is not None  # outside the assertion, which would hold what it looks at
    assert not lives


def test_a_transformers_matrices_are_counted() -> None:
    """The multiply-accumulates of a transformer layer include its matrix products, although torch evaluates it by one fused operation."""
    layer = torch.nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
    assert fitness.measure_module(layer, torch.zeros(16, 32)).macs >= 16 * (4 * 32 * 32 + 2 * 32 * 64)


COUNT = """
import sys, torch
from crossover.learning import fitness
fitness.measure_module(torch.nn.Linear(5, 3), torch.zeros(5))
sys.exit("torch._dynamo" in sys.modules)
"""


def test_counting_imports_no_compiler() -> None:
    """Measuring a model does not import torch's compiler, which would take longer than measuring."""
    subprocess.run([sys.executable, "-c", COUNT], check=True, timeout=300)
