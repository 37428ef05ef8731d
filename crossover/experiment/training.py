"""What a YAML says of training: the model, what of it is trained, and how its steps are taken."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

Positive = Annotated[int, Ge(1)]
NonNegative = Annotated[float, Ge(0.0)]
Fraction = Annotated[float, Ge(0.0), Lt(1.0)]
MOST_THREADS = 256  # more than EC2 instances that train have; from some thousands on OpenMP ends the process

LOWER_IS_BETTER = ("mean_absolute_error", "perplexity")  # of the metrics that come with the project


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What the model is judged by on the validation set: `accuracy`, `perplexity`, `mean_absolute_error` or package.module:name."""

    name: str = "accuracy"
    higher_is_better: bool | None = None  # null: as its name implies; one's own must say it

    @property
    def words(self) -> str:
        """The name as people read it: `mean absolute error` of `houses:mean_absolute_error`."""
        return self.name.rpartition(":")[2].replace("_", " ")

    @property
    def is_share(self) -> bool:
        """Whether it lies between 0 and 1 and is read as a percentage."""
        return self.name == "accuracy"

    @property
    def rises(self) -> bool:
        """Whether a higher value is a better one."""
        return self.name not in LOWER_IS_BETTER if self.higher_is_better is None else self.higher_is_better

    def not_reachable(self, value: float) -> str:
        """Why no run can reach `value`; empty where one can. Percent are taken for a slip."""
        if not self.is_share or 0 < value <= 1:
            return ""
        meant = f"did you mean {value / 100:g}?" if 1 < value <= 100 else "expected a share > 0 and <= 1, such as 0.95"
        return f"{value:g} is no {self.name}, which is a share; {meant}"

    def reaches(self, value: float, goal: float) -> bool:
        """Whether `value` is as good as `goal`, or better."""
        return value >= goal if self.rises else value <= goal

    def best(self, values: Iterable[float]) -> float | None:
        """The best of them; None where there are none."""
        return max(values, default=None) if self.rises else min(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """The worst of them; None where there are none."""
        return min(values, default=None) if self.rises else max(values, default=None)


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """Progressive image size: training begins with images scaled down, which cost less, and ends with them as they are."""

    begin: Annotated[int, Ge(4)] | None = None  # pixels of a side in the first epochs; null: as they are throughout
    step: Positive = 8  # pixels by which they grow, each size for as many epochs
    full_from: Annotated[float, Gt(0.0), Le(1.0)] = 0.75  # share of the epochs after which they are as they are


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Low-rank adapters beside Linear layers of a model of one's own, which are trained in their place."""

    rank: Positive = 8
    alpha: Annotated[float, Gt(0.0)] = 16.0  # what they add counts alpha / rank times
    targets: tuple[str, ...] = ()  # names of layers, or patterns such as "*.query"


@dataclass(frozen=True, kw_only=True)
class Clip:
    """No step follows a longer gradient: of the mean, as it arrives; of each of a worker's own steps where it takes some."""

    norm: Annotated[float, Gt(0.0)] | None = None  # L2, of all that is trained; null: as long as it is


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The base that a model of one's own begins from: a safetensors file, which every process reads once."""

    # Beside the YAML or in the current folder, package:path of an installed package, or s3://bucket/key; null: none.
    file: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the model is trained; the same for every architecture."""

    model: str = "small_cnn"  # a name of the registry, or package.module:factory
    weights: Weights = field(default_factory=Weights)
    adapters: Adapters = field(default_factory=Adapters)
    trainable: tuple[str, ...] | None = None  # parameters beside adapters, by name or pattern; all else is frozen
    save: Literal["all", "adapters", "merged"] = "all"  # in the model's file: adapters, what is trained alone
    epochs: Positive = 20
    steps: Positive | None = None  # the last epoch ends early, with the run's update of this number
    batch_size: Positive = 60
    optimizer: str = "sgd"  # a name in crossover/algorithms/optimizers
    learning_rate: Annotated[float, Gt(0.0)] = 0.1
    momentum: Fraction = 0.9
    nesterov: bool = False
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)  # adam, adamw: of the first moment and the second
    weight_decay: NonNegative = 0.0
    no_decay: tuple[str, ...] = ()  # parameters that weight_decay leaves alone, by name or pattern: "*norm*"
    clip: Clip = field(default_factory=Clip)
    loss: str = "cross_entropy"  # cross_entropy, mse, bce_with_logits, or package.module:name
    label_smoothing: Fraction = 0.0  # of cross_entropy
    image_size: ImageSize = field(default_factory=ImageSize)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    schedule: Literal["constant", "one_cycle", "cosine", "plateau"] = "constant"
    warm_up: Fraction = 0.2  # one_cycle, cosine: share of all rounds before the peak
    floor: Fraction = 0.0  # cosine: share of the learning rate that it comes down to
    plateau_factor: Annotated[float, Gt(0.0), Lt(1.0)] = 0.1
    plateau_patience: Positive = 10
    early_stopping: Annotated[int, Ge(0)] = 0  # epochs without a better validation loss; 0: never
    metric: Metric = field(default_factory=Metric)
    target: float | None = None  # stop once the metric on the validation set is there
    # torch threads per process: part of what bitwise equality needs. auto: as many as the vCPUs that are paid for; fixed when a run starts.
    threads: Annotated[int, Ge(1), Le(MOST_THREADS)] | Literal["auto"] = 1

    def of_epochs(self, epochs: int) -> "Training":
        """The same for another number of epochs, all of them whole."""
        return replace(self, epochs=epochs, steps=self.steps if epochs == self.epochs else None)
