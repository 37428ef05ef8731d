"""Sizes that are known before anything is loaded: of the data sets that come with the project, and of a worker's memory."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from crossover.errors import ConfigError
from crossover.experiment import Experiment

RUNTIME_MB = 300  # torch, boto3 and the interpreter: 226 to 276 measured
SAMPLES_OF_EVALUATION = 256  # of its forward pass, as the learner takes them
GPU_VECTORS = 10  # of a single worker: model, gradient, mean, aggregate; in Adam's step the moments twice, a new model, a denominator
HELD_VECTORS = 6  # model, gradient, average, momentum, one that comes in and one that goes out


@dataclass(frozen=True)
class StepCounts:
    """Work of one training step, forward and backward, counted rather than timed. Fields that begin with `of_sample_` are per
    sample of the minibatch.

    `operations`: kernels that the device starts. `bytes`: bytes that they read and write independently of the batch size.
    `convolution`: multiply-accumulates of convolutions; `depthwise`: of those whose groups are single channels; `matrix`: of matrix
    products, attention included.
    """

    operations: float
    bytes: float
    of_sample_bytes: float
    of_sample_convolution: float
    of_sample_depthwise: float
    of_sample_matrix: float

    def scale(self, ratio: float, *, fixed: bool = True) -> "StepCounts":
        """Return the counts of a model with `ratio` times as much work per sample; the number of operations stays.

        `fixed`: whether the bytes that do not depend on the batch size are multiplied too.
        """
        changed = {
            each.name: getattr(self, each.name) * ratio for each in fields(self) if each.name.startswith("of_sample_")
        }
        return StepCounts(operations=self.operations, bytes=self.bytes * (ratio if fixed else 1), **changed)


def digest_of_model(parameters: int, buffers: int, macs: int) -> str:
    """Return a short hexadecimal digest of a model's counts, equal on every machine: `parameters`, `buffers` (elements of BatchNorm
    statistics) and `macs`, the multiply-accumulates of one sample's forward pass.
    """
    return sha256(f"{parameters} {buffers} {macs}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class DataSize:
    """Number of training samples, number of test samples (None if there is no test split) and shape (C, H, W) of an image of a data set."""

    training: int
    test: int | None
    image: tuple[int, int, int]


DATA = {
    "digits": DataSize(1_797, None, (1, 8, 8)),
    "mnist": DataSize(60_000, 10_000, (1, 28, 28)),
    "cifar10": DataSize(50_000, 10_000, (3, 32, 32)),
}
# Generated images in a data set's shape and number, for runs of which only seconds, bytes and requests count: name -> data set.
GENERATED = {f"{name}-generated": name for name in ("mnist", "cifar10")}
DATA |= {generated: DATA[name] for generated, name in GENERATED.items()}


def count_held_out(samples: int, share: float) -> int:
    """Return how many of the `samples` training samples are held out for validation. `share`: fraction of them. Raises ConfigError
    if it would be none or all.
    """
    held = round(samples * share)
    if not 0 < held < samples:
        raise ConfigError(f"data.validation: {share} of {samples} samples leaves one part empty")
    return held


def explain_too_large(begin: int, name: str, side: int) -> str:
    """Return the error text for a `training.image_size.begin` that is not smaller than the images. `name`: the data set. `side`: pixels."""
    return f"training.image_size.begin: {begin} is not smaller than the images of {name}, which have {side} pixels a side; leave it out"


def count_split(experiment: Experiment) -> tuple[int, int] | None:
    """Return (number of training samples, number of validation samples) of the experiment's data set, or None if it is not built in and
    must be loaded to know. Raises ConfigError if one part would be empty. With `data.validation` "test" and no test split, the second
    number is 0.
    """
    found = DATA.get(experiment.data.dataset)
    return divide(found.training, found.test, experiment) if found else None


def divide(samples: int, test: int | None, experiment: Experiment) -> tuple[int, int]:
    """Return (number of training samples, at most `data.limit`, number of validation samples) of a data set with `samples` training samples
    and `test` test samples, None without a test split. With `data.validation` "test" the second number is `test`, 0 without such a split.
    Raises ConfigError if a share for validation leaves one part empty.
    """
    data = experiment.data
    held = (test or 0) if data.validation == "test" else count_held_out(samples, data.validation)
    training = samples - (0 if data.validation == "test" else held)
    return min(training, data.limit or training), held


# --- the project's own models -----------------------------------------------------------------------------------------
# Counted once, so that nobody waits for torch: `python -m tools.model_sizes` writes the file, a test counts again.

MODELS = Path(__file__).parents[2] / "config" / "calibration" / "models.yaml"


@cache
def load_models() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the sizes of the project's own models as plain data, by model and by image, such as `3x32x32`. The file is read once per
    process; the result is shared and must not be changed.
    """
    import yaml  # functions' layers do not have it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: Mapping[str, Mapping[str, Mapping[str, Any]]]
    found = yaml.load(MODELS.read_text("utf-8"), Loader=loader)["models"]  # noqa: S506 - both are safe
    return found


@cache
def list_known_shapes(model: str, image: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all parameters of one of the project's own models, with ten classes, in the order of its vector; torch is not
    needed. `image`: (channels, height, width) of a data set that comes with the project. Raises KeyError for any other model or image.
    """
    shapes: str = load_models()[model]["x".join(map(str, image))]["shapes"]
    return tuple(tuple(map(int, each.split("x"))) for each in shapes.split())
