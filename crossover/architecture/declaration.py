"""What an architecture says of itself, in one ARCHITECTURE: the tree of its run, its settings, what it refuses, what it claims."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from crossover.algorithms.aggregators.plan import Plan
from crossover.algorithms.codecs import CODECS
from crossover.architecture.instances import Instances
from crossover.experiment import Experiment
from crossover.workflow import Node, Step, walk


@dataclass(frozen=True)
class Program:
    """A program on EC2, once per worker. `main` takes what it works with: nothing on an instance, whose environment says it.

    `instances`: what an experiment runs it on. `step`: what its records are called, one per worker and epoch. `talks`: whether its members
    send one another messages.
    """

    main: Callable[..., None]
    instances: Callable[[Experiment], Instances]
    step: str = "train_peer"
    talks: bool = False

    @property
    def module(self) -> str:
        return self.main.__module__


CLAIMS = {
    "equals_reference": "trains the bits that one process trains with the same data",
    "same_calls": "makes the same calls in every run, wherever it runs",
    "survives_kills": "a step may be repeated, come late or end at any call, and the model is the same",
    "resumes": "a run that failed goes on from what it left",
    "stops": "a run ends when it is told to, or at its budget, with the epoch that it has begun",
    "adds_what_others_average": "with a threshold of 0, and nobody removed, trains the reference's updates up to rounding",
}


# Every codec, of gradients and of what models have moved by. A model is not compressed: what is left out of it would be no small change.
EXCHANGES: Mapping[str, Collection[str]] = {"gradients": CODECS, "model": ("none",), "delta": CODECS}


@dataclass(frozen=True)
class Architecture:
    """One of the compared architectures: the tree of its run, or a program; machines that steps or programs start by name.

    `settings`: a frozen dataclass, the section of the YAML that is named after its module; two architectures may share one.
    `exchanges`: by `exchange.what`, the compressions that it can do; `why_not`: the reason for those that are missing there. `checks`:
    what of an experiment with it cannot be had, one problem each. `claims`: what of CLAIMS it promises; tests hold it to them.
    `aggregates`: of one that trains nothing, and averages gradients that are made: who adds what. `alone`: of one that has a single worker.
    `form`: of one whose tree or program is another by its settings: the architecture as an experiment asks for it.
    """

    name: str
    run: Node | None = None
    machines: Mapping[str, Node] = field(default_factory=dict)
    program: Program | None = None
    tensor_hosts: Literal["per_worker", "shared", "none"] = "none"
    state: Literal["checkpoints", "database"] = "checkpoints"  # where a run that failed finds what it goes on with
    sync_every: int | Literal["epoch"] = 1  # the architecture's own, where the YAML gives none
    simulation: str = ""  # the module of crossover/simulation that describes its steps, where that has not its own name
    exchanges: Mapping[str, Collection[str]] = field(default_factory=lambda: {"gradients": ("none",)})
    why_not: str = ""
    settings: type | None = None
    checks: Callable[[Experiment], Iterable[str]] = lambda experiment: ()
    claims: Collection[str] = ()
    aggregates: Callable[[Experiment], Plan] | None = None
    alone: bool = False
    form: "Callable[[Experiment], Architecture] | None" = None

    @property
    def trains(self) -> bool:
        """Whether there are data, a model, epochs and an accuracy; else a run is one aggregation."""
        return self.aggregates is None

    def asked_by(self, experiment: Experiment) -> "Architecture":
        """In the form that the experiment's settings ask for."""
        return self if self.form is None else self.form(experiment)

    def resolve(self, experiment: Experiment) -> Experiment:
        """With what the YAML leaves to the architecture filled in."""
        if self.settings is not None:
            experiment = experiment.with_settings(experiment.settings(self.settings))
        training, exchange = experiment.training, experiment.exchange
        if not self.trains:  # once through the levels: what counts epochs and rounds counts one
            return replace(experiment, training=replace(training, epochs=1), exchange=replace(exchange, every="epoch"))
        if exchange.every is not None:
            return experiment
        return replace(experiment, exchange=replace(exchange, every=self.sync_every))


def trees(architecture: Architecture) -> list[Node]:
    """The tree of the run, and those of the machines that steps or programs start."""
    return [*([architecture.run] if architecture.run else []), *architecture.machines.values()]


def steps(architecture: Architecture) -> list[Step]:
    """The distinct steps, in the order they are written."""
    found = [node for root in trees(architecture) for node in walk(root) if isinstance(node, Step)]
    return list(dict.fromkeys(found))
