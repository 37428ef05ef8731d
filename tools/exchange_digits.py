"""The table of accuracies in docs/exchange.md: the reference trained on the digits with each setting of the exchange, and what does not end
with its bits trained inline, seed by seed beside the same seed with gradients after every minibatch.

    python -m tools.exchange_digits [--processes 2]
"""

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from crossover import validation
from crossover.experiment import Exchange, Experiment, Outer, PeerToPeer
from crossover.learning.datasets import load
from crossover.learning.reference import train_reference
from crossover.running.inline import run_inline
from functions.mlless.settings import MLLess

SEEDS = range(1, 11)
T_95 = 2.262  # Student's t of 9 degrees of freedom, two-sided: ten pairs
SYNCHRONOUS = Exchange(every=1)
SETTINGS = (  # an epoch is 6 minibatches of a worker
    Exchange(every="epoch"),
    Exchange(every="epoch", what="model"),
    Exchange(every="epoch", what="delta"),
    Exchange(every="epoch", what="delta", outer=Outer(momentum=0.5)),
    Exchange(every=1, compression="fp16"),
    Exchange(every=1, compression="qsgd", bits=8),
    Exchange(every=1, compression="top_k", share=0.01),
    Exchange(every=1, compression="powersgd", rank=4),
    Exchange(every="epoch", what="delta", outer=Outer(momentum=0.5), compression="top_k", share=0.01),
    Exchange(every="epoch", what="delta", outer=Outer(momentum=0.5), compression="powersgd", rank=4),
)


def list_inexact_experiments(own: Experiment) -> dict[str, Experiment]:
    """Return the experiments whose trained model differs in its bits from that of the reference (MLLess and P2P), by the name of their line
    in the table. `own`: experiment from which they are varied.
    """
    mlless = replace(own, architecture="mlless", exchange=Exchange())
    peers = replace(own, architecture="p2p_instance", exchange=SYNCHRONOUS)
    unhurried = PeerToPeer(mode="asynchronous", min_gradients=own.workers - 1)
    return {
        "MLLess, threshold 0.7": mlless.with_settings(MLLess(threshold=0.7)),
        "MLLess, threshold 0.3": mlless.with_settings(MLLess(threshold=0.3)),
        "P2P, synchronous, momentum 0": replace(peers, training=replace(own.training, momentum=0.0)),
        "P2P, asynchronous, momentum 0": replace(peers, training=replace(own.training, momentum=0.0), p2p=unhurried),
    }


def train_accuracy(experiment: Experiment) -> float:
    """Train as the experiment says, and return the validation accuracy of the last epoch in percent. AllReduce is trained with the
    reference implementation, all else inline in a temporary folder.
    """
    if experiment.architecture == "all_reduce":
        return 100 * train_reference(experiment, load(experiment))[2][-1].val_metric
    with tempfile.TemporaryDirectory() as folder:
        trained = run_inline(experiment, Path(folder) / "run", lambda *_: None)
        return float(100 * trained.result["epochs"][-1]["val_metric"])


def name_exchange(exchange: Exchange) -> str:
    """Return the name of an exchange's line in the table, such as `gradients, every 1`."""
    outer = exchange.outer
    told = f", outer {outer.learning_rate:g}, {outer.momentum:g}" if exchange.what == "delta" else ""
    how_much = {
        "qsgd": f" {exchange.bits} bit",
        "top_k": f" {exchange.share:.0%}",
        "powersgd": f" rank {exchange.rank}",
    }
    way = exchange.compression
    compressed = "" if way == "none" else f", {way}{how_much.get(way, '')}"
    return f"{exchange.what}, every {exchange.every}{told}{compressed}"


def format_line(name: str, found: list[float], synchronous: list[float]) -> str:
    """Return a line of the Markdown table: the name, mean and range of the accuracies `found`, and the mean of their differences to
    `synchronous` with its 95 % interval. Both lists are in the order of SEEDS, ten values in percent each.
    """
    differences = [mine - its for mine, its in zip(found, synchronous, strict=True)]
    half = T_95 * stdev(differences) / sqrt(len(differences))
    told = f"{fmean(differences):+.2f} ({fmean(differences) - half:+.2f} to {fmean(differences) + half:+.2f})"
    return f"| {name} | {fmean(found):.2f} ({min(found):.2f} to {max(found):.2f}) | {told} |"


def main() -> None:
    """Train every setting with every seed, in several processes, and print the Markdown table of accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    own = validation.load(Path("config/all-reduce.yaml"))
    ways = {
        name_exchange(exchange): replace(own, exchange=exchange) for exchange in (SYNCHRONOUS, *SETTINGS)
    } | list_inexact_experiments(own)
    asked = [replace(experiment, seed=seed) for experiment in ways.values() for seed in SEEDS]
    with ProcessPoolExecutor(parser.parse_args().processes) as pool:
        found = list(pool.map(train_accuracy, asked))
    by_setting = [found[start : start + len(SEEDS)] for start in range(0, len(found), len(SEEDS))]
    print(
        "| exchange | accuracy at the end, % (range) | difference to synchronous, points (95 %) |\n| --- | --- | --- |"
    )
    for name, accuracies in zip(ways, by_setting, strict=True):
        print(format_line(name, accuracies, by_setting[0]))


if __name__ == "__main__":
    main()
