"""A GPU worker against the plain loop that one would write first: images per second, in one run.

    python -m benchmarks.gpu [--quick] [--batch 512] [--seconds 10]

ResNet-18 (the CIFAR variant) and MobileNet on CIFAR-shaped images: bfloat16 (float16 with loss scaling on GPUs without it), channels_last,
batches copied from pinned memory while the last one is computed, the gradient brought back to the host as the exchange needs it; against
float32 in PyTorch's own memory format with a copy before each step.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.nn import functional as F

from benchmarks.report import Figure, write
from crossover.experiment import Experiment, Training
from crossover.learning import zoo
from crossover.learning.batches import Batch

MODELS = ("resnet18_cifar", "mobilenet")
SHAPE, CLASSES = (3, 32, 32), 10
GOAL = ">= 1.5"
AFFINE: dict[str, Any] = {"scale": [1 / 255] * 3, "shift": [0.0] * 3}


def main() -> int:
    """Measure a GPU worker and a plain training loop in turns, write the figures, and return the exit status, which is 0. Without a GPU
    nothing is measured or written.
    """
    options = argparse.ArgumentParser()
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--quick", action="store_true", help="batch 32, one second: to see that it runs")
    given = options.parse_args()
    if given.quick:
        given.batch, given.seconds = 32, 1.0
    if not torch.cuda.is_available():
        print(
            "benchmarks.gpu: no GPU here; nothing was measured (the path without one is covered by tests/architectures/test_gpu.py)"
        )
        return 0
    figures = []
    for model in MODELS:
        batches = _draw_batches(given.batch)
        steps = {"worker": _make_worker_step(model, given.batch, batches), "plain": _make_plain_step(model, batches)}
        measured = _measure_alternating(steps, given.batch, given.seconds)
        figures += [Figure(f"{model}, {name}", statistics.median(each), "img/s") for name, each in measured.items()]
        ratios = [ours / plain for ours, plain in zip(measured["worker"], measured["plain"], strict=True)]
        figures.append(Figure(f"{model}, worker / plain", statistics.median(ratios), "x", GOAL))
    write("gpu", figures)
    return 0


def _draw_batches(count: int) -> list[Batch]:
    """Return four batches of `count` random images with random labels. The same at every call."""
    random = torch.Generator().manual_seed(1)
    return [
        Batch(
            torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=random),
            torch.randint(0, CLASSES, (count,), generator=random),
            torch.arange(count),
        )
        for _ in range(4)
    ]


def _make_worker_step(model: str, count: int, batches: list[Batch]) -> Callable[[int], None]:
    """Return a function that runs one step of the project's GPU worker, given the step's number. `model`: a name of MODELS; `count`: images
    in a batch; `batches`: used in turn.
    """
    from crossover.learning.device import NATIVE_BF16, DeviceLearner

    half: Literal["bf16", "fp16"] = "bf16" if torch.cuda.get_device_capability() >= NATIVE_BF16 else "fp16"
    training = Training(model=model, batch_size=count, precision=half, memory_format="channels_last")
    experiment = replace(Experiment(name="bench", architecture="gpu"), training=training)
    device = torch.device("cuda")
    learner = DeviceLearner(experiment, classes=CLASSES, input_shape=SHAPE, affine=AFFINE, device=device)
    learner.initialise_model()
    ahead = [learner.copy_to_device(batches[0], epoch=1)]

    def step(number: int) -> None:
        """Compute one gradient with the learner, while the next batch is copied to the device. `number`: of the step, from 0."""
        batch = ahead.pop()
        ahead.append(learner.copy_to_device(batches[(number + 1) % len(batches)], epoch=1))
        learner.compute_gradient(batch, epoch=1, round=number, worker=0, minibatch=0)

    return step


def _make_plain_step(model: str, batches: list[Batch]) -> Callable[[int], None]:
    """Return a function that runs one step of a plain training loop, given the step's number. `model`: a name of MODELS; `batches`: used in
    turn.
    """
    network = zoo.find_factory(model)(CLASSES, SHAPE).cuda().train()

    def step(number: int) -> None:
        """Copy batch number `number` to the GPU, compute one gradient by plain PyTorch, and wait until it is finished."""
        batch = batches[number % len(batches)]
        images = batch.inputs.cuda().float() / 255
        network.zero_grad()
        F.cross_entropy(network(images), batch.labels.cuda()).backward()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()

    return step


def _measure_alternating(steps: dict[str, Callable[[int], None]], count: int, seconds: float) -> dict[str, list[float]]:
    """Return {name: images per second of the step function, one value for each of eight slices of time}. Slices alternate, so that a
    changing clock rate affects all alike; five steps of each warm up. `steps`: step functions by name, which get the step's number;
    `count`: images per step; `seconds`: about twice the time that each function gets in all.
    """
    for step in steps.values():
        for number in range(5):
            step(number)
    measured: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(8):
        for name, step in steps.items():
            began, number = time.perf_counter(), 0
            while time.perf_counter() - began < seconds / 16:
                step(number)
                number += 1
            measured[name].append(count * number / (time.perf_counter() - began))
    return measured


if __name__ == "__main__":
    raise SystemExit(main())
