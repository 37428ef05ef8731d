"""What an exchange works with: this worker's rank, the other workers' contributions by key, and the aggregation rule."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from crossover.algorithms import buffers, compression
from crossover.algorithms.aggregation import combine_vectors, is_finite
from crossover.algorithms.contributions import Contribution
from crossover.algorithms.rules import Agree
from crossover.errors import Corrupt, Refused
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.training import progress
from crossover.training.waits import Waits
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Group:
    """One exchange of one round, as one of the workers sees it: who takes part, and how this worker publishes and fetches vectors.

    `ctx`, `waits`: of this worker's invocation; `rank`: this worker's; `round`: number of the round; `samples`: weight of every worker's
    contribution to this round, by rank; `kind`: of the vectors that are exchanged, gradients or models; `own`: this worker's encoded
    contribution, whose codec also decodes the others', None if contributions are not encoded; `exchange`: number of the exchange within the
    round, from 0. Every error that concerns another worker names this worker, the round and the key.
    """

    ctx: Context
    waits: Waits
    rank: int
    round: int
    samples: Sequence[int]
    kind: VectorKind
    own: Contribution | None = None
    exchange: int = 0

    @property
    def count(self) -> int:
        """Number of workers in the group."""
        return len(self.samples)

    @property
    def keys(self) -> Keys:
        """The keys under which the vectors of this exchange are stored."""
        return replace(self.ctx.keys, exchange=self.exchange)

    @property
    def unit(self) -> int:
        """The number of neighbouring elements that are encoded together: a vector is cut only at multiples of it. 1 without an encoder."""
        return self.own.codec.unit if self.own and self.own.codec else 1

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager that times its block as the stage `name`, such as "synchronise", in the invocation's record."""
        return self.ctx.stage(name)

    def publish(self, key: str, part: "Tensor", *, samples: int) -> None:
        """Store the values of `part`, uncompressed, under `key`, with their weight `samples`, unless the key exists.

        A retry would write the same bits, so the first write counts.
        """
        self._create(key, Vector(self.kind, buffers.view(part), samples))

    def contribute(self, key: str, whole: "Tensor", part: slice = slice(None)) -> None:
        """Store the slice `part` of this worker's contribution `whole` under `key`, encoded if the experiment compresses. The first write
        counts.

        If it is encoded, the bytes are those of `own`, and `whole` gives only the length: `part` must be a slice for which `own` was
        encoded, otherwise KeyError is raised.
        """
        first, end, _ = part.indices(whole.numel())
        samples = self.samples[self.rank]
        if self.own is None or self.own.codec is None:
            self.publish(key, whole[part], samples=samples)
        else:
            self._create(key, Vector(VectorKind.QUANTIZED, buffers.view(self.own.bodies[first, end]), samples, "uint8"))

    def publish_combined(self, key: str, whole: "Tensor", part: slice = slice(None)) -> None:
        """Store the slice `part` of `whole`, the aggregate of all contributions, under `key`, with the sum of all workers' weights. The
        first write counts.

        If the codec is sparse, it is stored as pairs of index and value, unless that would not be smaller.
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
        """Store `vector` under `key` in the worker's store unless the key exists. Retry if the store does not answer; raise Unavailable if
        it does not for 60 s, or if the deadline is near.
        """
        self.waits.retry(lambda: self.ctx.tensors[self.rank].create(key, vector))

    def is_published(self, key: str) -> bool:
        """Return whether a vector is stored under `key`. Raises Unavailable if the store does not answer for 60 s, or the deadline is
        near.
        """
        return self.waits.retry(lambda: self.ctx.tensors[self.rank].exists(key))

    def fetch(self, key: str, out: "Tensor", *, sender: int, samples: int, unless: str | None = None) -> "Tensor":
        """Wait for the vector that the worker `sender` publishes under `key`, write it into `out`, and return `out`.

        `samples`: count that the vector must state. `unless`: key of the result for which the vector is needed; raises ResultExists if that
        result exists already. Raises Corrupt if kind, length or count is wrong, and what `Waits.wait_for` raises, such as NearDeadline,
        RunFailed and WaitTimeout.
        """
        target = buffers.view(out)

        def look() -> Vector:
            """Read the vector under the awaited key from this worker's store into `out`, and return it, a view of `out`. Raises Missing if
            it is not stored yet, Corrupt if kind or length is wrong.
            """
            return self.ctx.tensors[self.rank].get(key, kind=self.kind, out=target)

        self._fetch_checked(look, key, sender=sender, samples=samples, unless=unless)
        return out

    def fetch_contribution(
        self, key: str, out: "Tensor", *, sender: int, first: int = 0, unless: str | None = None
    ) -> "Tensor":
        """Wait for a part of the contribution of `sender`, stored under `key`, write its decoded values into `out`, and return `out`.

        `first`: number of the element at which the part begins; `unless`: key of the result for which the part is needed. Raises
        ResultExists if that result exists already, Corrupt if kind, length or count is wrong, and what `Waits.wait_for` raises.
        """
        own, samples = self.own, self.samples[sender]
        if own is None or own.codec is None:
            return self.fetch(key, out, sender=sender, samples=samples, unless=unless)

        def look() -> Vector:
            """Read the encoded vector under the awaited key from this worker's store, decode it into `out`, and return the encoded vector.
            Raises Missing if it is not stored yet, Corrupt if it does not match.
            """
            vector = self.ctx.tensors[self.rank].get(key, kind=VectorKind.QUANTIZED)
            own.read(vector.data, out=out, first=first, what=key)
            return vector

        self._fetch_checked(look, key, sender=sender, samples=samples, unless=unless)
        return out

    def fetch_result(self, key: str, out: "Tensor", *, sender: int) -> "Tensor":
        """Wait for the aggregate that `sender` publishes under `key`, write it into `out`, and return `out`.

        Raises Corrupt if kind, length or sample count is wrong, or if a value is NaN or infinite, and what `Waits.wait_for` raises, such as
        NearDeadline and WaitTimeout.
        """
        if self.own is not None and self.own.codec is not None and self.own.codec.sparse:
            self._fetch_checked(lambda: self._read_aggregate(key, out), key, sender=sender, samples=sum(self.samples))
        else:
            self.fetch(key, out, sender=sender, samples=sum(self.samples))
        if not is_finite(out):
            raise Corrupt(f"worker {self.rank}, round {self.round}: {key} contains NaN or infinite values")
        return out

    def _read_aggregate(self, key: str, out: "Tensor") -> Vector:
        """Read the aggregate under `key`, which is stored in sparse or plain form, into `out`, and return the stored vector. Raises Corrupt
        if its kind or length is wrong, Missing if there is none.
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
        """Call `look`, which reads the vector that `sender` stores under `key`, until it no longer raises Missing. Raises Corrupt if the
        vector's count of samples is not `samples`, ResultExists if the key `unless` exists while it waits, and what `Waits.wait_for`
        raises.
        """

        def is_unneeded() -> bool:
            """Return whether the result with the key `unless` exists, so that the awaited vector is not needed any more; False if `unless`
            is None. Raises Unavailable if the store does not answer for 60 s, or the deadline is near.
            """
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
        """Agree with the other workers on whose contributions to leave out of this round, and return their ranks. `bad`: ranks that this
        worker would leave out. The first list that a worker stores counts for all; an empty `bad` is returned without asking the store.
        Raises Unavailable if the store does not answer for 60 s, or the deadline is near.
        """
        return self.waits.retry(lambda: progress.drop_agreement(self.ctx, self.round)(bad))

    def combine(
        self, parts: "Iterable[Tensor]", out: "Tensor", *, names: Sequence[str], agree: Agree | None = None
    ) -> "Tensor":
        """Write the aggregate of all workers' `parts` into `out` by the experiment's aggregation rule, and return `out`.

        `parts`: in rank order; for the mean, a part may be overwritten once the next one is requested. `names`: keys of the parts, for
        errors; `agree`: takes the ranks that this worker would leave out, and returns those that all leave out; None: `Group.agree`. Raises
        Refused if the rule cannot be applied, e.g. to values that are not finite.
        """
        rule, agree = self.ctx.experiment.aggregation, agree or self.agree
        try:
            return combine_vectors(parts, self.samples, rule, names=names, agree=agree, out=out)
        except Refused as error:
            raise Refused(f"worker {self.rank}, round {self.round}: {error}") from error


