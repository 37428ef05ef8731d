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
from benchmarks.filter import measure_medians_s
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


def build_work(gradient: Tensor, shapes: list[torch.Size]) -> Work:
    """Return what is to be timed: for each codec of CODECS its encoding and its decoding, by name ("fp16: encoding"), each as (preparation,
    timed function). Preparations are not timed. `gradient`: vector to encode; `shapes`: shapes of the model's parameters, in the order of
    `gradient`.
    """
    found: Work = {}
    parameters = sum(shape.numel() for shape in shapes)
    for name, (exchange, _) in CODECS.items():
        experiment = Experiment(name="compression", architecture="all-reduce", exchange=exchange)
        own = contributions.build_encoder(experiment, worker=0, shapes=shapes, parameters=parameters)
        if isinstance(own, contributions.TwoExchanges):
            found |= _build_two_exchange_work(name, own, gradient)
        else:
            assert isinstance(own, contributions.OneExchange)
            found |= _build_one_exchange_work(name, own, gradient)
    return found


def _build_one_exchange_work(name: str, own: contributions.OneExchange, gradient: Tensor) -> Work:
    """Return what is to be timed for a codec with one exchange per round: by name, (preparation, timed function). `name`: the codec's;
    `own`: its encoder, whose state the functions change; `gradient`: vector to encode.
    """
    contribution, out = own.begin(gradient, round=0), torch.empty_like(gradient)
    (body,) = contribution.bodies.values()
    data = buffers.view(body)

    def encode() -> None:
        """Encode the gradient for the next round."""
        own.begin(gradient, round=1)

    def decode() -> None:
        """Decode one worker's contribution into `out`."""
        contribution.read(data, out=out, first=0, what=name)

    return {f"{name}: encoding": (lambda: own.proceed(gradient), encode), f"{name}: decoding": (_do_nothing, decode)}


def _build_two_exchange_work(name: str, own: contributions.TwoExchanges, gradient: Tensor) -> Work:
    """Return what is to be timed for a codec with two exchanges per round: by name, (preparation, timed function). `name`: the codec's;
    `own`: its encoder, whose state the functions change; `gradient`: vector to encode.
    """

    def encode() -> Tensor:
        """Encode the gradient for both exchanges of a round, and return the values of the second contribution."""
        following = own.proceed(own.begin(gradient, round=1).values)
        assert isinstance(following, contributions.Contribution)
        return following.values

    mean = torch.empty(0)

    def refresh_mean() -> None:
        """Set `mean`, the input of decoding, to a freshly encoded contribution."""
        nonlocal mean
        mean = encode()

    return {f"{name}: encoding": (_do_nothing, encode), f"{name}: decoding": (refresh_mean, lambda: own.proceed(mean))}


def _do_nothing() -> None:
    """Do nothing: the preparation of work that needs none."""


def main() -> None:
    """Time encoding and decoding with each codec beside a training step of MobileNet on one thread, print the figures, and write them to
    the file compression.json in the folder OUT of benchmarks/report.py. The command's option --quick takes 8 images instead of 512 and 2
    rounds instead of 7, and compares with no goal.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="batch 8, few rounds: to see that it runs")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    batch, rounds = (8, 2) if quick else (512, 7)
    compute = step.make_learner_step(batch, precision="fp32")
    shapes = [
        parameter.shape for parameter in build_skeleton(Training(model="mobilenet"), 10, (3, 32, 32)).parameters()
    ]
    statistics = 21_888
    gradient = torch.randn(
        sum(shape.numel() for shape in shapes) + statistics, generator=torch.Generator().manual_seed(1)
    )
    found = measure_medians_s({"step": (_do_nothing, compute), **build_work(gradient, shapes)}, rounds=rounds)
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
