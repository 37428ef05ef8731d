"""A model in the database against the same forward pass in plain torch: ratios of one run, one thread a side.

    python -m benchmarks.model_execution [--quick]      --quick: fewer rounds, to see that it runs

The model is our MobileNet for pictures of 3 x 32 x 32. What is timed is AI.MODELEXECUTE, from and to keys, by a client on the same
machine; sides take turns. PING is another client's, while the largest minibatch is computed again and again.

Evaluation is what a SPIRT worker does at an epoch's end, on as many samples as stand in EVALUATED: in a function, which fetches the model
and computes; or in the database by a TorchScript that takes the flat model as it lies there, for which a function only waits.
"""

import argparse
import contextlib
import io
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import redis
import torch
from torch.nn import functional

from benchmarks.report import Figure, write
from benchmarks.tensor_engine import medians
from crossover.experiment import Training
from crossover.learning.batch import Batch
from crossover.learning.learner import Learner
from crossover.learning.models.mobilenet import mobilenet
from crossover.local import processes
from crossover.local.redis_server import RedisServer
from crossover.validation import load

ROOT = Path(__file__).parents[1]
BATCHES = (1, 64)
EVALUATED, AT_ONCE = 1_024, 256  # samples; of one forward pass, as in the learner


def archive(model: torch.nn.Module, *example: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # TorchScript is deprecated
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, example), buffer)  # type: ignore[no-untyped-call]
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


@contextlib.contextmanager
def replaced(network: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Its parameters and statistics are these, as torch.func's own functional_call has it, which does not trace."""
    before = {name: attrgetter(name)(network) for name in values}

    def put(given: Mapping[str, torch.Tensor]) -> None:
        for name, value in given.items():
            layer, _, field = name.rpartition(".")
            module = network.get_submodule(layer)
            (module._parameters if field in module._parameters else module._buffers)[field] = value  # type: ignore[index]

    put(values)
    try:
        yield
    finally:
        put(before)


class Judged(torch.nn.Module):
    """(flat model, inputs, labels) -> sum of the losses, number of right answers: what `Learner.evaluate` adds up."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mobilenet(10, (3, 32, 32)).eval()
        layers = {name: each for name, each in self.network.named_modules() if isinstance(each, torch.nn.BatchNorm2d)}
        self.places = [(name, each.shape) for name, each in self.network.named_parameters()]
        for name, layer in layers.items():
            features = torch.Size([layer.num_features])
            self.places += [(f"{name}.running_mean", features), (f"{name}.running_var", features)]

    def forward(
        self, flat: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = torch.split(flat, [shape.numel() for _, shape in self.places])
        values = {name: part.view(shape) for (name, shape), part in zip(self.places, parts, strict=True)}
        seen = inputs.to(memory_format=torch.channels_last)
        with replaced(self.network, values):
            outputs = self.network(seen)
        return functional.cross_entropy(outputs, labels, reduction="sum"), (outputs.argmax(1) == labels).sum()


def evaluating(client: redis.Redis, rounds: int) -> list[Figure]:
    training = Training(model="mobilenet", loss="cross_entropy", batch_size=512, threads=1)
    experiment = replace(load(ROOT / "config" / "spirt-cifar10.yaml"), training=training)
    learner = Learner(experiment, classes=10, input_shape=(3, 32, 32), affine={"scale": [], "shift": []})
    model, judged = bytes(learner.initial_model()), Judged()
    inputs, labels = torch.randn(EVALUATED, 3, 32, 32), torch.randint(0, 10, (EVALUATED,))
    flat = torch.frombuffer(bytearray(model), dtype=torch.float32)
    blob = archive(judged, flat, inputs[:2], labels[:2])
    client.execute_command("AI.MODELSTORE", "judged", "TORCH", "CPU", "BLOB", blob)  # type: ignore[no-untyped-call]
    client.execute_command("AI.TENSORSET", "flat", "FLOAT", len(flat), "BLOB", model)  # type: ignore[no-untyped-call]
    parts = range(0, EVALUATED, AT_ONCE)
    for k in parts:
        x, y = inputs[k : k + AT_ONCE], labels[k : k + AT_ONCE]
        client.execute_command("AI.TENSORSET", f"x{k}", "FLOAT", *x.shape, "BLOB", x.numpy().tobytes())  # type: ignore[no-untyped-call]
        client.execute_command("AI.TENSORSET", f"y{k}", "INT64", len(y), "BLOB", y.numpy().tobytes())  # type: ignore[no-untyped-call]
    found = {}

    def here() -> None:
        client.execute_command("TENSOR.GET", "flat")  # type: ignore[no-untyped-call]
        batch = Batch(inputs, labels, torch.arange(EVALUATED))
        found["function"] = learner.evaluate([batch]).loss

    def there() -> None:
        total = 0.0
        for k in parts:
            words = ("AI.MODELEXECUTE", "judged", "INPUTS", 3, "flat", f"x{k}", f"y{k}", "OUTPUTS", 2, "loss", "right")
            client.execute_command(*words)  # type: ignore[no-untyped-call]
            (value,) = client.execute_command("AI.TENSORGET", "loss", "VALUES")  # type: ignore[no-untyped-call]
            total += float(value)
        found["database"] = total / EVALUATED

    times = medians({"function": here, "database": there}, rounds=rounds, after=lambda: None)
    of = f"evaluation of {EVALUATED} samples"
    return [
        Figure(
            f"{of}: database / function ({times['function']:.2f} s)", times["database"] / times["function"], "x", "<= 1"
        ),
        Figure(f"{of}: relative difference of the losses", abs(found["database"] / found["function"] - 1), ""),
    ]


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
        figures += evaluating(client, 2 if quick else 5)
        client.close()
    write("model_execution", figures)


if __name__ == "__main__":
    main()
