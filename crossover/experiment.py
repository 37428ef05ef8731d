"""An experiment as one frozen object: what a YAML asks for, with its defaults. Everything else reads it; nothing changes it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

# --- training ---------------------------------------------------------------------------------------------------------

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
        """Return the best of `values`; None if there are none."""
        return max(values, default=None) if self.rises else min(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """Return the worst of `values`; None if there are none."""
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
    """Settings of training, the same for every architecture."""

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
        """Return these settings with another number of epochs, all of them whole."""
        return replace(self, epochs=epochs, steps=self.steps if epochs == self.epochs else None)


# --- experiment -------------------------------------------------------------------------------------------------------
# An experiment: what the YAML in config/ says, as frozen dataclasses.
#
# Pure data, importable in a Lambda function: no pydantic here. `crossover/validation/` turns a YAML file into an Experiment once, at the
# edge; `from_resolved` rebuilds one from the JSON that was stored beside a run. Bounds stand in the annotations, where pydantic and the
# JSON Schema read them.

S = TypeVar("S")  # the class of an architecture's settings

MOST_MEMORY_MB = 10_240  # of a function

Attack = Literal["none", "sign_flip", "gaussian", "label_flip", "non_finite"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """How a CSV is read by the loader that `advise --data` writes; null: guessed, and the guess is reported."""

    label: str | int | None = None  # a column's name, or its number, counted from 1
    kind: Literal["classes", "numbers"] | None = None  # of labels
    header: bool | None = None  # whether the first row names the columns
    drop: tuple[str | int, ...] | None = None  # columns that are no inputs, by name or number


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data set, and how it is split, prepared and staged."""

    dataset: str = "digits"  # digits, mnist, cifar10, those two with -generated, or package.module:loader
    directory: str | None = None  # where the files lie; --data sets it
    validation: Annotated[float, Gt(0.0), Lt(1.0)] | Literal["test"] = (
        0.2  # share of the training set, or the test split
    )
    preprocess: Literal["standardize", "minmax", "normalize", "none"] = "standardize"  # of measures, not of tokens
    # Whether the model learns (label - mean) / deviation, with the metric in the labels' own unit. auto: with training.loss: mse, if they
    # are far from mean 0 and deviation 1.
    scale_labels: Literal["auto", "always", "never"] = "auto"
    table: Table = field(default_factory=Table)
    drop_last: bool = False
    # crop_flip mirrors by chance, crop_alternate each image in every second epoch
    augment: Literal["none", "crop_flip", "crop_alternate"] = "none"
    limit: Positive | None = None  # use only so many training samples (cut-down runs)


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """The rule that combines the workers' averages."""

    rule: str = "mean"  # a name in crossover/algorithms/rules
    trim: Annotated[int, Ge(0)] = 1  # trimmed_mean: how many are dropped at each end
    faulty: Annotated[int, Ge(0)] = 1  # krum: how many workers may lie
    select: Positive = 1  # krum: how many are averaged
    non_finite: Literal["refuse", "drop"] = "refuse"  # a worker's NaN or infinity ends the run, or leaves it out

    def without(self, dropped: int) -> "Aggregation":
        """Return the rule for the remaining workers: `dropped` faulty ones are gone, so trim and tolerate that many fewer."""
        return replace(self, trim=max(0, self.trim - dropped), faulty=max(0, self.faulty - dropped))


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Workers that attack, to show what a robust rule is worth."""

    attack: Attack = "none"
    workers: tuple[int, ...] = ()
    scale: Annotated[float, Gt(0.0)] = 10.0


@dataclass(frozen=True, kw_only=True)
class Database:
    """The tensor database and where its arithmetic happens."""

    compute: Literal["in_database", "fetch"] = (
        "in_database"  # fetch where the database lacks the optimizer's or rule's command
    )
    instance_type: str = "m7g.large"
    image_generation: Positive = 1  # raised by one: hosts made anew, from the newest image
    threads: Positive = 1
    time_to_live_s: Positive = 86_400


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The object store, and the channel that exchanges go through where an architecture lets one choose."""

    bucket_per_worker: bool = False
    channel: Literal["redis", "s3"] = "redis"


