"""An experiment: what the YAML in config/ says, as frozen dataclasses.

Pure data, importable in a Lambda function: no pydantic here. `crossover/validation/` turns a YAML file into an Experiment once, at the
edge; `from_resolved` rebuilds one from the JSON that was stored beside a run. Bounds stand in the annotations, where pydantic and the JSON
Schema read them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from crossover.experiment.training import LOWER_IS_BETTER as LOWER_IS_BETTER
from crossover.experiment.training import MOST_THREADS as MOST_THREADS
from crossover.experiment.training import Adapters as Adapters
from crossover.experiment.training import Clip as Clip
from crossover.experiment.training import Fraction as Fraction
from crossover.experiment.training import ImageSize as ImageSize
from crossover.experiment.training import Metric as Metric
from crossover.experiment.training import NonNegative as NonNegative
from crossover.experiment.training import Positive as Positive
from crossover.experiment.training import Training as Training
from crossover.experiment.training import Weights as Weights

S = TypeVar("S")  # the class of an architecture's settings

MOST_MEMORY_MB = 10_240  # of a function

Attack = Literal["none", "sign_flip", "gaussian", "label_flip", "non_finite"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which data, how it is split, prepared and staged."""

    dataset: str = "digits"  # digits, mnist, cifar10, or package.module:loader
    directory: str | None = None  # where the files lie; --data sets it
    validation: Annotated[float, Gt(0.0), Lt(1.0)] | Literal["test"] = (
        0.2  # share of the training set, or the test split
    )
    preprocess: Literal["standardize", "minmax", "normalize", "none"] = "standardize"  # of measures, not of tokens
    drop_last: bool = False
    # crop_flip mirrors by chance, crop_alternate each image in every second epoch
    augment: Literal["none", "crop_flip", "crop_alternate"] = "none"
    limit: Positive | None = None  # use only so many training samples (cut-down runs)


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """How the workers' averages become one."""

    rule: str = "mean"  # a name in crossover/algorithms/rules
    trim: Annotated[int, Ge(0)] = 1  # trimmed_mean: how many are dropped at each end
    faulty: Annotated[int, Ge(0)] = 1  # krum: how many workers may lie
    select: Positive = 1  # krum: how many are averaged
    non_finite: Literal["refuse", "drop"] = "refuse"  # a worker's NaN or infinity ends the run, or leaves it out

    def without(self, dropped: int) -> "Aggregation":
        """The rule for those that are left: who was dropped was faulty, so the rest may hold so many fewer."""
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
        """An architecture's own settings, of its class `kind`; the class's defaults where the YAML gives none."""
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


# Fields and sections that an architecture which trains nothing has no use for.
OF_TRAINING = (
    *("recipe", "baseline", "training", "data", "aggregation", "faults"),
    *("database", "storage", "exchange", "p2p", "gpu"),
)


def section_of(settings: type) -> str:
    """The section of a YAML that an architecture's class of settings describes: its `section`, else the architecture's module: `mine` for a
    class in functions/mine.py and for one in functions/mine/settings.py.
    """
    names = settings.__module__.removesuffix(".settings").split(".")
    return str(getattr(settings, "section", names[-1]))


def from_resolved(plain: Mapping[str, Any]) -> Experiment:
    """The Experiment that `Experiment.resolved()` wrote. Its content was validated at the edge; unknown fields raise TypeError.

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
