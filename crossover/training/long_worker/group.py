"""What an exchange sees: this worker's rank, the others' contributions by key, and the rule that makes them one."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from crossover.algorithms import buffers, sparse
from crossover.algorithms.aggregation import combined, finite
from crossover.algorithms.contributions import Contribution
from crossover.algorithms.dropping import Agree
from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
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
    kind: VectorKind  # what is exchanged: gradients or models
    own: Contribution | None = None  # this worker's, where it is encoded; the others' are read as it is
    exchange: int = 0  # which of the round's

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def keys(self) -> Keys:
        return replace(self.ctx.keys, exchange=self.exchange)

    @property
    def unit(self) -> int:
        """Of how many elements the pieces are that a vector is cut into: those that are encoded together."""
        return self.own.codec.unit if self.own and self.own.codec else 1

    def stage(self, name: str) -> AbstractContextManager[None]:
        return self.ctx.stage(name)

    def publish(self, key: str, part: "Tensor", *, samples: int) -> None:
        """First write wins; another attempt's bits are the same."""
        self._create(key, Vector(self.kind, buffers.view(part), samples))

    def contribute(self, key: str, whole: "Tensor", part: slice = slice(None)) -> None:
        """Publish a part of this worker's contribution `whole`, encoded if the YAML asks for that. First write wins."""
        first, end, _ = part.indices(whole.numel())
        samples = self.samples[self.rank]
        if self.own is None or self.own.codec is None:
            self.publish(key, whole[part], samples=samples)
        else:
            self._create(key, Vector(VectorKind.QUANTIZED, buffers.view(self.own.bodies[first, end]), samples, "uint8"))

    def conclude(self, key: str, whole: "Tensor", part: slice = slice(None)) -> None:
        """Publish a part of what the contributions are combined to: as pairs where most of it is zero, else as it is."""
        first, end, _ = part.indices(whole.numel())
        samples = sum(self.samples)
        if self.own is None or self.own.codec is None or not self.own.codec.sparse:
            self.publish(key, whole[part], samples=samples)
            return
        values = whole[first : max(first, min(end, self.own.parameters))]
        rest, indices = whole[first + values.numel() : end], values.nonzero().squeeze(1)
        body = sparse.encode(indices, values[indices], elements=end - first, tail=rest)
        if body.dtype == whole.dtype:
            self._create(key, Vector(self.kind, buffers.view(body), samples))
        else:
            self._create(key, Vector(VectorKind.SPARSE, buffers.view(body), samples, "uint8"))

    def _create(self, key: str, vector: Vector) -> None:
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

        self._found(look, key, sender=sender, samples=samples, unless=unless)
        return out

    def contributed(
        self, key: str, out: "Tensor", *, sender: int, first: int = 0, unless: str | None = None
    ) -> "Tensor":
        """`out`, filled with what `sender` contributes from its element `first` on. Waits and raises as `fetch`."""
        own, samples = self.own, self.samples[sender]
        if own is None or own.codec is None:
            return self.fetch(key, out, sender=sender, samples=samples, unless=unless)

        def look() -> Vector:
            vector = self.ctx.tensors[self.rank].get(key, kind=VectorKind.QUANTIZED)
            own.read(vector.data, out=out, first=first, what=key)
            return vector

        self._found(look, key, sender=sender, samples=samples, unless=unless)
        return out

    def result(self, key: str, out: "Tensor", *, sender: int) -> "Tensor":
        """`out`, filled with what `sender` has combined. Raises Corrupt as `fetch`, and where a sum has overflowed."""
        if self.own is not None and self.own.codec is not None and self.own.codec.sparse:
            self._found(lambda: self._union(key, out), key, sender=sender, samples=sum(self.samples))
        else:
            self.fetch(key, out, sender=sender, samples=sum(self.samples))
        if not finite(out):
            raise Corrupt(f"worker {self.rank}, round {self.round}: {key} contains NaN or infinite values")
        return out

    def _union(self, key: str, out: "Tensor") -> Vector:
        vector = self.ctx.tensors[self.rank].get(key)
        if vector.kind not in (VectorKind.SPARSE, self.kind):
            raise Corrupt(
                f"{key}: holds a {vector.kind} vector where a {self.kind} was expected, or a {VectorKind.SPARSE} one"
            )
        try:
            body = buffers.octets(vector.data) if vector.kind == VectorKind.SPARSE else buffers.tensor(vector.data)
            sparse.add_to(out.zero_(), body)
        except ValueError as error:
            raise Corrupt(f"{key}: {error}") from error
        return vector

    def _found(
        self, look: Callable[[], Vector], key: str, *, sender: int, samples: int, unless: str | None = None
    ) -> None:
        """Wait until `look` finds what `sender` has under `key`, for so many samples."""

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


class GroupExchange(Protocol):
    """How workers turn their contributions into one that all hold. AllReduce and ScatterReduce are two."""

    def done(self, group: Group) -> bool:
        """Whether this worker's share of the round is done: then the result only has to be collected."""

    def parts(self, elements: int, count: int, unit: int) -> "list[slice]":
        """The pieces in which a worker's contribution travels, each but the last of whole `unit`s."""

    def exchange(self, group: Group, own: "Tensor", out: "Tensor") -> None:
        """Publish what the others need of `own`, do this worker's share of the combining, leave the result in `out`; both (D,) float32."""

    def collect(self, group: Group, out: "Tensor") -> None:
        """The result of a round whose share is done, into `out`."""

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Keys of this worker that nobody needs once it holds the result."""

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Keys of this worker's share of a result: they stay for those who restart, until all have checkpoints beyond the round."""
