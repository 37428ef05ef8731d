"""ScatterReduce: every worker averages one chunk of what all workers publish.

Jiang et al., "Towards Demystifying Serverless Machine Learning Training" (SIGMOD 2021), and Table 1 of "Cost-Performance Analysis" (2025):
every worker splits its gradient into one chunk per worker, keeps its own and stores the others; aggregates the chunk it is responsible for,
stores it, fetches all other chunks and concatenates them; each updates its own model.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossover.algorithms.chunking import chunk
from crossover.algorithms.codecs import CODECS
from crossover.algorithms.rules import RULES
from crossover.architecture import EXCHANGES, Architecture
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.training.long_worker import life, synchronous
from crossover.workflow import step

if TYPE_CHECKING:
    from torch import Tensor

    from crossover.training.long_worker.group import Group


class ScatterReduce:
    """Table 1, Synchronisation. Per round and worker D out in W puts, 2 (W - 1) / W D in by 2 (W - 1) gets."""

    def __init__(self) -> None:
        self._fetched: Tensor | None = None  # memory that rounds share: fresh pages would cost as much as the transfer

    def done(self, group: "Group") -> bool:
        return group.published(group.keys.merged(group.round, group.rank))

    def parts(self, elements: int, count: int, unit: int) -> list[slice]:
        return [chunk(elements, count, worker=worker, unit=unit) for worker in range(count)]

    def exchange(self, group: "Group", own: "Tensor", out: "Tensor") -> None:
        with group.stage("store"):
            for part in _others(group.rank, group.count):
                key = group.keys.chunk(group.round, group.rank, part)
                group.contribute(key, own, self._slice(group, own, part))
        with group.stage("aggregate"):
            mine = self._slice(group, own, group.rank)
            names = [group.keys.chunk(group.round, rank, group.rank) for rank in range(group.count)]
            group.combine(
                self._chunks(group, own[mine], mine.start),
                out[mine],
                names=names,
                agree=lambda bad: _agreed(group, own, bad),
            )
            group.conclude(group.keys.merged(group.round, group.rank), out, mine)
        self._fetch(group, out, _others(group.rank, group.count))

    def _chunks(self, group: "Group", own: "Tensor", first: int) -> "Iterator[Tensor]":
        """This worker's chunk, which begins at element `first`, of every worker's contribution, by rank, its own in its rank's place."""
        merged = group.keys.merged(group.round, group.rank)
        fetched = self._fetched = own.new_empty(own.numel()) if self._fetched is None else self._fetched
        for rank in range(group.count):
            key = group.keys.chunk(group.round, rank, group.rank)
            yield (
                own if rank == group.rank else group.contributed(key, fetched, sender=rank, first=first, unless=merged)
            )

    def collect(self, group: "Group", out: "Tensor") -> None:
        self._fetch(group, out, list(range(group.count)))

    def _fetch(self, group: "Group", out: "Tensor", parts: list[int]) -> None:
        with group.stage("synchronise"):
            for part in parts:
                group.result(group.keys.merged(group.round, part), out[self._slice(group, out, part)], sender=part)

    def _slice(self, group: "Group", vector: "Tensor", part: int) -> slice:
        return chunk(vector.numel(), group.count, worker=part, unit=group.unit)

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [*(keys.chunk(round, rank, part) for part in _others(rank, count)), keys.verdict(round, rank)]

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        return [keys.merged(round, rank)]


def _agreed(group: "Group", own: "Tensor", bad: list[int]) -> list[int]:
    """Each worker sees one chunk of every contribution: whom any of them would drop, all drop, before anybody combines."""
    flags = own.new_zeros(group.count)
    flags[bad] = 1.0
    group.publish(group.keys.verdict(group.round, group.rank), flags, samples=group.samples[group.rank])
    merged, found = group.keys.merged(group.round, group.rank), flags.new_empty(group.count)
    for rank in _others(group.rank, group.count):
        key = group.keys.verdict(group.round, rank)
        flags += group.fetch(key, found, sender=rank, samples=group.samples[rank], unless=merged)
    return group.agree(flags.nonzero().flatten().tolist())


def _others(rank: int, count: int) -> list[int]:
    """All ranks but one's own, beginning with the next: no chunk is everybody's first."""
    return [(rank + step) % count for step in range(1, count)]


@step(torch=True, uses={"tensors"})
def initialise(ctx: Context, event: Event) -> Event:
    """Once per run: the same seeded model as every worker's first checkpoint. A resumed run goes on where all workers can."""
    return life.start(ctx, event, ScatterReduce())


@step(torch=True, uses={"tensors"}, waits=True)
def train(ctx: Context, event: Event) -> Event:
    """Table 1, all four stages: one long invocation, ended by the goal or near its deadline."""
    return synchronous.train(ctx, event, ScatterReduce())


@step(uses={"tensors"})
def collect(ctx: Context, event: Event) -> None:
    """The trained model to the bucket; every key of the run deleted."""
    life.collect(ctx, event, ScatterReduce())


def checks(e: Experiment) -> Iterator[str]:
    """What an experiment with ScatterReduce cannot ask for."""
    if not RULES[e.aggregation.rule].by_coordinate:
        yield (
            f"aggregation.rule: {e.aggregation.rule} measures distances between whole gradients, ScatterReduce aggregates chunks; "
            "expected mean, median or trimmed_mean, or another architecture"
        )


COMPRESSIONS = tuple(name for name, codec in CODECS.items() if codec.exchanges == 1)
ARCHITECTURE = Architecture(
    "scatter_reduce",
    run=life.tree(initialise, train, collect),
    tensor_hosts="shared",
    exchanges={**EXCHANGES, "gradients": COMPRESSIONS, "delta": COMPRESSIONS},
    why_not="cut into chunks, powersgd's factors, a few percent of a gradient, would save nothing and take twice the requests",
    checks=checks,
    claims={"equals_reference", "same_calls", "survives_kills", "resumes", "stops"},
)
