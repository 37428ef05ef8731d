"""What a worker's process owns, beyond the pages that it shares with the others: sixteen of them on one machine.

    python -m benchmarks.workers [--quick]      --quick: four workers

Execution environments of the local cloud, forked after the imports: before their first step, and after one step of
MobileNet on 32 images, which leaves the step's memory with the process (crossover/learning/memory.py says why).
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Figure, write
from crossover.local.lambda_runtime import Function, Lambdas

ROOT = Path(__file__).parents[1]
CODE = """
import os, pathlib, time

import functions.all_reduce  # what a worker of LambdaML imports
from crossover.local.lambda_runtime import memory

def train(event, context):
    folder = pathlib.Path(event["folder"])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < event["workers"]:  # all are in: each in an environment of its own
        time.sleep(0.01)
    before = memory.own(os.getpid())

    import torch
    from crossover.algorithms import buffers
    from crossover.experiment import Experiment, Training
    from crossover.learning.batch import Batch
    from crossover.learning.learner import Learner

    experiment = Experiment(name="x", architecture="all_reduce", training=Training(model="mobilenet", threads=1))
    affine = {"scale": [1 / 255] * 3, "shift": [0.0] * 3}
    learner = Learner(experiment, classes=10, input_shape=(3, 32, 32), affine=affine)
    buffers.tensor(learner.model).normal_(0.0, 0.05)  # a worker's model comes from elsewhere
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)
    batch = Batch(images, torch.arange(32) % 10, torch.arange(32))
    learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)
    return [before, memory.own(os.getpid())]
"""


def owned(workers: int, folder: Path) -> list[tuple[int, int]]:
    """(bytes before, bytes after a step) of each worker."""
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
    payload = json.dumps({"folder": str(meeting), "workers": workers}).encode()
    lambdas = Lambdas(folder / "workspace", concurrency=workers, cores=2)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="four workers")
    workers = 4 if parser.parse_args().quick else 16
    with TemporaryDirectory(prefix="crossover-") as folder:
        found = owned(workers, Path(folder))
    of = f"of {workers} workers"
    write(
        "workers",
        [
            Figure(f"largest {of}, before the first step", max(before for before, _ in found) / 1e6, "MB", "<= 20"),
            Figure(f"largest {of}, after one of MobileNet", max(after for _, after in found) / 1e6, "MB", "<= 150"),
        ],
    )


if __name__ == "__main__":
    main()
