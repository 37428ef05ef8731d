"""AllReduce: one worker, the master, averages what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of
"Cost-Performance Analysis" (2025): every worker stores its gradient; the master fetches all of them, aggregates and
stores the result; the others fetch it; each updates its own model.
"""

from typing import TYPE_CHECKING

from crossover.context import Context
from crossover.event import Event
from crossover.keys import Keys
from crossover.training.long_worker import life
from crossover.workflow import Architecture, step

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.long_worker.group import Peers

MASTER = 0


class AllReduce:
    """Table 1, Synchronisation. Per round and worker D out and D in; the master 2 D out and (W - 1) D in."""

    def __init__(self) -> None:
        self._fetched: Tensor | None = None  # memory that rounds share: fresh pages would cost as much as the transfer

    def done(self, peers: "Peers") -> bool:
        return peers.published(peers.keys.merged(peers.round))

    def exchange(self, peers: "Peers", own: "Tensor", out: "Tensor") -> None:
        """The gradient to the store; the master's too, so that a retry of the master finds it there."""
        with peers.stage("store"):
            peers.publish(peers.keys.average(peers.round, peers.rank), own, samples=peers.samples[peers.rank])
        if peers.rank != MASTER:
            self.collect(peers, out)
            return
        with peers.stage("aggregate"):
            fetched = self._fetched = own.new_empty(own.numel()) if self._fetched is None else self._fetched
            parts = (own if rank == MASTER else self._of(peers, rank, fetched) for rank in range(peers.count))
            peers.combine(parts, out, names=[peers.keys.average(peers.round, rank) for rank in range(peers.count)])
            peers.publish(peers.keys.merged(peers.round), out, samples=sum(peers.samples))

    def _of(self, peers: "Peers", rank: int, out: "Tensor") -> "Tensor":
        key, merged = peers.keys.average(peers.round, rank), peers.keys.merged(peers.round)
        return peers.fetch(key, out, sender=rank, samples=peers.samples[rank], unless=merged)

    def collect(self, peers: "Peers", out: "Tensor") -> None:
        with peers.stage("synchronise"):
            peers.result(peers.keys.merged(peers.round), out, sender=MASTER)

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [keys.average(round, rank)]

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [keys.merged(round)] if rank == MASTER else []


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the same seeded model as every worker's first checkpoint. A resumed run goes on where all workers
    can.
    """
    return life.start(ctx, event, AllReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Table 1, all four stages: one long invocation, ended by the goal or near its deadline."""
    return life.train(ctx, event, AllReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every key of the run deleted."""
    life.collect(ctx, event, AllReduce())


ARCHITECTURE = Architecture("all_reduce", run=life.tree(initialise, train, collect), tensor_hosts="shared")
