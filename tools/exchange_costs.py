"""The projected cost of each exchange: `python -m tools.exchange_costs` prints the tables of docs/exchange.md's dollars (minutes)."""

from collections.abc import Sequence
from dataclasses import replace

from crossover.reports.display import Band, band, bytes_, seconds, usd
from crossover.simulation.calibration import AWS, Calibration
from crossover.simulation.repetitions import project
from crossover.simulation.simulate import simulate
from crossover.validation import load
from tools import refuse_arguments
from tools.clocks import CONFIG, format_table

LONG = "exchange.minibatches_per_invocation=all"
LOCAL = ["exchange.what=model", "exchange.every=24"]
# Cumulative: each row adds its settings to those above.
CHEAPER: dict[str, list[str]] = {
    "the file: a function for each minibatch, gradients through Redis": [],
    "`what: model`, `every: 24`, `training.threads: auto`": [*LOCAL, "training.threads=auto"],
    "`minibatches_per_invocation: all`: 4 functions instead of 96": [LONG],
    "`storage.channel: s3`: no Redis host": ["storage.channel=s3"],
}
POWER_SGD = ["exchange.compression=powersgd", "exchange.rank=4"]
EXCHANGES: dict[str, list[str]] = {
    "`none`": [],
    "`fp16`": ["exchange.compression=fp16"],
    "`qsgd`, 8 bit": ["exchange.compression=qsgd", "exchange.bits=8"],
    "`top_k`, 1 %": ["exchange.compression=top_k", "exchange.share=0.01"],
    "`powersgd`, rank 4": POWER_SGD,
    "gradients, `every: 24`": ["exchange.every=24"],
    "model, `every: 24`": LOCAL,
    "delta, `every: 24`": ["exchange.what=delta", "exchange.every=24"],
    "delta, `every: 24`, `powersgd`": ["exchange.what=delta", "exchange.every=24", *POWER_SGD],
}
WHOLE_RUN = ["recipe=fast", "training.precision=fp32", "training.threads=auto", LONG]
GROWING = [*WHOLE_RUN, "training.image_size.begin=16"]
EVERY_EPOCH = ["exchange.what=model", "exchange.every=epoch"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "whole images: gradients, every 1": ("all-reduce", WHOLE_RUN),
    "whole images: model, every epoch": ("all-reduce", [*WHOLE_RUN, *EVERY_EPOCH]),
    "whole images: the same through the bucket": ("all-reduce", [*WHOLE_RUN, *EVERY_EPOCH, "storage.channel=s3"]),
    "gradients, every 1": ("all-reduce", GROWING),
    "model, every epoch": ("all-reduce", [*GROWING, *EVERY_EPOCH]),
    "the same through the bucket": ("all-reduce", [*GROWING, *EVERY_EPOCH, "storage.channel=s3"]),
    "PowerSGD": ("all-reduce", [*GROWING, *POWER_SGD]),
    "MLLess, threshold 0.7": ("mlless", [*GROWING, "mlless.threshold=0.7"]),
    "MLLess, threshold 0.3": ("mlless", [*GROWING, "mlless.threshold=0.3"]),
    "SPIRT as published": ("spirt", [*GROWING, "exchange.every=epoch"]),
}


def project_bands(name: str, changes: Sequence[str], calibration: Calibration) -> tuple[Band, Band, float]:
    """Return (p5 to p95 of the seconds, p5 to p95 of the dollars, bytes moved) of a run, projected with `calibration`. `name`: name of the
    architecture in the examples of config/, such as "spirt"; `changes`: settings as in `--set`. For MLLess with threshold 0.3, the measured
    share of significant updates is used.
    """
    significant = 0.18 if "mlless.threshold=0.3" in changes else calibration.significant  # as the runs passed
    found = project(load(CONFIG / f"{name}-cifar10.yaml", list(changes)), replace(calibration, significant=significant))
    return found.band("seconds"), found.band("usd"), found.run.moved_bytes


def build_tables(calibration: Calibration = AWS) -> list[str]:
    """Return the four Markdown tables of projected dollars in docs/exchange.md, simulated with `calibration`. Takes minutes."""
    one = ["training.epochs=1"]
    cheaper, so_far, whole = list[list[str]](), list[str](), 0.0
    for words, changes in CHEAPER.items():
        so_far += changes
        experiment = load(CONFIG / "all-reduce-cifar10.yaml", [*one, *so_far])
        found = simulate(experiment, calibration).usd
        whole = whole or found
        cheaper.append([words, f"{found:.3g}", f"{found / whole:.2f}" if so_far else ""])
    exchanges = []
    for words, changes in EXCHANGES.items():
        row = [words]
        for more in ([], [LONG]):
            time, dollars, moved = project_bands("all-reduce", [*one, *changes, *more], calibration)
            row += [band(seconds, *time), band(usd, *dollars), bytes_(moved)]
        exchanges.append(row)
    local = []
    for name in ("spirt", "p2p-serverless"):
        row = [name]
        for changes in (["exchange.every=24"], LOCAL):
            time, dollars, _ = project_bands(name, [*one, *changes], calibration)
            row += [band(seconds, *time), band(usd, *dollars)]
        local.append(row)
    runs = []
    for words, (name, changes) in RUNS.items():
        time, dollars, moved = project_bands(name, changes, calibration)
        runs.append([words, band(seconds, *time), band(usd, *dollars), bytes_(moved)])
    long = ["long functions: time", "dollars", "moved"]
    return [
        format_table(["settings, cumulative", "USD", "relative to the file"], cheaper),
        format_table(["exchange", "one function per minibatch: time", "dollars", "moved", *long], exchanges),
        format_table(["architecture", "gradients: time", "dollars", "model: time", "dollars"], local),
        format_table(["run of 16 epochs", "time", "dollars", "moved"], runs),
    ]


if __name__ == "__main__":
    refuse_arguments(__doc__)
    print("\n\n".join(build_tables()))
