"""Processor seconds that projections take on one core, and their error on the papers' rows that no fit has seen.

    python -m benchmarks.simulation [--quick]      --quick: a tenth of the epochs, and 1,000 workers at most

Sizes are the papers' (MobileNet, 24 minibatches of 512 per worker), every worker with a share of its own, the account's concurrency raised
as far as needed. Every worker is simulated by itself; nothing is written but the figures.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.report import Figure, write
from crossover.experiment import Data, Experiment, Functions, Gpu, Training
from crossover.simulation import AWS, Workload, simulate
from crossover.simulation.papers import median_error
from crossover.simulation.repetitions import project

BASE = Experiment(
    name="paper",
    architecture="spirt",
    training=Training(model="mobilenet", epochs=1, batch_size=512),
    data=Data(dataset="cifar10", validation="test", drop_last=True),
    functions=Functions(memory_mb={"default": 2_685}),
)
RAISED = replace(AWS, name="AWS, concurrency raised", concurrency=None)
SIZES = (1_000_000, 1_000_000_000)


def measure_projection_s(architecture: str, *, workers: int, epochs: int, parameters: int | None = None) -> float:
    """Return the processor seconds in which one run of an architecture is simulated, in this process. `workers`, `epochs`: size of the run;
    `parameters`: number of the model's parameters, by default MobileNet's.
    """
    training = replace(BASE.training, epochs=epochs)
    setting = replace(BASE, architecture=architecture, workers=workers, training=training, gpu=Gpu(instances=workers))
    work = Workload.from_experiment(BASE)
    began_s = time.process_time()
    simulate(setting, RAISED, workload=work if parameters is None else work.with_parameters(parameters))
    return time.process_time() - began_s


def measure_repetitions_s() -> float:
    """Return the wall seconds of a projection with 30 repetitions in two processes, including the start of the processes."""
    setting = replace(BASE, architecture="all_reduce", workers=4, training=replace(BASE.training, epochs=50))
    began_s = time.perf_counter()
    project(setting, AWS, repetitions=30, processes=2)
    return time.perf_counter() - began_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Time simulations of seven architectures (processor seconds) and of 30 repetitions (wall seconds). Print the figures, with the
    simulator's median error on held-out rows, and write them to the file simulation.json in benchmarks/out. A missed goal raises nothing.

    `arguments`: of the command line, by default this process's; `--quick` simulates a tenth of the epochs and 1,000 workers at most.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the epochs, and 1,000 workers at most")
    quick = parser.parse_args(arguments).quick
    epochs = 10 if quick else 100
    figures = [
        Figure(
            f"SPIRT, 1,000 workers x {epochs} epochs",
            measure_projection_s("spirt", workers=1_000, epochs=epochs),
            "s",
            f"<= {60 * epochs // 100}",
        )
    ]
    for architecture in ("spirt", "all_reduce", "scatter_reduce", "mlless", "p2p_instance", "p2p_serverless", "gpu"):
        workers = 1_000 if quick else 10_000
        figures.append(
            Figure(
                f"{architecture}, {workers:,} workers x 1 epoch",
                measure_projection_s(architecture, workers=workers, epochs=1),
                "s",
                "<= 180",
            )
        )
    for parameters in SIZES:
        each = measure_projection_s("spirt", workers=64, epochs=10, parameters=parameters)
        figures.append(Figure(f"SPIRT, 64 workers x 10 epochs, {parameters:,} parameters", each, "s", "<= 60"))
    figures.append(
        Figure(
            "30 repetitions, all_reduce, 4 workers x 50 epochs, two processes", measure_repetitions_s(), "s", "<= 10"
        )
    )
    figures.append(Figure("median error over the papers' rows held out", median_error(), "", "<= 0.15"))
    write("simulation", figures)


if __name__ == "__main__":
    main()
