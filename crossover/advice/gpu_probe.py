"""Measurement of one model's training steps on one device, such as a free notebook's GPU. It needs PyTorch; the data may be random.

What is timed is the step of the programs on EC2: the batch is on the device already, as the next batch is copied while one is computed;
the model goes to the device and the gradient comes back.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crossover import user_code
from crossover.errors import ConfigError
from crossover.experiment import Data, Experiment, Metric, Training
from crossover.learning import datasets, fitness, zoo
from crossover.learning.batches import Batch
from crossover.learning.device import DeviceLearner, device_name
from crossover.learning.samples import UNMAPPED, is_measured
from crossover.learning.sizes import digest_of_model

if TYPE_CHECKING:
    from crossover.simulation.gpu_steps import Precision  # which reads YAML files

FORMAT = 1  # of the row
BATCH_SIZES = {"cuda": (32, 128, 512), "cpu": (8, 32)}
WARM_UP, LEAST_STEPS = 3, 5


@dataclass(frozen=True)
class Source:
    """A source of minibatches to measure. `input_shape`: shape of one sample; `classes`: number of classes, None if labels are numbers;
    `take`: function from a batch size to a minibatch of that size, always the same one.
    """

    input_shape: tuple[int, ...]
    classes: int | None
    take: Callable[[int], Batch]


def find_device(name: str, precision: str) -> torch.device:
    """Return the device called `name`, "cuda" or "cpu". Raises ConfigError if PyTorch sees no GPU, or for fp16 (`precision`) on the CPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device: cuda needs an NVIDIA GPU, and PyTorch {torch.__version__} sees none; expected a machine with one, or cpu"
        )
    if name == "cpu" and precision == "fp16":
        raise ConfigError("--precision: fp16 needs a GPU; expected fp32 or bf16 with --device cpu")
    return torch.device(name)


def measure_row(
    model: str,
    source: Source,
    *,
    device: torch.device,
    precision: "Precision",
    batch_sizes: Sequence[int],
    seconds: float,
) -> dict[str, Any]:
    """Measure a model's training steps on `device`, and return what `crossover probe` prints: {"format", "device", "precision", "model",
    "input", "classes", "parameters", "buffers", "macs", "digest", "steps", "too_large", "torch"}. `steps` has the result of `_measure_size`
    for each batch size; sizes that do not fit into the device's memory are listed in `too_large`.

    `model`: name of the model, as `locate_model` returns it; `source`: where minibatches come from; `seconds`: time to spend on all of
    `batch_sizes` together. Raises ConfigError if the smallest batch size does not fit, or if the device lacks the precision.
    """
    training = _training(model, precision, source.classes)
    steps, too_large = list[dict[str, float]](), list[int]()
    for batch_size in batch_sizes:
        try:
            steps.append(_measure_size(training, source, device, batch_size, seconds / len(batch_sizes)))
        except ConfigError as problem:
            if not isinstance(problem.__cause__, torch.OutOfMemoryError):
                raise
            if batch_size == min(batch_sizes):
                raise
            too_large.append(batch_size)
    first = source.take(1).inputs[0]
    sample = first.float() if is_measured(first) else first  # as it reaches the model
    found = fitness.measure_model(training, classes=source.classes, sample=sample)
    return {
        "format": FORMAT,
        "device": device_name(device),
        "precision": precision,
        "model": model,
        "input": list(source.input_shape),
        "classes": source.classes,
        "parameters": found.parameters,
        "buffers": found.buffers,
        "macs": found.macs,
        "digest": digest_of_model(found.parameters, found.buffers, found.macs),
        "steps": steps,
        "too_large": too_large,
        "torch": torch.__version__,
    }


def locate_model(given: str) -> str:
    """Return the model's name as an experiment's YAML has it: `module:factory`, or the name of a built-in model; and make its folder and
    the current one importable, in place of earlier such folders. `given`: `file.py:factory`, or such a name. Raises ConfigError if there is
    no such file or model. A module is neither searched nor imported.
    """
    if ":" not in given and given not in zoo.MODEL_FACTORIES:
        raise ConfigError(f"{given}: is no model; expected file.py:factory, or one of {', '.join(zoo.MODEL_FACTORIES)}")
    folder, name = _locate(given, "factory")
    user_code.set_folders(folder, Path.cwd())
    return name


def _locate(given: str, role: str) -> tuple[Path, str]:
    """Return (folder, name) of user code, with the name as `module:name`. `given`: `file.py:name`, or a name that needs no file, which is
    returned with the current folder; `role`: what the code is, for the error message. Raises ConfigError if there is no such file.
    """
    if ".py:" not in given:
        return Path.cwd(), given
    name, _, factory = given.rpartition(":")
    file = Path(name)
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; expected file.py:{role}")
    return file.parent, f"{file.stem}:{factory}"