@dataclass(frozen=True, kw_only=True)
class Functions:
    """Lambda settings; `memory_mb` by step name, `default` for the rest."""

    memory_mb: Mapping[str, Annotated[int, Ge(128), Le(MOST_MEMORY_MB)]] = field(
        default_factory=lambda: {"default": 1_769}
    )
    timeout_s: Annotated[int, Ge(10), Le(900)] = 900
    checkpoint_every: Positive = 8  # rounds; long workers: how much a restarted one replays, how long results stay
    packaging: Literal["layer", "image"] = "layer"
    snap_start: bool = False

    def memory_of(self, step: str, *, torch: bool) -> int:
        """MB for `step`: its own entry, else 512 for a step that does not compute, else the default."""
        default = self.memory_mb.get("default", 1_769)
        return self.memory_mb.get(step, default if torch else min(512, default))


@dataclass(frozen=True, kw_only=True)
class Outer:
    """`exchange.what: delta`: the optimizer whose gradient is what the workers' models moved by, on average. The defaults are DiLoCo's."""

    learning_rate: Annotated[float, Gt(0.0)] = 0.7
    momentum: Fraction = 0.9
    nesterov: bool = True


What = Literal["gradients", "model", "delta"]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What the workers exchange, how often, and how it is compressed; docs/exchange.md says which architecture can do which."""

    every: Positive | Literal["epoch"] | None = None  # minibatches per exchange; None: the architecture's own
    what: What = "gradients"  # model, delta: workers take steps of their own in between
    outer: Outer = field(default_factory=Outer)
    compression: str = "none"  # one of crossover/algorithms/codecs
    rank: Positive = 4  # powersgd
    share: Annotated[float, Gt(0.0), Le(1.0)] = 0.01  # top_k: of the elements
    bits: Annotated[int, Ge(2), Le(8)] = 8  # qsgd, as are bucket and norm
    bucket: Annotated[int, Ge(128), Le(65_536)] = 512  # elements that share a scale; eight at a time lie in memory
    norm: Literal["l2", "max"] = "max"
    error_feedback: bool | None = None  # what a round leaves out goes into the next; None: with powersgd and top_k
    minibatches_per_invocation: Positive | Literal["all"] = "all"  # of long functions


@dataclass(frozen=True, kw_only=True)
class PeerToPeer:
    """P2P: synchronous or not, where batches are averaged."""

    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    average_in: Literal["peer", "lambda"] = "peer"
    min_gradients: Positive = 1
    staleness_limit: Annotated[int, Ge(0)] = 4
    staleness_weights: Literal["samples", "inverse"] = "inverse"
    reuse: bool = False
    message_limit_mb: Annotated[float, Gt(0.0), Le(15.0)] = 15.0
    instance_type: str = "t2.large"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU fleet: instances x gpus_per_instance workers."""

    instances: Positive = 4
    gpus_per_instance: Positive = 1
    instance_type: str = "g4dn.xlarge"
    spot: bool = False
    exchange: Literal["s3", "distributed"] = "s3"


Baseline = Literal["gpu", "single"]  # what an experiment can be run beside
BROKER_VERSION = "4.2"  # of RabbitMQ, on Amazon MQ


