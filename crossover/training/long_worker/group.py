"""What an exchange sees: this worker's rank, the others' contributions by key, and the rule that makes them one."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from crossover.algorithms import buffers
from crossover.algorithms.aggregation import combined, finite
from crossover.algorithms.dropping import Agree
from crossover.context import Context
from crossover.dataplane.vector import Kind, Vector
from crossover.errors import Corrupt, Refused
from crossover.keys import Keys
from crossover.training import agreement
from crossover.training.long_worker.waits import Waits

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Group:
    """The workers of one round, from the place of one of them. Every error that concerns another names this
    worker, the round and the key.
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
        """`out`, filled with what `sender` publishes under `key`; waits for it. Raises Corrupt on a wrong kind, length or count.

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
        return out

    def result(self, key: str, out: "Tensor", *, sender: int) -> "Tensor":
        """`out`, filled with what `sender` has combined. Raises Corrupt as `fetch`, and where a sum has overflowed."""
        if not finite(self.fetch(key, out, sender=sender, samples=sum(self.samples))):
            raise Corrupt(f"worker {self.rank}, round {self.round}: {key} contains NaN or infinite values")
        return out

    def agree(self, bad: list[int]) -> list[int]:
        """Of the workers that this one would drop, whom all drop."""
        return self.waits.steadily(lambda: agreement.dropping(self.ctx, self.round)(bad))

    def combine(
        self, parts: "Iterable[Tensor]", out: "Tensor", *, names: Sequence[str], agree: Agree | None = None
    ) -> "Tensor":
        """`out`, filled with the parts (of all workers, by rank) made one by the rule of the YAML; `names`: their keys. For the mean, a
        part may be overwritten once the next one is asked for.
        """
        rule, agree = self.ctx.experiment.aggregation, agree or self.agree
        try:
            return combined(parts, self.samples, rule, names=names, agree=agree, out=out)
        except Refused as error:
            raise Refused(f"worker {self.rank}, round {self.round}: {error}") from error


class Exchange(Protocol):
    """How workers turn their contributions into one that all hold. AllReduce and ScatterReduce are two."""

    def done(self, group: Group) -> bool:
        """Whether this worker's share of the round is done: then the result only has to be collected."""

    def exchange(self, group: Group, own: "Tensor", out: "Tensor") -> None:
        """Publish what the others need of `own`, do this worker's share of the combining, leave the result in `out`; both (D,) float32."""

    def collect(self, group: Group, out: "Tensor") -> None:
        """The result of a round whose share is done, into `out`."""

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Keys of this worker that nobody needs once it holds the result."""

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Keys of this worker's share of a result: they stay for those who restart, until all have checkpoints beyond the round."""
