"""One epoch of SPIRT on the local cloud: its wall time against the gradients and evaluations inside it, shared evenly by the cores.

What exceeds 1 is the cost of the databases, the functions' start, the state machine and the waiting. The second epoch of two is taken,
because the first one's functions start cold. The images are noise of CIFAR-10's shape, so nothing has to be downloaded.

    python -m benchmarks.epoch [--quick] [--batch 512] [--minibatches 6]
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.memory import Watch
from benchmarks.report import Figure, write

_COMPUTING = ("compute", "evaluate")
_WORKERS = 4


def load_noise(experiment: Any) -> Any:
    """Return a data set of random images of CIFAR-10's shape: as many for training as the experiment's `data.limit`, and 1,024 for
    validation. It is a loader for the YAML field `data.dataset`.
    """
    import torch

    from crossover.learning.datasets import Samples

    random = torch.Generator().manual_seed(1)

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (`count` random images, their random labels)."""
        images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=random)
        return images, torch.randint(0, 10, (count,), generator=random)

    return Samples(*drawn(experiment.data.limit), 10, *drawn(1024))


def measure(*, batch: int, minibatches: int) -> list[Figure]:
    """Run two epochs of SPIRT on the local cloud, and return figures of the second: its seconds compared with the computing in it, and the
    run's peak memory. `batch`: minibatch size; `minibatches`: number per worker and epoch.
    """
    from crossover import validation
    from crossover.running.deployed import run_local

    settings = [
        "training.epochs=2",
        f"training.batch_size={batch}",
        "data.dataset=benchmarks.epoch:load_noise",
        f"data.limit={_WORKERS * batch * minibatches}",
    ]
    config = Path(__file__).parents[1] / "config" / "spirt-cifar10.yaml"
    experiment = validation.load(config, settings)
    with tempfile.TemporaryDirectory(prefix="crossover-") as folder, Watch() as memory:
        records = run_local(experiment, Path(folder), lambda progress: None).records
    wall_s, computing_s = sum_epoch_seconds(records, epoch=2)
    cores = os.cpu_count() or 1
    about = f"SPIRT, {_WORKERS} workers x {minibatches} minibatches of {batch} on {cores} cores"
    return [
        Figure(f"{about}: epoch / compute inside it", wall_s / (computing_s / cores), "x", "<= 1.15"),
        Figure("  the epoch's wall time", wall_s, "s"),
        Figure("  gradients and evaluation inside it, all cores together", computing_s, "s"),
        Figure("  peak memory of all processes of the run", memory.peak_mb / 1e3, "GB", "< 8"),
        Figure("  processes at that moment", memory.processes, ""),
    ]


def sum_epoch_seconds(records: Sequence[Mapping[str, Any]], *, epoch: int) -> tuple[float, float]:
    """Return (seconds from the start of the epoch's first invocation to the end of its last one, seconds of gradients and evaluations in
    it, added up over all workers). `records`: records of the run; `epoch`: number of the epoch. Raises ValueError if the epoch has no
    record.
    """
    own = [record for record in records if record["epoch"] == epoch]
    began = min(record["started_at"] for record in own)
    ended = max(record["started_at"] + record["slot_wait_s"] + record["wall_s"] for record in own)
    computing = sum(stage["wall_s"] for record in own for stage in record["stages"] if stage["stage"] in _COMPUTING)
    return ended - began, computing


def main() -> None:
    """Measure an epoch with the sizes that the arguments give, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--minibatches", type=int, default=6, help="per worker")
    parser.add_argument("--quick", action="store_true", help="one minibatch of 16: to see that it runs")
    given = parser.parse_args()
    if given.quick:
        given.batch, given.minibatches = 16, 1
    write("epoch", measure(batch=given.batch, minibatches=given.minibatches))


if __name__ == "__main__":
    main()