class GroupExchange(Protocol):
    """A way in which workers turn their contributions into one result that all hold. Protocol; AllReduce and ScatterReduce implement it."""

    def is_combined(self, group: Group) -> bool:
        """Return whether this worker's share of the result of `group`'s round is already stored, so that it only has to collect the whole.
        In AllReduce that is the whole result, on every worker. False if results are never stored; `collect` is then not called.
        """

    def split(self, elements: int, count: int, unit: int) -> "list[slice]":
        """Return the slices in which a contribution of `elements` elements is sent among `count` workers: one for each worker, by rank, or
        one over all; an empty list if nothing is sent. Each slice but the last is a multiple of `unit` elements long.
        """

    def exchange(self, group: Group, own: "Tensor", out: "Tensor") -> None:
        """Publish the parts of `own` that the other workers of `group` need, combine this worker's share of the result, and write the whole
        result into `out`. Both are (D,). Keys that exist stay as they are. Raises ResultExists if another attempt of this worker has stored
        its share meanwhile (the caller then calls `collect`), Corrupt or Refused if a part cannot be used, and what `Waits.wait_for`
        raises.
        """

    def collect(self, group: Group, out: "Tensor") -> None:
        """Write the result of `group`'s round into `out`, (D,), without contributing: this worker's share is already stored. Waits for the
        shares of others, and raises what `Waits.wait_for` raises, and Corrupt if a share is wrong.
        """

    def list_used_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the keys that worker `rank`, one of `count`, may have stored for the exchange of `round` and that no worker needs once
        this worker holds the result; an empty list if it stores none. Nothing is looked up. `keys`: of the attempt and exchange.
        """

    def list_result_keys(self, keys: Keys, round: int, *, rank: int, count: int) -> list[str]:
        """Return the keys of that share of the result of `round` which worker `rank`, one of `count`, combines and stores; an empty list if
        it combines none. `keys`: of the attempt and exchange.

        They are kept longer: a restarted worker needs them until all workers have checkpoints beyond the round.
        """
