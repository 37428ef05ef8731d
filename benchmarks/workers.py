"""Memory that a worker's process owns beyond the pages it shares with others: sixteen workers on one machine.

    python -m benchmarks.workers [--quick]      --quick: four workers

The processes are execution environments of the local cloud, forked after the imports. Measured are three moments: before their first step;
after one step of MobileNet on 32 images, which keeps the step's memory for the next one (crossover/learning/memory.py says why); and a
second later, when a waiting worker has given it back (crossover/stores/clients.py).
"""

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Figure, write
from crossover.local.lambdas import Function, Lambdas
from crossover.stores import clients

ROOT = Path(__file__).parents[1]
CODE = """
import os, pathlib, time

import functions.all_reduce  # what a worker of LambdaML imports
def own():
    # bytes that would come back if the process ended: its unique set
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Private_"))

def train(event, context):
    folder = pathlib.Path(event["folder"])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < event["workers"]:  # all are in: each in an environment of its own
        time.sleep(0.01)
    before = own()

    import torch
    from crossover.stores import clients
    from crossover.algorithms import buffers
    from crossover.experiment import Experiment, Training
    from crossover.learning.batches import Batch
    from crossover.learning.learner import Learner

    experiment = Experiment(name="x", architecture="all_reduce", training=Training(model="mobilenet", threads=1))
    affine = {"scale": [1 / 255] * 3, "shift": [0.0] * 3}
    cores = event["slots"]
    learner = Learner(
        experiment, classes=10, input_shape=(3, 32, 32), affine=affine, slot=lambda: clients.hold_slot(cores)
    )
    buffers.tensor(learner.model).normal_(0.0, 0.05)  # a worker's model comes from elsewhere
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    batch = Batch(images, torch.arange(32) % 10, torch.arange(32))
    learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)
    after = own()
    time.sleep(1.0)
    return [before, after, own()]
"""


def measure_owned(workers: int, folder: Path) -> list[tuple[int, int, int]]:
    """Run `workers` workers at the same time on the local cloud, and return the bytes of memory that each does not share with other
    processes, as (before its first step, just after it, a second later). `folder`: empty folder to work in. Raises RuntimeError if a worker
    fails.
    """
    code, meeting = folder / "code", folder / "meeting"
    code.mkdir()
    meeting.mkdir()
    (code / "workers.py").write_text(CODE)
    for package in ("crossover", "functions"):
        (code / package).symlink_to(ROOT / package)
    function = Function(
        name="train",
        arn="arn:aws:lambda:us-east-1:123456789012:function:train",
        handler="workers.train",
        folder=code,
        timeout_s=300.0,
        memory_mb=3008,
        torch=True,
        waits=True,
    )
    cores = os.cpu_count() or 1
    clients.create_slots(folder / "slots", cores)
    payload = json.dumps({"folder": str(meeting), "workers": workers, "slots": str(folder / "slots")}).encode()
    lambdas = Lambdas(folder / "workspace", concurrency=workers, cores=cores)
    try:
        with ThreadPoolExecutor(workers) as pool:
            answers = list(pool.map(lambda _: lambdas.invoke(function, payload), range(workers)))
    finally:
        lambdas.close()
    for answer in answers:
        if answer.error:
            raise RuntimeError(answer.payload.decode())
    return [tuple(json.loads(answer.payload)) for answer in answers]


def main() -> None:
    """Measure the unshared memory of many workers at the same time, and write the largest values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="four workers")
    workers = 4 if parser.parse_args().quick else 16
    with TemporaryDirectory(prefix="crossover-") as folder:
        found = measure_owned(workers, Path(folder))
    before, after, waiting = (max(each) / 1e6 for each in zip(*found, strict=True))
    of = f"largest of {workers} workers"
    write(
        "workers",
        [
            Figure(f"{of}, before the first step", before, "MB", "<= 20"),
            Figure(f"{of}, right after one step of MobileNet", after, "MB"),
            Figure(f"{of}, waiting for the others after it", waiting, "MB", "<= 150"),
        ],
    )


if __name__ == "__main__":
    main()
