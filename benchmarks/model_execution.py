"""A model in the database against the same forward pass in plain torch: ratios of one run, one thread a side.

    python -m benchmarks.model_execution [--quick]      --quick: fewer rounds, to see that it runs

The model is our MobileNet for pictures of 3 x 32 x 32. What is timed is AI.MODELEXECUTE, from and to keys, by a client on the same
machine; sides take turns. PING is another client's, while the largest minibatch is computed again and again.
"""

import argparse
import io
import statistics
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import redis
import torch

from benchmarks.report import Figure, write
from benchmarks.tensor_engine import medians
from crossover.learning.models.mobilenet import mobilenet
from crossover.local import processes
from crossover.local.redis_server import RedisServer

ROOT = Path(__file__).parents[1]
BATCHES = (1, 64)


def archive(model: torch.nn.Module, x: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # TorchScript is deprecated
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, (x,)), buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def executing(client: redis.Redis, model: torch.nn.Module, batch: int, rounds: int) -> Figure:
    x = torch.randn(batch, 3, 32, 32)
    client.execute_command("AI.TENSORSET", "x", "FLOAT", *x.shape, "BLOB", x.numpy().tobytes())  # type: ignore[no-untyped-call]
    command = ("AI.MODELEXECUTE", "model", "INPUTS", 1, "x", "OUTPUTS", 1, "y")

    def local() -> None:
        with torch.inference_mode():
            model(x)

    work = {"database": lambda: client.execute_command(*command), "torch": local}  # type: ignore[no-untyped-call]
    times = medians(work, rounds=rounds, after=lambda: None)
    name = f"MobileNet, minibatch {batch}: AI.MODELEXECUTE / torch ({times['torch'] * 1e3:.1f} ms)"
    return Figure(name, times["database"] / times["torch"], "x", "<= 1.1")


def answering(server: RedisServer, client: redis.Redis, seconds: float) -> list[Figure]:
    """PING while the database computes the last minibatch without a pause."""
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            client.execute_command("AI.MODELEXECUTE", "model", "INPUTS", 1, "x", "OUTPUTS", 1, "y")  # type: ignore[no-untyped-call]

    worker = threading.Thread(target=compute)
    worker.start()
    times: list[float] = []
    other = redis.Redis(port=server.port)
    end_s = time.perf_counter() + seconds
    while (start_s := time.perf_counter()) < end_s:
        other.ping()
        times.append(time.perf_counter() - start_s)
    stop.set()
    worker.join()
    other.close()
    cuts = statistics.quantiles(times, n=100)
    of = f"PING of another client during MobileNet, minibatch {BATCHES[-1]}"
    return [
        Figure(f"{of}: median", statistics.median(times) * 1e3, "ms"),
        Figure(f"{of}: 99th percentile", cuts[98] * 1e3, "ms", "< 10"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    quick: bool = parser.parse_args().quick
    torch.set_num_threads(1)
    make = ["make", "-s", "-C", str(ROOT / "redis_module"), "torch", f"PYTHON={sys.executable}"]
    subprocess.run(make, check=True, stdout=sys.stderr)
    model = mobilenet(10, (3, 32, 32)).eval()
    module = ROOT / "redis_module" / "build" / "tensors-torch.so"
    with processes.temporary_folder() as folder, RedisServer(folder / "redis", module=module, durable=False) as server:
        client = redis.Redis(port=server.port, socket_timeout=None)
        blob = archive(model, torch.randn(2, 3, 32, 32))
        client.execute_command("AI.MODELSTORE", "model", "TORCH", "CPU", "BLOB", blob)  # type: ignore[no-untyped-call]
        figures = [executing(client, model, batch, 5 if quick else 60) for batch in BATCHES]
        figures += answering(server, client, seconds=1.0 if quick else 5.0)
        client.close()
    write("model_execution", figures)


if __name__ == "__main__":
    main()
