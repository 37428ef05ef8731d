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
MAX_THREADS = 256  # more than any instance for training has; with some thousands OpenMP ends the process

LOWER_IS_BETTER = ("mean_absolute_error", "perplexity")  # of the metrics that come with the project: KNOWN_METRICS


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Measure of the model's quality on the validation set. `name`: `accuracy`, `perplexity`, `mean_absolute_error` or a user function,
    package.module:name. `higher_is_better`: needed for a user function; null: as the name implies.
    """

    name: str = "accuracy"
    higher_is_better: bool | None = None  # null: as the name implies; needed for a user function

    @property
    def words(self) -> str:
        """Name in words, without its module: `mean absolute error` for `houses:mean_absolute_error`."""
        return self.name.rpartition(":")[2].replace("_", " ")

    @property
    def is_share(self) -> bool:
        """True if the metric lies between 0 and 1 and is read as a percentage: for accuracy only."""
        return self.name == "accuracy"

    @property
    def higher_wins(self) -> bool:
        """True if a higher value is better: as `higher_is_better` says; if it is None, for all but mean_absolute_error and perplexity."""
        return self.name not in LOWER_IS_BETTER if self.higher_is_better is None else self.higher_is_better

    def explain_unreachable(self, value: float) -> str:
        """Return in words why no run can reach the target `value`: accuracy must be above 0 and at most 1 (a larger value was
        perhaps meant as a percentage). "" if it can be reached, or for other metrics.
        """
        if not self.is_share or 0 < value <= 1:
            return ""
        meant = f"did you mean {value / 100:g}?" if 1 < value <= 100 else "expected a share > 0 and <= 1, such as 0.95"
        return f"{value:g} is no {self.name}, which is a share; {meant}"

    def reaches(self, value: float, goal: float) -> bool:
        """Return whether `value` is as good as `goal`, or better."""
        return value >= goal if self.higher_wins else value <= goal

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of `values`: the highest, or the lowest if lower is better; None if there are none."""
        return max(values, default=None) if self.higher_wins else min(values, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """Return the worst of `values`: the lowest, or the highest if lower is better; None if there are none."""
        return min(values, default=None) if self.higher_wins else max(values, default=None)


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """Settings of progressive image size: the first epochs train on smaller images, which cost less, the last ones on full-size images.
    `begin`: pixels of a side in the first epoch; null: full size throughout. `step`: pixels by which sides grow, each size for equally
    many epochs. `full_from`: share of the epochs after which images have full size.
    """

    begin: Annotated[int, Ge(4)] | None = None  # pixels of a side in the first epoch; null: full size throughout
    step: Positive = 8  # pixels by which sides grow, each size for equally many epochs
    full_from: Annotated[float, Gt(0.0), Le(1.0)] = 0.75  # share of the epochs after which images have full size


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Settings of low-rank adapters (LoRA), which are added to Linear layers of a user's model and trained instead of these layers.
    `targets`: names of the layers, or patterns such as `*.query`; if empty, there are no adapters. `alpha`: an adapter's output counts
    alpha / rank times.
    """

    rank: Positive = 8
    alpha: Annotated[float, Gt(0.0)] = 16.0  # an adapter's output counts alpha / rank times
    targets: tuple[str, ...] = ()  # names of layers, or patterns such as "*.query"


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Setting of gradient clipping: `norm` is the largest L2 norm of a gradient that an optimizer step uses; a longer one is
    shortened; null: no clipping. It applies to the workers' mean gradient, or with local steps to each worker's.
    """

    norm: Annotated[float, Gt(0.0)] | None = None  # largest L2 norm of a gradient; null: no clipping


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Pretrained weights from which a user's model begins: `file`, in safetensors format, and its `sha256`. The file lies beside the
    YAML or in the current folder, or is `package:path` in an installed package, or `s3://bucket/key`; null: none.
    """

    # Beside the YAML or in the current folder, package:path of an installed package, or s3://bucket/key; null: none.
    file: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the section `training`: model, optimizer, schedule, loss and metric. They do not depend on the architecture.
    `model`: name of a built-in model, or package.module:factory. `trainable`: parameters to train besides adapters, by name or pattern,
    while all others are frozen; null: all, or with adapters none. `save`: what the model's file holds: the whole model, only the trained
    parameters (`adapters`), or the model with the adapters merged into its weights. `batch_size`: samples in a minibatch of one worker.
    `steps`: number of updates after which the run ends, within its last epoch; null: all epochs are whole. `betas`: of adam and adamw.
    `no_decay`: parameters without `weight_decay`, by name or pattern. `loss`: cross_entropy, mse, bce_with_logits, or
    package.module:name. `learning_rate`: the constant rate, or with a schedule its first or highest rate. `warm_up`: share of the updates
    before the highest rate, for one_cycle and cosine; `floor`: share of `learning_rate` at which cosine ends. `plateau_patience`: number
    of evaluations in a row without a better validation loss that are tolerated; after one more, plateau multiplies the rate by
    `plateau_factor`. `early_stopping`: evaluations without a better validation loss before training stops; 0: never. `target`: value of
    the metric on the validation set at which training stops; null: none. `threads`: torch threads per process; auto: the number of vCPUs
    that are paid for.
    """

    model: str = "small_cnn"  # a name in MODEL_FACTORIES of learning/zoo.py, or package.module:factory
    weights: Weights = field(default_factory=Weights)
    adapters: Adapters = field(default_factory=Adapters)
    trainable: tuple[str, ...] | None = None  # parameters to train besides adapters; null: all, or with adapters none
    save: Literal["all", "adapters", "merged"] = "all"  # content of the model's file
    epochs: Positive = 20
    steps: Positive | None = None  # updates after which the run ends, within its last epoch
    batch_size: Positive = 60
    optimizer: str = "sgd"  # a name in crossover/algorithms/optimizers
    learning_rate: Annotated[float, Gt(0.0)] = 0.1
    momentum: Fraction = 0.9
    nesterov: bool = False
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)  # of adam and adamw: first and second moment
    weight_decay: NonNegative = 0.0
    no_decay: tuple[str, ...] = ()  # parameters without weight_decay, by name or pattern: "*norm*"
    clip: Clip = field(default_factory=Clip)
    loss: str = "cross_entropy"  # cross_entropy, mse, bce_with_logits, or package.module:name
    label_smoothing: Fraction = 0.0  # of cross_entropy
    image_size: ImageSize = field(default_factory=ImageSize)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    schedule: Literal["constant", "one_cycle", "cosine", "plateau"] = "constant"
    warm_up: Fraction = 0.2  # one_cycle, cosine: share of the rounds before the highest rate
    floor: Fraction = 0.0  # cosine: share of the learning rate at which it ends
    plateau_factor: Annotated[float, Gt(0.0), Lt(1.0)] = 0.1
    plateau_patience: Positive = 10
    early_stopping: Annotated[int, Ge(0)] = 0  # evaluations without a better validation loss; 0: never
    metric: Metric = field(default_factory=Metric)
    target: float | None = None  # value of the validation metric at which training stops
    # torch threads per process; bitwise equality needs equal numbers. auto: the number of vCPUs that are paid for, fixed when a run starts.
    threads: Annotated[int, Ge(1), Le(MAX_THREADS)] | Literal["auto"] = 1

    def with_epochs(self, epochs: int) -> "Training":
        """Return these settings with another number of `epochs`; `steps`, which would end the last epoch early, is unset if the
        number changes.
        """
        return replace(self, epochs=epochs, steps=self.steps if epochs == self.epochs else None)


