"""One worker on one machine: what the compared architectures have to beat before they beat one another. A function, an EC2 instance, or
one with a GPU.

On a function it is AllReduce's long worker with nobody to exchange with: checkpoints carry it over the limit of an invocation. On an
instance it is the GPU baseline's worker, likewise. The whole data set is its share. The minibatches between two updates make one batch, as
large as is wanted; BatchNorm sees each of them by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from crossover import runtime
from crossover.architecture import Architecture, Program
from crossover.architecture.instances import Instances, computing, needs_a_gpu
from crossover.clients.protocol import Event
from crossover.context import Context, Resources, process_resources
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.training.fleet import Membership, ServingSettings, serve
from crossover.training.long_worker import life, synchronous
from crossover.workflow import step

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.algorithms.contributions import Contribution
    from crossover.training.long_worker.group import Group
    from crossover.training.peer.replica import Replica

TYPES = {"instance": "c7g.xlarge", "gpu": "g4dn.xlarge"}  # where the YAML says none


@dataclass(frozen=True, kw_only=True)
class Single:
    """What the one worker runs on."""

    on: Literal["function", "instance", "gpu"] = "function"
    instance_type: str | None = None  # null: c7g.xlarge, and g4dn.xlarge with a GPU
    spot: bool = False


# --- a function -------------------------------------------------------------------------------------------------------


class InFunction:
    """Nothing is published; the mean of one contribution, in memory."""

    def done(self, group: "Group") -> bool:
        return False

    def parts(self, elements: int, count: int, unit: int) -> list[slice]:
        return []

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        with group.stage("aggregate"):
            group.combine([own], out, names=[f"round {group.round}: the gradient"])

    def collect(self, group: "Group", out: "Tensor") -> None:
        raise AssertionError("no result of a round lies anywhere")

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return []

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return []


@step(torch=True)
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the seeded model as the first checkpoint. A resumed run goes on where the last one stands."""
    return life.start(ctx, event, InFunction())


@step(torch=True, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Compute and update: one long invocation, ended by the goal or near its deadline."""
    return synchronous.train(ctx, event, InFunction())


@step()
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every checkpoint of the run deleted."""
    life.collect(ctx, event, InFunction())


# --- an instance ------------------------------------------------------------------------------------------------------


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """The program of the instance."""
    serve(resources or process_resources(), settings or ServingSettings.of(runtime.environment()), worker)


def worker(ctx: Context, member: Membership) -> None:
    from crossover.training.peer import algorithm  # torch
    from peers.gpu import device_learner
    from peers.gpu.prefetching import Prefetching

    algorithm.train(
        ctx,
        member,
        computing=Prefetching(ctx, device_learner(ctx)),
        exchange=InProgram(ctx),
        step=PROGRAM.step,
        instance_type=instances(ctx.experiment).instance_type,
    )


class InProgram:
    """Nothing is sent; the mean of one gradient, in memory."""

    replicas_agree = True

    def __init__(self, ctx: Context) -> None:
        self._ctx, self.every = ctx, ctx.experiment.functions.checkpoint_every

    def open(self, replica: "Replica") -> None:
        """There is nobody to meet."""

    def send(self, own: "Contribution", round: int, *, exchange: int = 0) -> None:
        """Nobody reads it."""

    def receive(self, own: "Contribution", round: int, out: "Tensor", *, exchange: int = 0) -> None:
        from crossover.training.peer.combining import combine

        combine(self._ctx, [own.values], round=round, out=out)

    def keep(self) -> None:
        """Nobody reads."""

    def close(self) -> None:
        """Nothing was made."""


def instances(e: Experiment) -> Instances:
    """The one."""
    asked = e.settings(Single)
    return Instances(
        purpose="machine",
        setting="single.instance_type",
        instance_type=asked.instance_type or TYPES[asked.on],
        count=1,
        busy=computing(e.training.threads),
        gpu=asked.on == "gpu",
        spot=asked.spot,
    )


def form(e: Experiment) -> Architecture:
    """On a function, or as a program."""
    return ARCHITECTURE if e.settings(Single).on == "function" else ON_INSTANCE


def checks(e: Experiment) -> Iterator[str]:
    """What an experiment with one worker cannot ask for."""
    asked = e.settings(Single)
    if asked.on == "function" and (asked.spot or asked.instance_type):
        what = f"instance_type: {asked.instance_type}" if asked.instance_type else "spot: true"
        yield f"single.{what} belongs to an instance, and single.on is function; leave it out, or set single.on: instance or gpu"
    if asked.on == "gpu":
        yield from needs_a_gpu(instances(e))


PROGRAM = Program(main, instances, step="train_single")
ARCHITECTURE = Architecture(
    "single",
    run=life.tree(initialise, train, collect),
    why_not="it is alone, and sends them to nobody",
    settings=Single,
    checks=checks,
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
    alone=True,
    form=form,
)
ON_INSTANCE = replace(
    ARCHITECTURE,
    run=None,
    program=PROGRAM,
    simulation="programs",
    claims={"equals_reference", "survives_kills", "resumes", "stops"},
)
