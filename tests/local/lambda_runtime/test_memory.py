"""Sixteen workers fit on one small machine: an environment owns little beyond the pages that it shares with the others."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crossover.local.lambdas import Function, Lambdas

WORKERS = 16
# Before the first step: 18 to 21 are measured, and torch by itself is 150; what one of MobileNet leaves is benchmarks/workers.py's.
BEFORE_MB = 30
ROOT = Path(__file__).parents[3]

CODE = """
import os, pathlib, time

import functions.all_reduce  # what a worker of LambdaML imports

def own():
    # bytes that would come back if the process ended: its unique set
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Private_"))

def arrive(event, context):
    # returns once all workers are in: each in an environment of its own
    folder = pathlib.Path(event["folder"])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < event["workers"]:
        time.sleep(0.01)
    return own()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of code with the workers' module and links to the project's packages."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "workers.py").write_text(CODE)
    for package in ("crossover", "functions"):
        (folder / package).symlink_to(ROOT / package)
    return folder


@pytest.fixture(scope="module")
def lambdas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lambdas]:
    """Yield a Lambda service on two cores that runs every worker at once; it is closed afterwards."""
    service = Lambdas(tmp_path_factory.mktemp("workspace"), cores=2, concurrency=WORKERS + 1)
    yield service
    service.close()


def worker(folder: Path, handler: str) -> Function:
    """Return a long-running function of 3008 MB that needs torch and waits for others."""
    return Function(
        name=handler,
        arn=f"arn:aws:lambda:us-east-1:123456789012:function:{handler}",
        handler=f"workers.{handler}",
        folder=folder,
        timeout_s=300.0,
        memory_mb=3008,
        torch=True,
        waits=True,
    )


@pytest.mark.slow
def test_sixteen_workers_own_little_before_their_first_step(folder: Path, lambdas: Lambdas, tmp_path: Path) -> None:
    """Start sixteen environments with torch at once: each owns at most 30 MB that it does not share with the others."""
    payload = json.dumps({"folder": str(tmp_path), "workers": WORKERS}).encode()
    with ThreadPoolExecutor(WORKERS) as pool:
        calls = [pool.submit(lambdas.invoke, worker(folder, "arrive"), payload) for _ in range(WORKERS)]
    answers = [call.result() for call in calls]
    assert all(answer.error is None for answer in answers), answers[0].log_tail.decode()
    assert len(list(tmp_path.iterdir())) == WORKERS
    owned = [json.loads(answer.payload) for answer in answers]
    assert max(owned) <= BEFORE_MB * 1e6
