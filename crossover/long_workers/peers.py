"""What an exchange sees: this worker's rank, the others' contributions by key, and the rule that makes them one."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from crossover.algorithms import buffers, robust
from crossover.algorithms.running_mean import RunningMean
from crossover.context import Context
from crossover.dataplane.vector import Kind, Vector
from crossover.errors import Corrupt
from crossover.keys import Keys
from crossover.long_workers.waits import Waits

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Peers:
    """The workers of one round, from the place of one of them. Every error that concerns another names this worker,
    the round and the key.
    """

    ctx: Context
    waits: Waits
    rank: int
    round: int
    samples: Sequence[int]  # of every worker's contribution to this round, by rank
    kind: Kind  # what is exchanged: gradients or models

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def keys(self) -> Keys:
        return self.ctx.keys

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self.ctx.stage(name)

    def publish(self, key: str, part: "Tensor", *, samples: int) -> None:
        """First write wins; another attempt's bits are the same."""
        vector = Vector(self.kind, buffers.view(part), samples)
        self.waits.steadily(lambda: self.ctx.tensors[self.rank].create(key, vector))

    def published(self, key: str) -> bool:
        return self.waits.steadily(lambda: self.ctx.tensors[self.rank].exists(key))

    def fetch(self, key: str, out: "Tensor", *, sender: int, samples: int, unless: str | None = None) -> "Tensor":
        """`out`, filled with what `sender` publishes under `key`; waits for it. Raises Corrupt on a wrong kind,
        length or count, or on NaN.

        `unless`: the key of what it is needed for; raises Settled should that be there already.
        """
        target = buffers.view(out)

        def look() -> Vector:
            return self.ctx.tensors[self.rank].get(key, kind=self.kind, out=target)

        def settled() -> bool:
            return unless is not None and self.published(unless)

        try:
            found = self.waits.until(look, round=self.round, key=key, sender=sender, settled=settled)
        except Corrupt as error:
            raise Corrupt(f"worker {self.rank}, round {self.round}: {error}") from error
        if found.samples != samples:
            raise Corrupt(
                f"worker {self.rank}, round {self.round}: {key} stands for {found.samples} samples; worker {sender} has {samples}"
            )
        self.refuse_infinite(out, key=key)
        return out

    def refuse_infinite(self, part: "Tensor", *, key: str) -> None:
        # A sum is finite unless a term is not (or it overflows): the exact question is asked only then.
        if part.numel() and not math.isfinite(float(part.sum())) and not bool(part.isfinite().all()):
            raise Corrupt(f"worker {self.rank}, round {self.round}: {key} contains NaN or infinite values")

    def combine(self, parts: "Iterable[Tensor]", out: "Tensor") -> "Tensor":
        """`out`, filled with the parts (of all workers, by rank) made one by the rule of the YAML. For the mean, a
        part may be overwritten once the next one is asked for."""
        rule = self.ctx.experiment.aggregation
        if rule.rule == "mean" or self.kind is Kind.MODEL:
            mean = RunningMean(self.samples, total=out)
            for part in parts:
                mean.add(part)
            return mean.result()
        held = [part.clone() for part in parts]
        match rule.rule:
            case "median":
                return out.copy_(robust.median(held))
            case "trimmed_mean":
                return out.copy_(robust.trimmed_mean(held, trim=rule.trim))
            case "krum":
                return out.copy_(robust.krum(held, faulty=rule.faulty, select=rule.select))


class Exchange(Protocol):
    """How workers turn their contributions into one that all hold. AllReduce and ScatterReduce are two."""

    def done(self, peers: Peers) -> bool:
        """Whether this worker's share of the round is done: then the result only has to be collected."""

    def exchange(self, peers: Peers, own: "Tensor", out: "Tensor") -> None:
        """Publish what the others need of `own`, do this worker's share of the combining, leave the result in `out`;
        both (D,) float32.
        """

    def collect(self, peers: Peers, out: "Tensor") -> None:
        """The result of a round whose share is done, into `out`."""

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Keys of this worker that nobody needs once it holds the result."""

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Keys of this worker's share of a result: they stay for those who restart, until all have checkpoints beyond
        the round.
        """
