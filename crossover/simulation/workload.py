"""Sizes of a run: the bytes it moves and the work it computes, from the experiment's model and data set, or given."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean

from crossover.algorithms.schedule import Calendar
from crossover.errors import NoProjection
from crossover.experiment import Experiment
from crossover.learning.sizes import DATA, StepCounts, count_split, load_models
from crossover.learning.staging import VALIDATION_CHUNK, check_rounds, plan_staging
from crossover.training.progress import calendar_of

VECTOR_HEADER_BYTES, BATCH_HEADER_BYTES, SAMPLE_FACTS_BYTES = 48, 64, 16
MACS_PER_PARAMETER = 50  # of a convolutional network on 32 x 32 images; ResNet-18's: taken for a model that is only a number of parameters


def _explain_unknown_size(name: str, known: Iterable[str]) -> str:
    """Return why the size of the model or data set `name` is not known, as a clause. `known`: names of those that come with the project."""
    if ":" in name:
        return f"{name!r} is code of your own, whose size is not counted here; `crossover plan` and `crossover advise` count it"
    return f"the size of {name!r} is not known; one of {', '.join(known)}"


@dataclass(frozen=True)
class ModelSize:
    """Size of a model. `parameters`, `buffers`: number of its parameters and of its BatchNorm statistics; `macs`: multiply-accumulates of
    the forward pass of one sample; `step`: operations and bytes of a training step, per step and per sample; `kept_bytes`, `widest_bytes`,
    `fixed_bytes`: as in `learning.fitness.Footprint`, 0 if not known. They hold for the image size under which MODEL_SIZES lists them.
    """

    parameters: int
    buffers: int
    macs: int
    step: StepCounts
    kept_bytes: float = 0.0
    widest_bytes: int = 0
    fixed_bytes: int = 0


def _load_models() -> dict[str, dict[tuple[int, int, int], ModelSize]]:
    """Return the sizes of the models in config/calibration/models.yaml, by model name and by image (channels, height, width)."""
    found: dict[str, dict[tuple[int, int, int], ModelSize]] = {}
    for model, images in load_models().items():
        for image, plain in images.items():
            channels, height, width = map(int, image.split("x"))
            known = {name: value for name, value in plain.items() if name != "shapes"}
            size = ModelSize(**{**known, "step": StepCounts(**plain["step"])})
            found.setdefault(model, {})[channels, height, width] = size
    return found


# By model and image, at 10 classes; `python -m tools.model_sizes` counts them, and a test counts them anew.
MODEL_SIZES = _load_models()
# What a model is taken for of which nothing but the number of parameters is known: as many times this one on its images.
TYPICAL = MODEL_SIZES["resnet18_cifar"][3, 32, 32]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of a run: its model, its minibatches and its images. `samples`: number of samples in each minibatch of a worker; all workers
    count as the one with the largest partition. `parameters`, `buffers`: number of the model's parameters and of its BatchNorm statistics;
    `image_bytes`: bytes of one sample's image; `validation_samples`: size of the validation set.

    `macs`: multiply-accumulates of the forward pass of one sample; `step`: operations and bytes of a training step; `training_share`: mean
    share of `macs` that a training step takes, less than 1 if images are scaled down; `base_bytes`: bytes of `training.weights`, which each
    fresh environment and each program reads once; `scaled_from`, `times`: for a model of another size, the name of the experiment's own
    model and the factor on its computing time.
    """

    model: str
    parameters: int
    buffers: int
    macs: int
    step: StepCounts
    samples: tuple[int, ...]
    image_bytes: int
    validation_samples: int
    training_share: float = 1.0
    base_bytes: int = 0
    scaled_from: str = ""
    times: float = 1.0

    @classmethod
    def from_experiment(cls, experiment: Experiment, *, parameters: int | None = None) -> "Workload":
        """Return the workload of an experiment, without base weights (`base_bytes` is 0). `parameters`: number of parameters of a model to
        assume instead of the experiment's own. Raises NoProjection if the size of the model or data set is not known, ConfigError if the
        data cannot be divided among the workers.
        """
        model, dataset, found = experiment.training.model, experiment.data.dataset, count_split(experiment)
        if found is None:
            raise NoProjection(f"data.dataset: {_explain_unknown_size(dataset, DATA)}")
        if model not in MODEL_SIZES and parameters is None:
            raise NoProjection(f"training.model: {_explain_unknown_size(model, MODEL_SIZES)}")
        training, validation = found
        counts, image = plan_staging(experiment, training).counts[0], DATA[dataset].image
        size = MODEL_SIZES[model][image] if parameters is None else _scale_typical_model(parameters)
        return cls(
            model=model if parameters is None else f"{parameters:,} parameters",
            parameters=size.parameters,
            buffers=size.buffers,
            macs=size.macs,
            step=size.step,
            samples=tuple(counts),
            image_bytes=prod(image),
            validation_samples=validation,
            training_share=fmean(shares_by_epoch(experiment)),
        )

    def with_parameters(self, parameters: int) -> "Workload":
        """Return this workload for a model with `parameters` parameters. Computing time, buffers and stored weights change
        in proportion.
        """
        if parameters == self.parameters:
            return self

        def scale(value: int) -> int:
            """Return `value`, which holds for the present number of parameters, in proportion for the new one, rounded down."""
            return value * parameters // self.parameters

        return replace(
            self,
            model=f"{self.scaled_from or self.model} with {parameters:,} parameters",
            parameters=parameters,
            buffers=scale(self.buffers),
            macs=scale(self.macs),
            step=self.step.scale(parameters / self.parameters),
            base_bytes=scale(self.base_bytes),
            scaled_from=self.scaled_from or self.model,
            times=self.times * parameters / self.parameters,
        )

    def with_equal_minibatches(self, *, minibatches: int, batch_size: int) -> "Workload":
        """Return this workload with `minibatches` minibatches per worker, of `batch_size` samples each, regardless of
        the data set's size.
        """
        return replace(self, samples=(batch_size,) * minibatches)

    @property
    def at_full_size(self) -> "Workload":
        """This workload with full-size images in every step, as evaluations use them."""
        return replace(self, training_share=1.0)

    @property
    def elements(self) -> int:
        """Number of values in the model: parameters and buffers."""
        return self.parameters + self.buffers

    @property
    def vector_bytes(self) -> int:
        """Size in bytes of the model or of a gradient, as float32."""
        return 4 * self.elements

    @property
    def minibatches(self) -> int:
        """Number of minibatches that the worker with the most data computes in an epoch."""
        return len(self.samples)

    def batch_bytes(self, samples: int) -> int:
        """Return the bytes of a stored minibatch of `samples` samples, its header included."""
        return BATCH_HEADER_BYTES + samples * (SAMPLE_FACTS_BYTES + self.image_bytes)

    @property
    def data_bytes(self) -> int:
        """Bytes in the object store of one worker's minibatches and of the validation set."""
        return sum(self.batch_bytes(samples) for samples in self.samples) + self.validation_bytes

    @property
    def validation_chunks(self) -> int:
        """Number of objects in which the validation set is stored."""
        return -(-self.validation_samples // VALIDATION_CHUNK)

    @property
    def validation_bytes(self) -> int:
        """Bytes of the whole stored validation set, headers included."""
        return self.validation_chunks * BATCH_HEADER_BYTES + self.validation_samples * (
            SAMPLE_FACTS_BYTES + self.image_bytes
        )


def _scale_typical_model(parameters: int) -> ModelSize:
    """Return a size for a model of which only the number of parameters is known: that of the typical model (TYPICAL), scaled
    in proportion.
    """
    return ModelSize(
        parameters, 0, MACS_PER_PARAMETER * parameters, TYPICAL.step.scale(parameters / TYPICAL.parameters)
    )


def shares_by_epoch(experiment: Experiment) -> list[float]:
    """Return for each epoch the factor on a training step's work because of the images' size: 1 for full-size images, less if they are
    scaled down. Raises KeyError if they are to be scaled down and the data set is not one of DATA, OwnCodeError if a user's model fails.
    """
    training = experiment.training
    if training.image_size.begin is None:
        return [1.0] * training.epochs
    from crossover.learning.fitness import (
        compute_training_shares,  # the model itself: seconds that only such a run takes
    )

    return compute_training_shares(training, classes=10, shape=DATA[experiment.data.dataset].image)


def calendar(experiment: Experiment, workload: Workload) -> Calendar:
    """Return the calendar of a run, which says which minibatches belong to which round and epoch. Raises ConfigError if there are too few
    minibatches for `exchange.every` or `training.steps`.
    """
    check_rounds(experiment, workload.minibatches)
    return calendar_of(experiment, {"minibatches": workload.minibatches})