def draw_samples(input_shape: tuple[int, ...], classes: int | None) -> Source:
    """Return a source of random samples of shape `input_shape`: inputs from the normal distribution; labels are the classes in turn, or
    random numbers if `classes` is None.
    """

    def take(count: int) -> Batch:
        """Return a minibatch of `count` random samples, the same for the same count; the labels are 0, 1, ... `classes` - 1 in turn, int64,
        or random numbers (count, 1).
        """
        random = torch.Generator().manual_seed(1)
        inputs, ids = torch.randn(count, *input_shape, generator=random), torch.arange(count)
        labels = torch.randn(count, 1, generator=random) if classes is None else ids % classes
        return Batch(inputs, labels, ids)

    return Source(input_shape, classes, take)


def load_samples(given: str, model: str) -> Source:
    """Return a source that takes the first samples of a data set, and begins again after the last one. They are not standardised, since
    that does not change the duration of a step.

    `given`: `file.py:loader`, `module:loader` or a built-in data set; `model`: name of the model that the samples must fit. The loader's
    folder is added to those in which this process finds user code. Raises ConfigError for a CSV, a missing file, or a setting that does not
    fit the samples; DataError if a data set that comes with the project cannot be read or does not fit; OwnCodeError if the user's loader
    fails or its samples do not fit.
    """
    if given.endswith(".csv"):
        raise ConfigError(
            f"--data: {given}: a table's steps need no file; expected --input COLUMNS and --classes or --numbers"
        )
    folder, name = _locate(given, "loader")
    user_code.set_folders(*user_code.list_folders(), folder)
    data = Data(dataset=name)
    samples, loader = datasets.load_samples(Experiment(name="probe", architecture="single", data=data))
    training = _training(model, "fp32", samples.classes)
    fitness.check_samples(
        samples, Experiment(name="probe", architecture="single", training=training, data=data), loader=loader
    )

    def take(count: int) -> Batch:
        """Return a minibatch of the first `count` samples, which begin again after the last one; float64 is converted to float32."""
        ids = torch.arange(count)
        rows = ids % len(samples.labels)
        return Batch(_as_float32(samples.inputs[rows]), _as_float32(samples.labels[rows]), ids)

    return Source(tuple(samples.inputs.shape[1:]), samples.classes, take)


def _as_float32(part: torch.Tensor) -> torch.Tensor:
    """Return the tensor, converted to float32, the type in which workers compute, if it is float64; other types stay."""
    return part.float() if part.dtype == torch.float64 else part


def _training(model: str, precision: "Precision", classes: int | None) -> Training:
    """Return training settings for the model: with the default loss for `classes` classes, or with the squared error if the labels are
    numbers (`classes` is None).
    """
    training = Training(model=model, precision=precision)
    if classes is not None:
        return training
    return replace(training, loss="mse", metric=Metric(name="mean_absolute_error", higher_is_better=False))


def _measure_size(
    training: Training, source: Source, device: torch.device, batch_size: int, seconds: float
) -> dict[str, float]:
    """Time training steps with minibatches of `batch_size` samples on the device for `seconds` seconds after a warm-up, at least
    LEAST_STEPS steps. Returns {"batch_size", "count", "p5", "seconds", "p95"}: number of steps, and percentiles of their seconds, of
    which `seconds` is the median.
    """
    experiment = Experiment(
        name="probe",
        architecture="single",
        training=replace(training, batch_size=batch_size),
        data=Data(dataset="digits"),
    )
    learner = DeviceLearner(
        experiment, classes=source.classes, input_shape=source.input_shape, affine=UNMAPPED, device=device
    )
    learner.initialise_model()
    batch = learner.copy_to_device(source.take(batch_size), epoch=1)
    timed, began = list[float](), 0.0
    for number in count():
        if number == WARM_UP:
            began = time.perf_counter()
        start = time.perf_counter()
        learner.compute_gradient(batch, epoch=1, round=number, worker=0, minibatch=0)  # waits for the device
        end = time.perf_counter()
        if number >= WARM_UP:
            timed.append(end - start)
        if len(timed) >= LEAST_STEPS and end - began >= seconds:
            break
    cuts = statistics.quantiles(timed, n=20, method="inclusive")
    return {
        "batch_size": batch_size,
        "count": len(timed),
        "p5": cuts[0],
        "seconds": statistics.median(timed),
        "p95": cuts[-1],
    }
