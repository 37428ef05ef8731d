"""One training step of MobileNet, batch 512: the learner against plain eager torch (float32, NCHW, gradients set to None), one thread each;
and one epoch on the local cloud against the computing inside it (benchmarks/epoch.py).

Each contestant has a process of its own, because the way memory is allocated is decided once per process. They take turns, so that other
load on the machine disturbs all of them alike. A figure is the median over the turns of the ratio within a turn.

    python -m benchmarks.step [--quick] [--batch 512] [--turns 7] [--minibatches 6]
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from benchmarks import epoch
from benchmarks.report import Figure, write

CONTESTANTS = ("plain", "fp32", "bf16")
_AFFINE = {"scale": [0.0159, 0.0161, 0.0150], "shift": [-1.99, -1.98, -1.71]}


def main() -> None:
    """Compare training steps of the learner and of a plain loop, and write the figures. With `--contestant`, serve steps to such a
    comparison in place of that.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--minibatches", type=int, default=6, help="per worker, in the epoch on the local cloud; 0: leave it out"
    )
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="batch 16, one turn, no epoch: to see that it runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.turns, arguments.minibatches = 16, 1, 0
    if arguments.contestant:
        serve_steps(arguments.contestant, arguments.batch)
        return
    seconds, memory_mb = measure_in_turns(arguments.batch, arguments.turns)
    figures = []
    for name, goal in (("fp32", ">= 2.5"), ("bf16", ">= 4")):
        ratios = [plain / own for plain, own in zip(seconds["plain"], seconds[name], strict=True)]
        with_goal = goal if name == "fp32" or has_bf16() else None  # without the instructions bf16 is emulated
        figures.append(
            Figure(
                f"MobileNet step, batch {arguments.batch}: plain / learner {name}, median of ratios",
                statistics.median(ratios),
                "x",
                with_goal,
            )
        )
    for name in CONTESTANTS:
        figures.append(Figure(f"  {name}: median of a step", statistics.median(seconds[name]), "s"))
        figures.append(Figure(f"  {name}: peak resident memory of its process", memory_mb[name], "MB"))
    if arguments.minibatches:
        figures += epoch.measure(batch=arguments.batch, minibatches=arguments.minibatches)
    write("step", figures)


def has_bf16() -> bool:
    """Return whether the processor has instructions for products of bf16 numbers (AVX512-BF16, AMX, or ARM's bf16 extension)."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags))


def measure_in_turns(batch: int, turns: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Run each contestant of CONTESTANTS in a process of its own, with one step per turn. Return (seconds of the steps by contestant, peak
    resident memory in MB by contestant). Two uncounted turns warm up. `batch`: minibatch size; `turns`: number of counted turns. Raises
    ValueError if a contestant's process ends early.
    """
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    memory_mb: dict[str, float] = {}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(_start_contestant(name, batch)) for name in CONTESTANTS}
        for process in processes.values():
            stack.callback(process.terminate)
        for turn in range(-2, turns):
            for name, process in processes.items():
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write("step\n")
                process.stdin.flush()
                spent_s, peak_mb = map(float, process.stdout.readline().split())
                memory_mb[name] = peak_mb
                if turn >= 0:
                    seconds[name].append(spent_s)
    return seconds, memory_mb


def _start_contestant(name: str, batch: int) -> "subprocess.Popen[str]":
    """Start the process of a contestant, which runs one step for each line that it reads from its standard input, and return it. `name`:
    one of CONTESTANTS; `batch`: minibatch size.
    """
    command = [sys.executable, "-m", "benchmarks.step", "--contestant", name, "--batch", str(batch)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve_steps(name: str, batch: int) -> None:
    """Run a contestant in this process: for each line of standard input run one step, and print its seconds and the process's peak memory
    in MB. Returns when standard input ends. `name`: one of CONTESTANTS; `batch`: minibatch size.
    """
    import resource

    step = make_plain_step(batch) if name == "plain" else make_learner_step(batch, precision=name)
    for _ in sys.stdin:
        start = perf_counter()
        step()
        spent_s = perf_counter() - start
        print(spent_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)


def make_plain_step(batch: int) -> Callable[[], object]:
    """Return a function that computes the gradient of one batch as a tutorial would write it: plain layers, a float32 batch in PyTorch's
    default memory format, gradients set to None before. Limits PyTorch to one thread in this process. `batch`: minibatch size.
    """
    import torch
    from torch import nn
    from torch.nn import functional as F

    from crossover.learning.zoo import find_factory

    torch.set_num_threads(1)
    model = find_factory("mobilenet")(10, (3, 32, 32))
    model.features = nn.Sequential(*model.features)  # without what a Chain saves
    images, labels = _draw_samples(batch)
    scale, shift = (torch.tensor(_AFFINE[name]).view(1, 3, 1, 1) for name in ("scale", "shift"))

    def step() -> None:
        """Compute the loss and the gradients of one batch by plain PyTorch."""
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(images.float() * scale + shift), labels).backward()  # type: ignore[no-untyped-call]

    return step


def make_learner_step(batch: int, *, precision: str, threads: int = 1) -> Callable[[], object]:
    """Return a function that computes one gradient with the project's learner. `batch`: minibatch size; `precision`: value of
    training.precision; `threads`: number of threads.
    """
    from crossover.experiment import Experiment, from_plain
    from crossover.learning.batches import Batch
    from crossover.learning.learner import Learner

    settings = Experiment(name="step", architecture="spirt").to_plain()
    settings["training"] |= {"model": "mobilenet", "precision": precision, "threads": threads}
    own = Learner(from_plain(settings), classes=10, input_shape=(3, 32, 32), affine=_AFFINE)
    own.initialise_model()
    images, labels = _draw_samples(batch)
    samples = Batch(images, labels, labels)
    return lambda: own.compute_gradient(samples, epoch=1, round=0, worker=0, minibatch=0)


def _draw_samples(batch: int):  # type: ignore[no-untyped-def]  # tensors, and torch stays out of the parent
    """Return (`batch` random images of CIFAR-10's shape as uint8, their random labels). The same at every call."""
    import torch

    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8, generator=random)
    return images, torch.randint(0, 10, (batch,), generator=random)


if __name__ == "__main__":
    main()
