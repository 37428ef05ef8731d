"""A workload that uses the layers as a function does, on any machine: imports, and one training step of each model.

    python workload.py [trace]

Prints JSON: versions, seconds, each model's loss and gradient. With `trace`: the files of PyTorch that were loaded, one per line.
"""

import argparse
import json
import platform
import resource
import sys
import time
from typing import Any


def main() -> None:
    """Import the layers' packages, train one step of each model, and print figures as JSON; with the argument `trace` print the loaded
    files instead.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", choices=["trace"], help="print the loaded files")
    is_trace = parser.parse_args().trace is not None
    started, computed = time.monotonic(), time.process_time()
    import torch

    import_s, import_cpu_s = time.monotonic() - started, time.process_time() - computed
    import pika
    import safetensors

    found: dict[str, Any] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {each.__name__: each.__version__ for each in (pika, safetensors)},
        "import_s": round(import_s, 2),
        "import_cpu_s": round(import_cpu_s, 2),
        "models": {name: run_step(name) for name in ("small_cnn", "mobilenet")},
        "absent": sorted({"numpy", "sympy", "networkx", "jinja2"} - sys.modules.keys()),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    use_extras()
    if is_trace:
        top = f"{torch.__path__[0].removesuffix('torch')}"
        files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
        ours = (file.removeprefix(top) for file in files if file.startswith(top))
        print("\n".join(sorted(file for file in ours if file.startswith(("torch/", "torchgen/", "functorch/")))))
    else:
        print(json.dumps(found))


def run_step(model: str) -> dict[str, Any]:
    """Compute one gradient and one evaluation of a model with the project's learner on random images. Return loss, norm and sum of the
    gradient, number of parameters, validation loss and seconds, by name. `model`: "small_cnn" or "mobilenet".
    """
    from torch import float32 as f32
    from torch import frombuffer, rand, tensor

    from crossover.algorithms.compression import make_generator
    from crossover.experiment import Experiment, Training
    from crossover.learning.batches import Batch
    from crossover.learning.learner import Learner

    shape = (1, 8, 8) if model == "small_cnn" else (3, 32, 32)
    experiment = Experiment(name="workload", architecture="spirt", training=Training(model=model))
    images = rand((4, *shape), generator=make_generator("images", 1))
    batch = Batch(inputs=images, labels=tensor([0, 3, 7, 9]), sample_ids=tensor([1, 2, 3, 4]))
    affine = {"scale": [1.0] * shape[0], "shift": [0.0] * shape[0]}
    learner = Learner(experiment, classes=10, input_shape=shape, affine=affine)
    learner.initialise_model()
    started = time.monotonic()
    loss = learner.compute_gradient(batch, epoch=1, round=0, worker=0, minibatch=0)
    gradient = frombuffer(bytearray(learner.gradient), dtype=f32).double()[: learner.parameters]
    return {
        "loss": loss,
        "gradient_norm": float(gradient.norm()),
        "gradient_sum": float(gradient.sum()),
        "parameters": learner.parameters,
        "val_loss": learner.evaluate([batch]).loss,
        "step_s": round(time.monotonic() - started, 2),
    }


def use_extras() -> None:
    """Use PyTorch's own optimizers, schedules, data loader and other functions that training code may need, so that a trace includes their
    files. The results are thrown away.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    layer = torch.nn.LSTM(4, 4)
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer = make(layer.parameters(), lr=0.1)
        layer(torch.ones(3, 2, 4))[0].sum().backward()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        optimizer.step()
        schedule.step()
    torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)(torch.ones(2, 3, 8)).sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
    list(DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2, shuffle=True))
    torch.func.grad(lambda x: (x**2).sum())(torch.ones(3))
    torch.linalg.svdvals(torch.eye(4))
    torch.fft.fft(torch.ones(4))


if __name__ == "__main__":
    main()