@dataclass(frozen=True, kw_only=True)
class Network:
    """Where it is deployed."""

    availability_zone: str | None = None
    broker_instance_type: str = "mq.m7g.medium"


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """When it ends by itself."""

    ttl_hours: Annotated[float, Gt(0.0), Le(720.0)] = 8.0
    budget_usd: Annotated[float, Gt(0.0)] | None = None
    idle_minutes: Annotated[float, Gt(0.0)] = 15.0
    maximum_run_hours: Annotated[float, Gt(0.0)] = 6.0
    notify: str | None = None  # ARN of an SNS topic, told where a clean-up fails


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One YAML of config/, validated."""

    name: str
    architecture: str
    project: str = "crossover"
    owner: str = "unknown"
    seed: int = 1
    workers: Annotated[int, Ge(1), Le(64)] = 4
    baseline: Literal["none"] | Baseline | tuple[Baseline, ...] = "none"
    recipe: Literal["none", "paper", "fast"] = (
        "none"  # crossover/validation/recipes.py: the edge has put its values in place
    )
    training: Training = field(default_factory=Training)
    data: Data = field(default_factory=Data)
    aggregation: Aggregation = field(default_factory=Aggregation)
    faults: Faults = field(default_factory=Faults)
    database: Database = field(default_factory=Database)
    storage: Storage = field(default_factory=Storage)
    functions: Functions = field(default_factory=Functions)
    exchange: Exchange = field(default_factory=Exchange)
    p2p: PeerToPeer = field(default_factory=PeerToPeer)
    gpu: Gpu = field(default_factory=Gpu)
    network: Network = field(default_factory=Network)
    lifetime: Lifetime = field(default_factory=Lifetime)
    sections: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # architectures' own settings, as plain data

    def settings(self, kind: type[S]) -> S:
        """Return an architecture's own settings as an instance of `kind`, with the class's defaults for what the YAML omits."""
        found: S = _build(kind, self.sections.get(section_of(kind), {}))
        return found

    def with_settings(self, *settings: Any) -> "Experiment":
        """With these instead of what an architecture was told before."""
        return replace(self, sections={**self.sections, **{section_of(type(s)): _plain(asdict(s)) for s in settings}})

    @property
    def module(self) -> str:
        """The architecture's module name in functions/ or peers/ and in stacks/."""
        return self.architecture.replace("-", "_")

    @property
    def outside(self) -> bool:
        """Whether the architecture lies in a package of the user's own, as `my_package.mine` does."""
        return "." in self.architecture

    @property
    def baselines(self) -> tuple[str, ...]:
        """Those that `baseline` names, but for the experiment's own architecture."""
        named = (self.baseline,) if isinstance(self.baseline, str) else self.baseline
        return tuple(name for name in dict.fromkeys(named) if name not in ("none", self.module))

    def resolved(self) -> dict[str, Any]:
        """Plain JSON of every field, defaults included: what `from_resolved` reads back. Architectures' sections stand beside the rest."""
        plain: dict[str, Any] = _plain(asdict(self))
        sections: dict[str, Any] = plain.pop("sections")
        return plain | sections


def section_of(settings: type) -> str:
    """Return the name of the YAML section that an architecture's class of settings describes: its `section`, else the architecture's
    module: `mine` for a class in functions/mine.py and for one in functions/mine/settings.py.
    """
    names = settings.__module__.removesuffix(".settings").split(".")
    return str(getattr(settings, "section", names[-1]))


def from_resolved(plain: Mapping[str, Any]) -> Experiment:
    """Build the Experiment that `Experiment.resolved()` wrote. Its content was validated at the edge; unknown fields raise TypeError.

    An unknown section is an architecture's, whose class a function of another one does not hold: it stays plain data. Fields that have
    moved are read where earlier versions wrote them.
    """
    plain = renamed(plain)
    known = {f.name for f in fields(Experiment)}
    sections = {key: value for key, value in plain.items() if key not in known and isinstance(value, Mapping)}
    rest = {key: value for key, value in plain.items() if key not in sections}
    experiment = _build(Experiment, {**rest, "sections": sections})
    assert isinstance(experiment, Experiment)
    return experiment


MOVED = {
    "training.sync_every": "exchange.every",
    **{f"p2p.{name}": f"exchange.{name}" for name in ("compression", "bits", "bucket", "norm")},
}  # fields of earlier versions, and where they stand now


def renamed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """`Experiment.resolved()` of an earlier version, with what has moved where it stands now."""
    sections = {key: dict(value) if isinstance(value, Mapping) else value for key, value in plain.items()}
    for old, new in MOVED.items():
        (section, name), (now, named) = old.split("."), new.split(".")
        if name in sections.get(section, {}):
            sections.setdefault(now, {}).setdefault(named, sections[section].pop(name))
    if sections.get("database", {}).get("variant") == "core":  # the only one that there is now
        del sections["database"]["variant"]
    return sections


def flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`training.epochs` and its value, for every field of `Experiment.resolved()`, or of any nested mapping."""
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
    return value


_hints = cache(get_type_hints)  # reading annotations takes longer than all the rest


def _build(cls: Any, plain: Mapping[str, Any]) -> Any:
    hints = _hints(cls)
    known = {f.name for f in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in plain.items():
        kind = hints[key] if key in known else None
        if is_dataclass(kind):
            value = _build(kind, value)
        elif isinstance(value, list):
            value = tuple(value)
        values[key] = value
    return cls(**values)
