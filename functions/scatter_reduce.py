"""ScatterReduce: every worker averages one chunk of what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of
"Cost-Performance Analysis" (2025): every worker splits its gradient into one chunk per worker, keeps its own and
stores the others; aggregates the chunk it is responsible for, stores it, fetches all other chunks and concatenates
them; each updates its own model.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossover.algorithms.chunking import chunk
from crossover.context import Context
from crossover.event import Event
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.training.long_worker import life
from crossover.workflow import Architecture, step

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.long_worker.group import Peers


class ScatterReduce:
    """Table 1, Synchronisation. Per round and worker D out in W puts, 2 (W - 1) / W D in by 2 (W - 1) gets."""

    def __init__(self) -> None:
        self._fetched: Tensor | None = None  # memory that rounds share: fresh pages would cost as much as the transfer

    def done(self, peers: "Peers") -> bool:
        return peers.published(peers.keys.merged(peers.round, peers.rank))

    def exchange(self, peers: "Peers", own: "Tensor", out: "Tensor") -> None:
        with peers.stage("store"):
            for part in _others(peers.rank, peers.count):
                key = peers.keys.chunk(peers.round, peers.rank, part)
                peers.publish(key, own[self._slice(peers, own, part)], samples=peers.samples[peers.rank])
        with peers.stage("aggregate"):
            mine = self._slice(peers, own, peers.rank)
            names = [peers.keys.chunk(peers.round, rank, peers.rank) for rank in range(peers.count)]
            peers.combine(
                self._chunks(peers, own[mine]), out[mine], names=names, agree=lambda bad: _agreed(peers, own, bad)
            )
            peers.publish(peers.keys.merged(peers.round, peers.rank), out[mine], samples=sum(peers.samples))
        self._fetch(peers, out, _others(peers.rank, peers.count))

    def _chunks(self, peers: "Peers", own: "Tensor") -> "Iterator[Tensor]":
        """This worker's chunk of every worker's contribution, by rank, its own in its rank's place."""
        merged = peers.keys.merged(peers.round, peers.rank)
        fetched = self._fetched = own.new_empty(own.numel()) if self._fetched is None else self._fetched
        for rank in range(peers.count):
            key = peers.keys.chunk(peers.round, rank, peers.rank)
            yield (
                own
                if rank == peers.rank
                else peers.fetch(key, fetched, sender=rank, samples=peers.samples[rank], unless=merged)
            )

    def collect(self, peers: "Peers", out: "Tensor") -> None:
        self._fetch(peers, out, list(range(peers.count)))

    def _fetch(self, peers: "Peers", out: "Tensor", parts: list[int]) -> None:
        with peers.stage("synchronise"):
            for part in parts:
                peers.result(peers.keys.merged(peers.round, part), out[self._slice(peers, out, part)], sender=part)

    def _slice(self, peers: "Peers", vector: "Tensor", part: int) -> slice:
        return chunk(vector.numel(), peers.count, worker=part)

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [*(keys.chunk(round, rank, part) for part in _others(rank, count)), keys.verdict(round, rank)]

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [keys.merged(round, rank)]


def _agreed(peers: "Peers", own: "Tensor", bad: list[int]) -> list[int]:
    """Each worker sees one chunk of every contribution: whom any of them would drop, all drop, before anybody combines."""
    flags = own.new_zeros(peers.count)
    flags[bad] = 1.0
    peers.publish(peers.keys.verdict(peers.round, peers.rank), flags, samples=peers.samples[peers.rank])
    merged, found = peers.keys.merged(peers.round, peers.rank), flags.new_empty(peers.count)
    for rank in _others(peers.rank, peers.count):
        key = peers.keys.verdict(peers.round, rank)
        flags += peers.fetch(key, found, sender=rank, samples=peers.samples[rank], unless=merged)
    return peers.agree(flags.nonzero().flatten().tolist())


def _others(rank: int, count: int) -> list[int]:
    """All ranks but one's own, beginning with the next: no chunk is everybody's first."""
    return [(rank + step) % count for step in range(1, count)]


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the same seeded model as every worker's first checkpoint. A resumed run goes on where all workers
    can.
    """
    return life.start(ctx, event, ScatterReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Table 1, all four stages: one long invocation, ended by the goal or near its deadline."""
    return life.train(ctx, event, ScatterReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every key of the run deleted."""
    life.collect(ctx, event, ScatterReduce())


def checks(e: Experiment) -> Iterator[str]:
    """What an experiment with ScatterReduce cannot ask for."""
    if e.aggregation.rule == "krum":
        yield (
            "aggregation.rule: krum measures distances between whole gradients, ScatterReduce aggregates chunks; "
            "expected mean, median or trimmed_mean, or another architecture"
        )


ARCHITECTURE = Architecture(
    "scatter_reduce", run=life.tree(initialise, train, collect), tensor_hosts="shared", checks=checks
)
