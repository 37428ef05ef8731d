"""Encoding and decoding of a gradient as a share of the step that computes it: MobileNet, batch 512, one thread, in the same run.

    python -m benchmarks.compression [--quick]      --quick: batch 8, few rounds: to see that it runs

Encoding is all that a worker does before others have what they need of it. If a codec has error feedback by default, decoding its own
contribution is part of that. Decoding is reading one worker's contribution; for PowerSGD it is the product of the factors, and the
residual. The figures are ratios of medians taken in turns.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks import step
from benchmarks.filter import medians_s
from benchmarks.report import Figure, write
from crossover.algorithms import buffers, contributions
from crossover.experiment import Exchange, Experiment, Training
from crossover.learning.learner import build_skeleton

CODECS = {
    "fp16": (Exchange(compression="fp16"), "<= 1"),
    "QSGD, 8 bit": (Exchange(compression="qsgd", bits=8), "<= 1"),
    "QSGD, 4 bit": (Exchange(compression="qsgd", bits=4), None),
    "top-k, 1 %": (Exchange(compression="top_k", share=0.01), "<= 1"),
    "PowerSGD, rank 4": (Exchange(compression="powersgd", rank=4), "<= 3"),
}
Work = dict[str, tuple[Callable[[], object], Callable[[], object]]]


def work(gradient: Tensor, shapes: list[torch.Size]) -> Work:
    """Return (preparation, timed function) by name; the preparation is not timed."""
    found: Work = {}
    parameters = sum(shape.numel() for shape in shapes)
    for name, (exchange, _) in CODECS.items():
        experiment = Experiment(name="compression", architecture="all-reduce", exchange=exchange)
        own = contributions.build_encoder(experiment, worker=0, shapes=shapes, parameters=parameters)
        if isinstance(own, contributions.TwoExchanges):
            found |= _two_exchanges(name, own, gradient)
        else:
            assert isinstance(own, contributions.OneExchange)
            found |= _one_exchange(name, own, gradient)
    return found


def _one_exchange(name: str, own: contributions.OneExchange, gradient: Tensor) -> Work:
    """Return the work of a codec with one exchange per round."""
    contribution, out = own.begin(gradient, round=0), torch.empty_like(gradient)
    (body,) = contribution.bodies.values()
    data = buffers.view(body)

    def encode() -> None:
        own.begin(gradient, round=1)

    def decode() -> None:
        contribution.read(data, out=out, first=0, what=name)

    return {f"{name}: encoding": (lambda: own.proceed(gradient), encode), f"{name}: decoding": (_nothing, decode)}


def _two_exchanges(name: str, own: contributions.TwoExchanges, gradient: Tensor) -> Work:
    """Return the work of a codec with two exchanges per round."""

    def encode() -> Tensor:
        following = own.proceed(own.begin(gradient, round=1).values)
        assert isinstance(following, contributions.Contribution)
        return following.values

    mean = torch.empty(0)

    def before() -> None:
        nonlocal mean
        mean = encode()

    return {f"{name}: encoding": (_nothing, encode), f"{name}: decoding": (before, lambda: own.proceed(mean))}


def _nothing() -> None:
    """Do nothing: the preparation of work that needs none."""


def main() -> None:
    """Measure each codec beside a training step and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="batch 8, few rounds: to see that it runs")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    batch, rounds = (8, 2) if quick else (512, 7)
    compute = step.learner(batch, precision="fp32")
    shapes = [
        parameter.shape for parameter in build_skeleton(Training(model="mobilenet"), 10, (3, 32, 32)).parameters()
    ]
    statistics = 21_888
    gradient = torch.randn(
        sum(shape.numel() for shape in shapes) + statistics, generator=torch.Generator().manual_seed(1)
    )
    found = medians_s({"step": (_nothing, compute), **work(gradient, shapes)}, rounds=rounds)
    figures = [Figure(f"a step of MobileNet, batch {batch}", found["step"], "s")]
    for name, (_, goal) in CODECS.items():
        for what in ("encoding", "decoding"):
            spent_s = found[f"{name}: {what}"]
            figures.append(Figure(f"{name}: {what}", spent_s * 1_000, "ms"))
            figures.append(
                Figure(f"{name}: {what} / step", 100 * spent_s / found["step"], "%", None if quick else goal)
            )
    write("compression", figures)


if __name__ == "__main__":
    main()
