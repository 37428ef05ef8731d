"""One worker on one machine, a function, an EC2 instance, or one with a GPU: a baseline that the compared architectures have to beat.

On a function it is AllReduce's long worker without an exchange: checkpoints carry it over the limit of an invocation. On an instance it is
the GPU baseline's worker, likewise. The whole data set is its share. The minibatches between two updates make one batch of any size;
BatchNorm sees each of them by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from crossover import runtime
from crossover.experiment import Experiment
from crossover.stores.clients import Event
from crossover.stores.keys import Keys
from crossover.training import long_worker, synchronous
from crossover.training.fleet import Membership, ServingSettings, serve
from crossover.workflow import step
from crossover.workflow.architecture import Architecture, Instances, Program, check_gpu_type, count_busy_vcpus
from crossover.workflow.context import Context, Resources, process_resources

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.algorithms.contributions import Contribution
    from crossover.training.group import Group
    from crossover.training.peer import Replica

TYPES = {"instance": "c7g.xlarge", "gpu": "g4dn.xlarge"}  # if the YAML names none


@dataclass(frozen=True, kw_only=True)
class Single:
    """Settings of the architecture `single` (section `single` of the YAML). `on`: whether its one worker runs on a Lambda function, an EC2
    instance or an instance with a GPU; `instance_type`: None for c7g.xlarge, or g4dn.xlarge with a GPU; `spot`: at spot prices.
    """

    on: Literal["function", "instance", "gpu"] = "function"
    instance_type: str | None = None  # null: c7g.xlarge, and g4dn.xlarge with a GPU
    spot: bool = False


# --- a function -------------------------------------------------------------------------------------------------------


class InFunction:
    """Exchange of the one worker on a function: nothing is published, and the aggregate is computed from its own contribution alone."""

    def is_combined(self, group: "Group") -> bool:
        """Return False: no aggregate is ever stored."""
        return False

    def split(self, elements: int, count: int, unit: int) -> list[slice]:
        """Return an empty list: nothing is sent, whatever `elements`, `count` and `unit` are."""
        return []

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        """Write the aggregate of `own`, the only contribution, into `out`; nothing is stored."""
        with group.stage("aggregate"):
            group.combine([own], out, names=[f"round {group.round}: the gradient"])

    def collect(self, group: "Group", out: "Tensor") -> None:
        """Raise AssertionError: it is never called, because no aggregate is stored."""
        raise AssertionError("no result of a round is stored")

    def list_used_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return an empty list: this worker stores no keys."""
        return []

    def list_result_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return an empty list: this worker stores no keys."""
        return []


@step(torch=True)
def initialise(ctx: Context, event: Event) -> Event:
    """Create this attempt's first checkpoint: the seeded model, or the newest checkpoint of an earlier attempt if the run is resumed.
    Returns the event's fields for the round to start at. Raises StaleAttempt if a higher attempt has begun or the run has been concluded,
    Missing or Corrupt if the run has decisions but no usable checkpoint.
    """
    return long_worker.start(ctx, event, InFunction())


@step(torch=True, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Compute and update, round after round, in one long invocation, until training ends or the deadline is near. Return the changes of the
    event for the next invocation, `finished` among them.
    """
    return synchronous.train(ctx, event, InFunction())


@step()
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model and the run's outcome in the bucket, and delete every checkpoint of the run. Raises StaleAttempt if a higher
    attempt has begun, Missing or Corrupt if the outcome must be stored and the last round's checkpoint is gone or damaged.
    """
    long_worker.collect(ctx, event, InFunction())


# --- an instance ------------------------------------------------------------------------------------------------------


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """Run the program of the instance: serve the run. `resources`, `settings`: those of this process and of its environment if None."""
    serve(resources or process_resources(), settings or ServingSettings.from_environment(runtime.environment()), worker)


def worker(ctx: Context, member: Membership) -> None:
    """Train the run's only member from its newest checkpoint to the end, with its training data kept in memory. On a GPU, model and
    optimizer stay in the GPU's memory.
    """
    from crossover.training import peer  # torch
    from peers.gpu import device_learner
    from peers.gpu.prefetching import Prefetching

    ctx.keep_data()
    # Nothing is exchanged, so only batches and checkpoints pass between host and GPU. An attack, though, alters gradients on the host.
    learner = device_learner(ctx, keeps_vectors=not ctx.experiment.faults.workers)
    peer.train(
        ctx,
        member,
        computing=Prefetching(ctx, learner),
        exchange=InProgram(ctx),
        step=PROGRAM.step,
        instance_type=instances(ctx.experiment).instance_type,
    )


class InProgram:
    """Exchange of the one worker in a program on an instance: nothing is sent, and the aggregate is computed from its own contribution
    alone.
    """

    replicas_agree = True

    def __init__(self, ctx: Context) -> None:
        """Read from the experiment how often a checkpoint is due."""
        self._ctx, self.every = ctx, ctx.experiment.functions.checkpoint_every

    def open(self, replica: "Replica") -> None:
        """Do nothing: there is no other peer."""

    def send(self, own: "Contribution", round: int, *, exchange: int = 0) -> None:
        """Do nothing: no other peer would read a contribution."""

    def receive(self, own: "Contribution", round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """Write the aggregate of `own`, the only contribution to `round`, into `out`. `exchange` is not used."""
        from crossover.training.peer import combine

        combine(self._ctx, [own.values], round=round, out=out)

    def keep(self) -> None:
        """Do nothing: there is no message that could be lost."""

    def close(self) -> None:
        """Do nothing: the exchange has created nothing."""


def instances(e: Experiment) -> Instances:
    """Return the description of the run's one EC2 instance, by `single.instance_type` or the default for `single.on`."""
    asked = e.settings(Single)
    return Instances(
        purpose="machine",
        setting="single.instance_type",
        instance_type=asked.instance_type or TYPES[asked.on],
        count=1,
        busy=count_busy_vcpus(e.training.threads),
        gpu=asked.on == "gpu",
        spot=asked.spot,
    )


def form(e: Experiment) -> Architecture:
    """Return the architecture in the form for `single.on`: with a tree of steps for a function, otherwise with a program for an
    instance.
    """
    return ARCHITECTURE if e.settings(Single).on == "function" else ON_INSTANCE


def checks(e: Experiment) -> Iterator[str]:
    """Yield one error message for each setting of the experiment that the architecture `single` does not support: `spot` or
    `instance_type` of a function, and an instance type whose GPU cannot be used (`check_gpu_type`).
    """
    asked = e.settings(Single)
    if asked.on == "function" and (asked.spot or asked.instance_type):
        what = f"instance_type: {asked.instance_type}" if asked.instance_type else "spot: true"
        yield f"single.{what} applies to an instance, but single.on is function; leave it out, or set single.on: instance or gpu"
    if asked.on == "gpu":
        yield from check_gpu_type(instances(e))


PROGRAM = Program(main, instances, step="train_single")
ARCHITECTURE = Architecture(
    "single",
    run=long_worker.tree(initialise, train, collect),
    why_not="a single worker sends no contributions",
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
