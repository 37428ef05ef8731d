"""AllReduce: one worker, the master, averages what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of "Cost-Performance Analysis" (2025):
every worker stores its gradient; the master fetches all of them, aggregates and stores the result; the others fetch it; each updates its
own model.
"""

from typing import TYPE_CHECKING

from crossover.data.clients import Event
from crossover.data.keys import Keys
from crossover.training import long_worker, synchronous
from crossover.workflow import step
from crossover.workflow.architecture import EXCHANGES, Architecture
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.group import Group

MASTER = 0


class AllReduce:
    """AllReduce's exchange, Table 1, Synchronisation. Per round and worker D out and D in; the master 2 D out and (W - 1) D in."""

    def __init__(self) -> None:
        self._fetched: dict[
            int, Tensor
        ] = {}  # by length, memory that rounds share: fresh pages would cost as much as the transfer

    def done(self, group: "Group") -> bool:
        """Return whether the round's merged result exists."""
        return group.is_published(group.keys.combination(group.round))

    def parts(self, elements: int, count: int, unit: int) -> list[slice]:
        """Return one piece of all `elements`: a contribution is sent whole, whatever `count` and `unit` are."""
        return [slice(0, elements)]

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        """Store `own`, the worker's contribution to the round of `group`, and fill `out` with the aggregate; the master
        computes and stores the aggregate.

        The master stores its contribution, too, so that a retry of the master finds it there.
        """
        with group.stage("store"):
            group.contribute(group.keys.average(group.round, group.rank), own)
        if group.rank != MASTER:
            self.collect(group, out)
            return
        with group.stage("aggregate"):
            if (fetched := self._fetched.get(own.numel())) is None:
                fetched = self._fetched[own.numel()] = own.new_empty(own.numel())
            parts = (
                own if rank == MASTER else self._fetch_contribution(group, rank, fetched) for rank in range(group.count)
            )
            group.combine(parts, out, names=[group.keys.average(group.round, rank) for rank in range(group.count)])
            group.publish_combined(group.keys.combination(group.round), out)

    def _fetch_contribution(self, group: "Group", rank: int, out: "Tensor") -> "Tensor":
        """Fill `out` with the contribution of `rank` and return it. Raises ResultExists if the merged result exists already."""
        key, merged = group.keys.average(group.round, rank), group.keys.combination(group.round)
        return group.fetch_contribution(key, out, sender=rank, unless=merged)

    def collect(self, group: "Group", out: "Tensor") -> None:
        """Fill `out` with the master's merged result."""
        with group.stage("synchronise"):
            group.fetch_result(group.keys.combination(group.round), out, sender=MASTER)

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the key, among `keys`, of the contribution of the worker `rank` to `round`; it does not depend on `count`."""
        return [keys.average(round, rank)]

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the key, among `keys`, of the merged result of `round` if `rank` is the master's, else nothing; it
        does not depend on `count`.
        """
        return [keys.combination(round)] if rank == MASTER else []


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Create the same seeded model as every worker's first checkpoint, once per run. A resumed run continues where all workers can."""
    return long_worker.start(ctx, event, AllReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Run Table 1's four stages in one long invocation, until the goal is reached or the deadline is near."""
    return synchronous.train(ctx, event, AllReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """Store the trained model in the bucket, and delete every key of the run."""
    long_worker.collect(ctx, event, AllReduce())


ARCHITECTURE = Architecture(
    "all_reduce",
    run=long_worker.tree(initialise, train, collect),
    tensor_hosts="shared",
    exchanges=EXCHANGES,
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
)