# --- experiment -------------------------------------------------------------------------------------------------------
# An experiment: the content of a YAML file, as frozen dataclasses.
#
# Pure data, importable in a Lambda function: no pydantic here. `crossover/validation/` turns a YAML file into an Experiment once, at the
# edge; `from_plain` rebuilds one from the JSON that was stored beside a run. Bounds are in the annotations, from which pydantic and the
# JSON Schema take them.

S = TypeVar("S")  # the class of an architecture's settings

MAX_MEMORY_MB = 10_240  # of a function

Attack = Literal["none", "sign_flip", "gaussian", "label_flip", "non_finite"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Settings by which the loader that `crossover advise --data` writes reads a CSV. `label`: the labels' column, by name or number
    (from 1). `kind`: whether labels are classes or numbers. `header`: whether the first row names the columns. `drop`: columns that are
    no inputs. A field that is null is guessed when the file is read, and the guess is reported.
    """

    label: str | int | None = None  # a column's name, or its number, counted from 1
    kind: Literal["classes", "numbers"] | None = None  # of labels
    header: bool | None = None  # whether the first row names the columns
    drop: tuple[str | int, ...] | None = None  # columns that are not inputs, by name or number


@dataclass(frozen=True, kw_only=True)
class Data:
    """Settings of the section `data`: which data set, how it is split, preprocessed and augmented. `validation`: share of the training
    set that is held out, or `test` for the data set's test split. `limit`: number of training samples to use; null: all. `scale_labels`:
    whether the model learns labels of mean 0 and deviation 1; auto: with the loss mse, if the labels are far from that. `directory`:
    folder of the data set's files.
    """

    dataset: str = "digits"  # digits, mnist(-generated), cifar10(-generated), or package.module:loader
    directory: str | None = None  # folder of the data set's files; --data sets it
    validation: Annotated[float, Gt(0.0), Lt(1.0)] | Literal["test"] = (
        0.2  # share of the training set, or the test split
    )
    preprocess: Literal["standardize", "minmax", "normalize", "none"] = "standardize"  # tokens are never changed
    # Whether the model learns (label - mean) / deviation, with the metric in the labels' own unit. auto: with training.loss: mse, if
    # labels are far from mean 0 and deviation 1.
    scale_labels: Literal["auto", "always", "never"] = "auto"
    table: Table = field(default_factory=Table)
    drop_last: bool = False
    # crop_flip mirrors images at random, crop_alternate each image in every second epoch
    augment: Literal["none", "crop_flip", "crop_alternate"] = "none"
    limit: Positive | None = None  # number of training samples to use; null: all


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """Settings of the section `aggregation`: the rule that combines the workers' contributions, such as mean or median, and its
    parameters. `trim`: values that trimmed_mean drops at each end. `faulty`, `select`: for krum, workers that may be faulty, and
    contributions that are averaged. `non_finite`: whether a worker's NaN or infinity ends the run (refuse) or leaves the worker out (drop).
    """

    rule: str = "mean"  # a name in crossover/algorithms/rules
    trim: Annotated[int, Ge(0)] = 1  # trimmed_mean: values dropped at each end
    faulty: Annotated[int, Ge(0)] = 1  # krum: workers that may be faulty
    select: Positive = 1  # krum: contributions that are averaged
    non_finite: Literal["refuse", "drop"] = "refuse"  # a worker's NaN or infinity ends the run, or excludes the worker

    def with_fewer_workers(self, dropped: int) -> "Aggregation":
        """Return these settings for a round from which `dropped` faulty workers have been left out: `trim` and `faulty` are that
        much lower, at least 0.
        """
        return replace(self, trim=max(0, self.trim - dropped), faulty=max(0, self.faulty - dropped))


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Settings of workers that are made faulty on purpose, to show what a robust aggregation rule is worth: which `workers`, by rank
    (from 0), do what (`attack`), how strongly (`scale`).
    """

    attack: Attack = "none"
    workers: tuple[int, ...] = ()
    scale: Annotated[float, Gt(0.0)] = 10.0


@dataclass(frozen=True, kw_only=True)
class Database:
    """Settings of the section `database`: the workers' tensor databases, and whether vectors are averaged and updated in them
    (`compute: in_database`) or by functions that fetch them. `time_to_live_s`: seconds after which keys expire. `image_generation`:
    raise it by one to replace the databases' hosts by new ones with the newest image.
    """

    compute: Literal["in_database", "fetch"] = (
        "in_database"  # fetch if the database has no command for the optimizer or rule
    )
    instance_type: str = "m7g.large"
    image_generation: Positive = 1  # raise by one to replace the hosts, with the newest image
    threads: Positive = 1
    time_to_live_s: Positive = 86_400


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Settings of the section `storage`: through which store (`channel`) workers exchange vectors, if the architecture has a choice,
    and whether each worker's data is in a bucket of its own (`bucket_per_worker`).
    """

    bucket_per_worker: bool = False
    channel: Literal["redis", "s3"] = "redis"


@dataclass(frozen=True, kw_only=True)
class Functions:
    """Settings of the section `functions`: Lambda functions. `memory_mb`: MB by step name, with "default" for all other steps.
    `checkpoint_every`: rounds between two checkpoints of long workers. `packaging`: whether PyTorch comes as a layer or in an image.
    """

    memory_mb: Mapping[str, Annotated[int, Ge(128), Le(MAX_MEMORY_MB)]] = field(
        default_factory=lambda: {"default": 1_769}
    )
    timeout_s: Annotated[int, Ge(10), Le(900)] = 900
    checkpoint_every: Positive = 8  # rounds between two checkpoints of long workers
    packaging: Literal["layer", "image"] = "layer"
    snap_start: bool = False

    def memory_of(self, step: str, *, torch: bool) -> int:
        """Return the memory of `step` in MB: its own entry of `memory_mb`, else the default (1,769 if none is given). A step without an
        entry that does not use PyTorch gets at most 512. `torch`: whether the step uses PyTorch.
        """
        default = self.memory_mb.get("default", 1_769)
        return self.memory_mb.get(step, default if torch else min(512, default))


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Settings of the outer optimizer, used with `exchange.what: delta`: after local steps, it takes one step, whose
    gradient is the model before them minus the mean of the workers' models after them. Defaults: DiLoCo's.
    """

    learning_rate: Annotated[float, Gt(0.0)] = 0.7
    momentum: Fraction = 0.9
    nesterov: bool = True


What = Literal["gradients", "model", "delta"]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Settings of the section `exchange`: what the workers exchange, how often, and how it is compressed. docs/exchange.md says
    which architecture supports what. `every`: minibatches per exchange; null: the architecture's own number. `rank`: of powersgd.
    `share`: of the elements that top_k sends. `bits`, `bucket`, `norm`: of qsgd; a bucket is the number of elements that share a scale.
    `error_feedback`: whether what compression left out of a round is added to the next; null: with powersgd and top_k.
    """

    every: Positive | Literal["epoch"] | None = None  # minibatches per exchange; null: the architecture's own number
    what: What = "gradients"  # model, delta: workers take local steps in between
    outer: Outer = field(default_factory=Outer)
    compression: str = "none"  # a name in crossover/algorithms/codecs.py
    rank: Positive = 4  # powersgd
    share: Annotated[float, Gt(0.0), Le(1.0)] = 0.01  # top_k: of the elements
    bits: Annotated[int, Ge(2), Le(8)] = 8  # of qsgd, as are bucket and norm
    bucket: Annotated[int, Ge(128), Le(65_536)] = 512  # elements that share a scale
    norm: Literal["l2", "max"] = "max"
    error_feedback: bool | None = None  # add what compression left out to the next round; null: with powersgd and top_k
    minibatches_per_invocation: Positive | Literal["all"] = "all"  # minibatches of one invocation of a long worker


@dataclass(frozen=True, kw_only=True)
class PeerToPeer:
    """Settings of the section `p2p`, for the peer-to-peer architectures: synchronous or not, and whether peers or Lambda functions
    average gradients. For asynchronous peers: `min_gradients` to average per round, a peer's own included; `staleness_limit`, the number
    of rounds that a gradient may be behind; `staleness_weights: inverse`, which weighs a gradient s rounds old by 1 / (1 + s); `reuse`,
    whether a peer's gradient may be averaged again. `message_limit_mb`: size of a message, in MiB, above which vectors go
    through the object store.
    """

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
    """Settings of the section `gpu`: the GPU instances, whose number times `gpus_per_instance` is the number of workers. `exchange`:
    whether gradients go through S3 or torch.distributed.
    """

    instances: Positive = 4
    gpus_per_instance: Positive = 1
    instance_type: str = "g4dn.xlarge"
    spot: bool = False
    exchange: Literal["s3", "distributed"] = "s3"


Baseline = Literal["gpu", "single"]  # architectures that can be a run's baseline
BROKER_VERSION = "4.2"  # of RabbitMQ, on Amazon MQ


@dataclass(frozen=True, kw_only=True)
class Network:
    """Settings of the section `network`: availability zone of a deployment (null: `deploy` chooses one), and instance type of its broker,
    RabbitMQ on Amazon MQ.
    """

    availability_zone: str | None = None
    broker_instance_type: str = "mq.m7g.medium"


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """Settings of the section `lifetime`: when a deployment or run ends by itself. `ttl_hours`: the deployment is deleted.
    `maximum_run_hours`: a run is ended. `budget_usd`: training stops before an epoch that would exceed it. `idle_minutes`: instances
    that do nothing end themselves. `notify`: ARN of an SNS topic that is notified if a clean-up fails.
    """

    ttl_hours: Annotated[float, Gt(0.0), Le(720.0)] = 8.0
    budget_usd: Annotated[float, Gt(0.0)] | None = None
    idle_minutes: Annotated[float, Gt(0.0)] = 15.0
    maximum_run_hours: Annotated[float, Gt(0.0)] = 6.0
    notify: str | None = None  # ARN of an SNS topic that is notified if a clean-up fails


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Validated content of one experiment's YAML, with defaults filled in: everything that a run depends on. `sections`: settings of
    single architectures, {section: {field: value}}, as plain values; `settings` returns them as a class.
    """

    name: str
    architecture: str
    project: str = "crossover"
    owner: str = "unknown"
    seed: int = 1
    workers: Annotated[int, Ge(1), Le(64)] = 4
    baseline: Literal["none"] | Baseline | tuple[Baseline, ...] = "none"
    recipe: Literal["none", "paper", "fast"] = "none"  # crossover/validation/recipes.py has filled in its values
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
        """Return the YAML section of an architecture as an instance of its settings class `kind`, with the class's defaults for
        fields that the YAML omits. Raises TypeError for a field that `kind` does not have.
        """
        found: S = _build(kind, self.sections.get(section_name(kind), {}))
        return found

    def with_settings(self, *settings: Any) -> "Experiment":
        """Return a copy in which each of `settings`, instances of architectures' settings classes, replaces its class's section."""
        return replace(
            self, sections={**self.sections, **{section_name(type(s)): _to_lists(asdict(s)) for s in settings}}
        )

    @property
    def module(self) -> str:
        """Architecture's name with underscores for hyphens: the name of its module in functions/ or peers/ and in stacks/."""
        return self.architecture.replace("-", "_")

    @property
    def outside(self) -> bool:
        """True if the architecture is in a user's package, as the name `my_package.mine` with its dot shows."""
        return "." in self.architecture

    @property
    def baselines(self) -> tuple[str, ...]:
        """Names of the baselines ("gpu", "single") to run besides the experiment's own architecture, in the YAML's order, each once,
        without that architecture itself.
        """
        named = (self.baseline,) if isinstance(self.baseline, str) else self.baseline
        return tuple(name for name in dict.fromkeys(named) if name not in ("none", self.module))

    def to_plain(self) -> dict[str, Any]:
        """Return all fields, defaults included, as nested dicts and lists of JSON values, from which `from_plain` builds the
        experiment again. The architectures' own sections are at the top level, like the others.
        """
        plain: dict[str, Any] = _to_lists(asdict(self))
        sections: dict[str, Any] = plain.pop("sections")
        return plain | sections


def section_name(settings: type) -> str:
    """Return the name of the YAML section for an architecture's settings class: the class's attribute `section` if it has one,
    otherwise the last part of its module's name, such as `mine` for functions/mine.py or functions/mine/settings.py.
    """
    names = settings.__module__.removesuffix(".settings").split(".")
    return str(getattr(settings, "section", names[-1]))


def from_plain(plain: Mapping[str, Any]) -> Experiment:
    """Return the Experiment that `plain`, a result of `Experiment.to_plain`, describes. Values are not checked. Raises TypeError for an
    unknown field, or if name or architecture is missing.

    An unknown section is kept as plain data, for the architecture that it belongs to. Fields that earlier versions named otherwise are
    renamed.
    """
    plain = move_renamed_fields(plain)
    known = {f.name for f in fields(Experiment)}
    sections = {key: value for key, value in plain.items() if key not in known and isinstance(value, Mapping)}
    rest = {key: value for key, value in plain.items() if key not in sections}
    experiment = _build(Experiment, {**rest, "sections": sections})
    assert isinstance(experiment, Experiment)
    return experiment


MOVED = {
    "training.sync_every": "exchange.every",
    **{f"p2p.{name}": f"exchange.{name}" for name in ("compression", "bits", "bucket", "norm")},
}  # fields of earlier versions, and their present names


def move_renamed_fields(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `plain`, an experiment as plain values that perhaps an earlier version wrote, with the fields in MOVED under
    their present sections and names (a value under the present name wins), and without the former field `variant` of the section
    `database` if that is `core`.
    """
    sections = {key: dict(value) if isinstance(value, Mapping) else value for key, value in plain.items()}
    for old, new in MOVED.items():
        (section, name), (now, named) = old.split("."), new.split(".")
        if name in sections.get(section, {}):
            sections.setdefault(now, {}).setdefault(named, sections[section].pop(name))
    if sections.get("database", {}).get("variant") == "core":  # the only variant that is left
        del sections["database"]["variant"]
    return sections


def flatten_fields(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name with dots, such as `training.epochs`; value) for every field of a nested mapping that is no mapping itself. An empty
    mapping yields nothing. `prefix`: put before each name.
    """
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from flatten_fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _to_lists(value: Any) -> Any:
    """Return `value` with all tuples, at every depth, replaced by lists, as JSON has no tuples."""
    match value:
        case dict():
            return {key: _to_lists(item) for key, item in value.items()}
        case tuple() | list():
            return [_to_lists(item) for item in value]
    return value


_hints = cache(get_type_hints)  # reading annotations takes longer than all the rest


def _build(cls: Any, plain: Mapping[str, Any]) -> Any:
    """Return an instance of the dataclass `cls` from `plain` values by field name; missing fields get their defaults. Nested
    dataclasses are built too, and lists become tuples. Raises TypeError for an unknown field.
    """
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
