"""How a gradient's parameters travel: as they are, in half precision, quantized, or the largest alone. Each way knows how many bytes it
makes. PowerSGD, which takes two exchanges, stands in powersgd.py; what a worker keeps from round to round, in codecs.py.

torch is imported by the first gradient: a projection, which asks for sizes alone, needs none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal, Protocol

from crossover.errors import ConfigError, Corrupt, Refused
from crossover.experiment import Exchange

if TYPE_CHECKING:
    from torch import Generator, Tensor

_HALF_MAX = 65_504.0  # float16's largest number


class Compression(Protocol):
    """One way to write P float32 as bytes."""

    @property
    def lossless(self) -> bool:
        """Whether the bytes are the numbers themselves: they can be sent from where they lie, and read where they arrive."""

    @property
    def contracts(self) -> bool:
        """Whether less is left out than there was, whatever the gradient: errors that are fed back grow from round to round otherwise."""

    @property
    def sparse(self) -> bool:
        """Whether most of what is decoded is zero, and the mean of a few such vectors too."""

    @property
    def unit(self) -> int:
        """Parts that are encoded by themselves begin at multiples of so many elements."""

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """(P,) float32 -> for each of `parts` its bytes, (nbytes,) uint8; decoded they give what the whole would give there. The same
        values and the same state of `random` give the same bytes. Raises Refused on values that are not finite and cannot be written.
        """

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """The bytes of `encode` into `out`, (P,) float32. Raises Corrupt, naming `what`, on bytes that are none, or of another length."""

    def nbytes(self, parameters: int) -> int:
        """How many bytes `encode` makes of P parameters, as one part."""


class Uncompressed:
    """float32 as it is."""

    lossless, contracts, sparse, unit = True, True, False, 1

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        import torch

        return [values[part].view(torch.uint8) for part in parts]

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        from crossover.algorithms import buffers

        _expect(data, self.nbytes(out.numel()), what)
        out.copy_(buffers.tensor(data))

    def nbytes(self, parameters: int) -> int:
        return 4 * parameters


class HalfPrecision:
    """float16. What was finite stays so; what was not must be seen by whoever receives it."""

    lossless, contracts, sparse, unit = False, True, False, 1

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        import torch

        clamped = values.clamp(-_HALF_MAX, _HALF_MAX)
        halves = torch.where(values.isinf(), values, clamped).half()
        return [halves[part].view(torch.uint8) for part in parts]

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        import torch

        from crossover.algorithms import buffers

        _expect(data, self.nbytes(out.numel()), what)
        out.copy_(buffers.tensor(data, torch.float16))

    def nbytes(self, parameters: int) -> int:
        return 2 * parameters


@dataclass(frozen=True)
class Quantized:
    """QSGD: crossover/algorithms/qsgd.py. A part ends where a bucket does, so that no bucket has two scales."""

    bits: int
    bucket: int
    norm: Literal["l2", "max"]
    lossless, sparse = False, False

    @property
    def contracts(self) -> bool:
        levels = (1 << (self.bits - 1)) - 1  # by the bounds of the variance in qsgd.py
        if self.norm == "max":
            return self.bucket < 4 * levels**2
        return self.bucket < levels**2  # which is when either of the two bounds is below 1

    @property
    def unit(self) -> int:
        return self.bucket

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        from crossover.algorithms import qsgd

        levels = qsgd.quantize(values, bits=self.bits, bucket=self.bucket, norm=self.norm, generator=random)
        return [qsgd.pack(levels.part(part)) for part in parts]

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        import torch

        from crossover.algorithms import buffers, qsgd

        qsgd.decompress(buffers.tensor(data, torch.uint8), out=out, key=what)

    def nbytes(self, parameters: int) -> int:
        from crossover.algorithms import qsgd

        return qsgd.compressed_bytes(parameters, bits=self.bits, bucket=self.bucket)


@dataclass(frozen=True)
class Largest:
    """The `share` of the coordinates that are largest by magnitude, as (index, value) pairs: crossover/algorithms/sparse.py.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017). Of equal magnitudes the one that comes first is taken.
    """

    share: float
    lossless, contracts, sparse, unit = False, True, True, 1

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        import torch

        from crossover.algorithms import sparse
        from crossover.algorithms.aggregation import finite

        if not finite(values):
            raise Refused("top_k: the gradient has values that are not finite")
        indices = sparse.largest(values, self.count(values.numel()))
        bodies = []
        for part in parts:
            begin, end, _ = part.indices(values.numel())
            first, last = torch.searchsorted(indices, torch.tensor([begin, end])).tolist()
            bodies.append(sparse.pairs(indices[first:last] - begin, values[indices[first:last]], elements=end - begin))
        return bodies

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        from crossover.algorithms import buffers, sparse

        out.zero_()
        try:
            sparse.add_to(out, buffers.octets(data))
        except ValueError as error:
            raise Corrupt(f"{what}: {error}") from error

    def nbytes(self, parameters: int) -> int:
        from crossover.algorithms import sparse

        return sparse.sparse_bytes(self.count(parameters))

    def count(self, parameters: int) -> int:
        """How many of P are sent."""
        return min(parameters, ceil(self.share * parameters))


def exchanges(exchange: Exchange) -> int:
    """How many a round has: PowerSGD's two factors follow one another."""
    return 2 if exchange.compression == "powersgd" else 1


def feeds_back(exchange: Exchange) -> bool:
    """Whether errors are fed back: as told, else where a codec leaves out too much to do without."""
    if exchange.error_feedback is None:
        return exchange.compression in ("powersgd", "top_k")
    return exchange.error_feedback


def _expect(data: memoryview, nbytes: int, what: str) -> None:
    if data.nbytes != nbytes:
        raise Corrupt(f"{what}: {data.nbytes} bytes where {nbytes} are expected")


def named(exchange: Exchange) -> Compression:
    """The way that `exchange.compression` names. Raises ConfigError for one that takes more than one exchange."""
    match exchange.compression:
        case "none":
            return Uncompressed()
        case "fp16":
            return HalfPrecision()
        case "qsgd":
            return Quantized(exchange.bits, exchange.bucket, exchange.norm)
        case "top_k":
            return Largest(exchange.share)
        case "powersgd":
            raise ConfigError("exchange.compression: powersgd encodes no vector by itself")
