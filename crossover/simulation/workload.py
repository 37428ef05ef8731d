"""What a run moves and computes, as sizes: from the experiment's model and data set, or given, so that any size can be asked for."""

from dataclasses import dataclass, replace
from math import prod
from statistics import fmean

from crossover.algorithms.calendar import Calendar
from crossover.errors import NoProjection
from crossover.experiment import Experiment
from crossover.learning.sizes import DATA, split
from crossover.learning.staging import VALIDATION_CHUNK, check_rounds, plan
from crossover.training.calendar import calendar_of

VECTOR_HEADER_BYTES, BATCH_HEADER_BYTES, SAMPLE_FACTS_BYTES = 48, 64, 16
MACS_PER_PARAMETER = 50  # of a convolutional network on 32 x 32 images; ResNet-18's: taken for a model that is only a number of parameters


@dataclass(frozen=True)
class ModelSize:
    """`macs`: multiply-accumulates of one sample forward, on the images of `image`."""

    parameters: int
    buffers: int
    macs: int


# By model and image, at 10 classes; a test counts them anew.
MODELS: dict[str, dict[tuple[int, int, int], ModelSize]] = {
    "mobilenet": {
        (1, 8, 8): ModelSize(3_216_650, 21_888, 4_059_904),
        (1, 28, 28): ModelSize(3_216_650, 21_888, 42_030_208),
        (3, 32, 32): ModelSize(3_217_226, 21_888, 46_354_432),
    },
    "mobilenet_v3_small": {
        (1, 8, 8): ModelSize(1_527_818, 12_112, 2_096_064),
        (1, 28, 28): ModelSize(1_527_818, 12_112, 2_096_064),
        (3, 32, 32): ModelSize(1_528_106, 12_112, 2_169_792),
    },
    "resnet18": {
        (1, 8, 8): ModelSize(11_175_370, 9_600, 11_655_168),
        (1, 28, 28): ModelSize(11_175_370, 9_600, 33_010_944),
        (3, 32, 32): ModelSize(11_181_642, 9_600, 37_016_576),
    },
    "resnet18_cifar": {
        (1, 8, 8): ModelSize(11_172_810, 9_600, 34_644_992),
        (1, 28, 28): ModelSize(11_172_810, 9_600, 455_800_832),
        (3, 32, 32): ModelSize(11_173_962, 9_600, 555_422_720),
    },
    "resnet50": {
        (1, 8, 8): ModelSize(23_522_250, 53_120, 24_253_440),
        (1, 28, 28): ModelSize(23_522_250, 53_120, 77_951_232),
        (3, 32, 32): ModelSize(23_528_522, 53_120, 83_431_424),
    },
    "resnet50_cifar": {
        (1, 8, 8): ModelSize(23_519_690, 53_120, 81_059_840),
        (1, 28, 28): ModelSize(23_519_690, 53_120, 1_046_819_840),
        (3, 32, 32): ModelSize(23_520_842, 53_120, 1_297_829_888),
    },
    "small_cnn": {
        (1, 8, 8): ModelSize(25_978, 224, 159_232),
        (1, 28, 28): ModelSize(25_978, 224, 1_921_792),
        (3, 32, 32): ModelSize(26_266, 224, 2_804_224),
    },
    "squeezenet": {
        (1, 8, 8): ModelSize(726_474, 0, 2_736_704),
        (1, 28, 28): ModelSize(726_474, 0, 2_736_704),
        (3, 32, 32): ModelSize(727_626, 0, 2_995_904),
    },
    "vgg11": {
        (1, 8, 8): ModelSize(128_806_154, 0, 271_163_392),
        (1, 28, 28): ModelSize(128_806_154, 0, 271_163_392),
        (3, 32, 32): ModelSize(128_807_306, 0, 272_343_040),
    },
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of a run. `samples`: of a worker's minibatches, the same for every worker (the largest partition's).

    `training_share`: of `macs`, what a training step takes of them on images that are scaled down; the mean of the run's epochs.
    `base_bytes`: of `training.weights`, which each fresh environment and each program reads once.
    """

    model: str
    parameters: int
    buffers: int
    macs: int
    samples: tuple[int, ...]
    image_bytes: int
    validation_samples: int
    training_share: float = 1.0
    base_bytes: int = 0

    @classmethod
    def of(cls, experiment: Experiment, *, parameters: int | None = None) -> "Workload":
        """The experiment's own, or with a model of so many `parameters`. Raises NoProjection for a model or data set whose size is unknown
        here, ConfigError where the workers cannot share the data.
        """
        model, dataset, found = experiment.training.model, experiment.data.dataset, split(experiment)
        if found is None:
            raise NoProjection(f"data.dataset: the size of {dataset!r} is not known; one of {', '.join(DATA)}")
        if model not in MODELS and parameters is None:
            raise NoProjection(f"training.model: the size of {model!r} is not known; one of {', '.join(MODELS)}")
        training, validation = found
        counts, image = plan(experiment, training).counts[0], DATA[dataset].image
        size = MODELS[model][image] if parameters is None else ModelSize(parameters, 0, MACS_PER_PARAMETER * parameters)
        return cls(
            model=model if parameters is None else f"{parameters:,} parameters",
            parameters=size.parameters,
            buffers=size.buffers,
            macs=size.macs,
            samples=tuple(counts),
            image_bytes=prod(image),
            validation_samples=validation,
            training_share=fmean(shares_by_epoch(experiment)),
        )

    def sized(self, parameters: int) -> "Workload":
        """A model of so many parameters, of which nothing else is known."""
        return replace(
            self,
            model=f"{parameters:,} parameters",
            parameters=parameters,
            buffers=0,
            macs=MACS_PER_PARAMETER * parameters,
        )

    def uniform(self, *, minibatches: int, batch_size: int) -> "Workload":
        """So many minibatches per worker, whatever the data set holds."""
        return replace(self, samples=(batch_size,) * minibatches)

    @property
    def evaluated(self) -> "Workload":
        """As an evaluation sees it: on images as they are."""
        return replace(self, training_share=1.0)

    @property
    def elements(self) -> int:
        return self.parameters + self.buffers

    @property
    def vector_bytes(self) -> int:
        """Of a model or a gradient."""
        return 4 * self.elements

    @property
    def minibatches(self) -> int:
        return len(self.samples)

    def batch_bytes(self, samples: int) -> int:
        return BATCH_HEADER_BYTES + samples * (SAMPLE_FACTS_BYTES + self.image_bytes)

    @property
    def validation_chunks(self) -> int:
        return -(-self.validation_samples // VALIDATION_CHUNK)

    @property
    def validation_bytes(self) -> int:
        return self.validation_chunks * BATCH_HEADER_BYTES + self.validation_samples * (
            SAMPLE_FACTS_BYTES + self.image_bytes
        )


def shares_by_epoch(experiment: Experiment) -> list[float]:
    """What each epoch's images take of a training step's work on whole ones; of a data set whose size is known here."""
    training = experiment.training
    if training.image_size.begin is None:
        return [1.0] * training.epochs
    from crossover.learning.footprint import training_shares  # the model itself: seconds that only such a run takes

    return training_shares(training, classes=10, shape=DATA[experiment.data.dataset].image)


def calendar(experiment: Experiment, workload: Workload) -> Calendar:
    """Which minibatches and epochs the rounds are. Raises ConfigError where they are too few for `exchange.every` or `training.steps`."""
    check_rounds(experiment, workload.minibatches)
    return calendar_of(experiment, {"minibatches": workload.minibatches})
