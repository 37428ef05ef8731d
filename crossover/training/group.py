"""What an exchange works with: this worker's rank, the other workers' contributions by key, and the aggregation rule."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from crossover.algorithms import buffers, compression
from crossover.algorithms.aggregation import combine_vectors, is_finite
from crossover.algorithms.contributions import Contribution
from crossover.algorithms.rules import Agree
from crossover.data.encoding import Vector, VectorKind
from crossover.data.keys import Keys
from crossover.errors import Corrupt, Refused
from crossover.training import progress
from crossover.training.waits import Waits
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Group:
    """The workers of one round, from the view of one of them.

    Every error that concerns another worker names this worker, the round and the key.
    """

    ctx: Context
    waits: Waits
    rank: int
    round: int
    samples: Sequence[int]  # of every worker's contribution to this round, by rank
    kind: VectorKind  # what is exchanged: gradients or models
    own: Contribution | None = None  # this worker's, if it is encoded; the others' are decoded in the same way
    exchange: int = 0  # which of the round's

    @property
    def count(self) -> int:
        """Number of workers in the group."""
        return len(self.samples)

    @property
    def keys(self) -> Keys:
        """The keys of this exchange."""
        return replace(self.ctx.keys, exchange=self.exchange)

    @property
    def unit(self) -> int:
        """The number of elements that are encoded together: a vector is cut only at multiples of it."""
        return self.own.codec.unit if self.own and self.own.codec else 1

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that times a stage, such as "synchronise", in the invocation's record."""
        return self.ctx.stage(name)

    def publish(self, key: str, part: "Tensor", *, samples: int) -> None:
        """Store `part` under `key`, as a vector that stands for `samples` samples.

        The first write wins; another attempt writes the same bits.
        """
        self._create(key, Vector(self.kind, buffers.view(part), samples))

    def contribute(self, key: str, whole: "Tensor", part: slice = slice(None)) -> None:
        """Publish the slice `part` of this worker's contribution `whole` under `key`, encoded if the YAML asks for that.

        The first write wins.
        """
        first, end, _ = part.indices(whole.numel())
        samples = self.samples[self.rank]
        if self.own is None or self.own.codec is None:
            self.publish(key, whole[part], samples=samples)
        else:
            self._create(key, Vector(VectorKind.QUANTIZED, buffers.view(self.own.bodies[first, end]), samples, "uint8"))

    def publish_combined(self, key: str, whole: "Tensor", part: slice = slice(None)) -> None:
        """Publish the slice `part` of the combined contributions `whole` under `key`, in sparse form if the codec is
        sparse. The first write wins.

        If the sparse form would not be smaller, the values are published as they are.
        """
        first, end, _ = part.indices(whole.numel())
        samples = sum(self.samples)
        if self.own is None or self.own.codec is None or not self.own.codec.sparse:
            self.publish(key, whole[part], samples=samples)
            return
        values = whole[first : max(first, min(end, self.own.parameters))]
        rest, indices = whole[first + values.numel() : end], values.nonzero().squeeze(1)
        body = compression.encode(indices, values[indices], elements=end - first, tail=rest)
        if body.dtype == whole.dtype:
            self._create(key, Vector(self.kind, buffers.view(body), samples))
        else:
            self._create(key, Vector(VectorKind.SPARSE, buffers.view(body), samples, "uint8"))

    def _create(self, key: str, vector: Vector) -> None:
        """Store `vector` under `key` in the worker's store unless the key exists; retry if the store does not answer."""
        self.waits.retry(lambda: self.ctx.tensors[self.rank].create(key, vector))

    def is_published(self, key: str) -> bool:
        """Return whether `key` exists."""
        return self.waits.retry(lambda: self.ctx.tensors[self.rank].exists(key))

    def fetch(self, key: str, out: "Tensor", *, sender: int, samples: int, unless: str | None = None) -> "Tensor":
        """Wait for the vector that `sender` publishes under `key`, fill `out` with it, and return `out`.

        `samples`: count that the vector must state. `unless`: key of the result that it is needed for; raises
        ResultExists if that exists already. Raises Corrupt on a wrong kind, length or count.
        """
        target = buffers.view(out)

        def look() -> Vector:
            """Read the vector under the key into `out`. Raises Missing."""
            return self.ctx.tensors[self.rank].get(key, kind=self.kind, out=target)

        self._fetch_checked(look, key, sender=sender, samples=samples, unless=unless)
        return out

    def fetch_contribution(
        self, key: str, out: "Tensor", *, sender: int, first: int = 0, unless: str | None = None
    ) -> "Tensor":
        """Fill `out` with the part of the contribution of `sender` that begins at element `first` and is stored under
        `key`, and return `out`.

        Waits, stops at `unless`, and raises as `fetch`.
        """
        own, samples = self.own, self.samples[sender]
        if own is None or own.codec is None:
            return self.fetch(key, out, sender=sender, samples=samples, unless=unless)

        def look() -> Vector:
            """Read the encoded vector under the key and decode it into `out`. Raises Missing."""
            vector = self.ctx.tensors[self.rank].get(key, kind=VectorKind.QUANTIZED)
            own.read(vector.data, out=out, first=first, what=key)
            return vector

        self._fetch_checked(look, key, sender=sender, samples=samples, unless=unless)
        return out

    def fetch_result(self, key: str, out: "Tensor", *, sender: int) -> "Tensor":
        """Fill `out` with the result that `sender` has combined and stored under `key`, and return it.

        Raises Corrupt as `fetch`, and if a sum has overflowed.
        """
        if self.own is not None and self.own.codec is not None and self.own.codec.sparse:
            self._fetch_checked(lambda: self._union(key, out), key, sender=sender, samples=sum(self.samples))
        else:
            self.fetch(key, out, sender=sender, samples=sum(self.samples))
        if not is_finite(out):
            raise Corrupt(f"worker {self.rank}, round {self.round}: {key} contains NaN or infinite values")
        return out

    def _union(self, key: str, out: "Tensor") -> Vector:
        """Add a result in sparse form, or one in plain form, into the zeroed `out`, and return its vector. Raises Corrupt on another kind
        or length.
        """
        vector = self.ctx.tensors[self.rank].get(key)
        if vector.kind not in (VectorKind.SPARSE, self.kind):
            raise Corrupt(f"{key}: holds a {vector.kind} vector; expected {self.kind} or {VectorKind.SPARSE}")
        try:
            body = buffers.octets(vector.data) if vector.kind == VectorKind.SPARSE else buffers.tensor(vector.data)
            compression.add_to(out.zero_(), body)
        except ValueError as error:
            raise Corrupt(f"{key}: {error}") from error
        return vector

    def _fetch_checked(
        self, look: Callable[[], Vector], key: str, *, sender: int, samples: int, unless: str | None = None
    ) -> None:
        """Wait until `look` returns the vector that `sender` stores under `key`. Raises Corrupt unless it states the count `samples`."""

        def is_unneeded() -> bool:
            """Return whether the result under `unless` exists, so that this vector is not needed any more."""
            return unless is not None and self.is_published(unless)

        try:
            found = self.waits.wait_for(look, round=self.round, key=key, sender=sender, is_unneeded=is_unneeded)
        except Corrupt as error:
            raise Corrupt(f"worker {self.rank}, round {self.round}: {error}") from error
        if found.samples != samples:
            raise Corrupt(
                f"worker {self.rank}, round {self.round}: {key} stands for {found.samples} samples; worker {sender} has {samples}"
            )

    def agree(self, bad: list[int]) -> list[int]:
        """Return the workers that all drop. `bad`: those that this worker would drop."""
        return self.waits.retry(lambda: progress.drop_agreement(self.ctx, self.round)(bad))

    def combine(
        self, parts: "Iterable[Tensor]", out: "Tensor", *, names: Sequence[str], agree: Agree | None = None
    ) -> "Tensor":
        """Fill `out` with the aggregate of all workers' `parts`, which come in rank order, and return it.

        `names`: keys of the parts, for errors; `agree`: agrees with the other workers on whom to drop. For the mean, a part may be
        overwritten once the next one is requested. Raises Refused.
        """
        rule, agree = self.ctx.experiment.aggregation, agree or self.agree
        try:
            return combine_vectors(parts, self.samples, rule, names=names, agree=agree, out=out)
        except Refused as error:
            raise Refused(f"worker {self.rank}, round {self.round}: {error}") from error


class GroupExchange(Protocol):
    """The way in which workers turn their contributions into one result that all hold. AllReduce and ScatterReduce are two."""

    def done(self, group: Group) -> bool:
        """Return whether this worker's share of the round is done, so that only the result has to be collected."""

    def parts(self, elements: int, count: int, unit: int) -> "list[slice]":
        """Return the pieces of a contribution of `elements` elements that are sent one by one among `count` workers;
        each but the last consists of whole `unit`s.
        """

    def exchange(self, group: Group, own: "Tensor", out: "Tensor") -> None:
        """Publish the parts of `own` that the others of the `group` need, do this worker's share of the combining, and
        write the result to `out`; both (D,).
        """

    def collect(self, group: Group, out: "Tensor") -> None:
        """Fill `out` with the result of a round whose share is done."""

    def used_up(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the keys of the exchange of `round` that the worker `rank`, one of `count`, has stored and that no
        worker needs once this worker holds the result.
        """

    def results(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the keys of the share of the result of `round` that the worker `rank`, one of `count`, has stored.

        Restarting workers need them until all have checkpoints beyond the round.
        """
