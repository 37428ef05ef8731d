"""AllReduce: one worker, the master, averages what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of "Cost-Performance Analysis" (2025):
every worker stores its gradient; the master fetches all of them, aggregates and stores the result; the others fetch it; each updates its
own model.
"""

from typing import TYPE_CHECKING

from crossover.architecture import EXCHANGES, Architecture
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.keys import Keys
from crossover.training.long_worker import life, synchronous
from crossover.workflow import step

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.long_worker.group import Group

MASTER = 0


class AllReduce:
    """Table 1, Synchronisation. Per round and worker D out and D in; the master 2 D out and (W - 1) D in."""

    def __init__(self) -> None:
        self._fetched: dict[
            int, Tensor
        ] = {}  # by length, memory that rounds share: fresh pages would cost as much as the transfer

    def done(self, group: "Group") -> bool:
        return group.published(group.keys.merged(group.round))

    def parts(self, elements: int, count: int, unit: int) -> list[slice]:
        return [slice(0, elements)]

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        """The gradient to the store; the master's too, so that a retry of the master finds it there."""
        with group.stage("store"):
            group.contribute(group.keys.average(group.round, group.rank), own)
        if group.rank != MASTER:
            self.collect(group, out)
            return
        with group.stage("aggregate"):
            if (fetched := self._fetched.get(own.numel())) is None:
                fetched = self._fetched[own.numel()] = own.new_empty(own.numel())
            parts = (own if rank == MASTER else self._of(group, rank, fetched) for rank in range(group.count))
            group.combine(parts, out, names=[group.keys.average(group.round, rank) for rank in range(group.count)])
            group.conclude(group.keys.merged(group.round), out)

    def _of(self, group: "Group", rank: int, out: "Tensor") -> "Tensor":
        key, merged = group.keys.average(group.round, rank), group.keys.merged(group.round)
        return group.contributed(key, out, sender=rank, unless=merged)

    def collect(self, group: "Group", out: "Tensor") -> None:
        with group.stage("synchronise"):
            group.result(group.keys.merged(group.round), out, sender=MASTER)

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [keys.average(round, rank)]

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [keys.merged(round)] if rank == MASTER else []


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the same seeded model as every worker's first checkpoint. A resumed run goes on where all workers can."""
    return life.start(ctx, event, AllReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Table 1, all four stages: one long invocation, ended by the goal or near its deadline."""
    return synchronous.train(ctx, event, AllReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every key of the run deleted."""
    life.collect(ctx, event, AllReduce())


ARCHITECTURE = Architecture(
    "all_reduce",
    run=life.tree(initialise, train, collect),
    tensor_hosts="shared",
    exchanges=EXCHANGES,
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
)
