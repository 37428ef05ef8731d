"""Compress what workers exchange: half precision, the largest entries, few levels (QSGD), low rank (PowerSGD). One class each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Literal

from crossover.errors import Corrupt, Refused
from crossover.experiment import Exchange

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from crossover.algorithms.compression import PowerSGD


# --- codec ------------------------------------------------------------------------------------------------------------

Shapes = Sequence[Sequence[int]]  # of a model's parameters, in the order of its vector


@dataclass(frozen=True)
class Codec:
    """Base of the codecs: how P float32 are written as bytes. Its fields are the settings of the YAML's section
    `exchange` that it uses.
    """

    name: ClassVar[str]  # as exchange.compression names it
    exchanges: ClassVar[int] = (
        1  # that a round has; one with two gives `factors` and `exchanged_bytes`, and no `encode`
    )
    feeds_back: ClassVar[bool] = False  # whether errors are fed back unless the YAML says otherwise
    sparse: ClassVar[bool] = False  # whether most of what is decoded is zero, and the mean of a few such vectors too
    keeps_non_finite: ClassVar[bool] = False  # whether it writes what is not finite so that the reader sees it
    needs_shapes: ClassVar[bool] = False  # whether its bytes follow from the shapes of the model's parameters
    only_mean: ClassVar[str] = ""  # why robust rules cannot compare what workers send; none where they can

    @property
    def unit(self) -> int:
        """Number of elements at whose multiples the parts that are encoded separately begin."""
        return 1

    @property
    def feedback_problem(self) -> str:
        """Reason why this codec's errors, if they are fed back, could grow from round to round; "" if they cannot,
        whatever the gradient is.
        """
        return ""

    def problem(self, shapes: Shapes) -> str | None:
        """Return why this codec cannot compress a model with parameters of these `shapes`; None if it can."""
        return None

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Encode `values`, (P,) float32, and return the bytes, (nbytes,) uint8, of each of `parts`.

        A part decodes to the values that the whole would decode to there. Equal values and an equal state of `random` give equal bytes.
        Raises Refused if values are not finite and the codec cannot write them.
        """
        raise NotImplementedError

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """Decode `data`, bytes from `encode`, into `out`, (P,) float32.

        `what`: name for errors. Raises Corrupt if the bytes are invalid or of another length.
        """
        raise NotImplementedError

    def nbytes(self, parameters: int) -> int:
        """Return the number of bytes of `parameters` elements encoded as one part."""
        raise NotImplementedError

    def exchanged_bytes(
        self, parameters: int, buffers: int, *, workers: int, shapes: Callable[[], Shapes]
    ) -> list[tuple[int, int]]:
        """Return (bytes of a worker's contribution, bytes of the returned result) for each exchange of a round
        (docs/exchange.md), for a model of `parameters` and `buffers`.

        For sparse codecs the result's size is an upper bound: it is smaller if workers choose the same coordinates.
        `shapes`: called only by codecs whose sizes depend on the parameters' shapes.
        """
        up, whole = self.nbytes(parameters) + 4 * buffers, 4 * (parameters + buffers)
        union = up + (workers - 1) * (self.nbytes(parameters) - self.nbytes(0))
        return [(up, min(whole, union) if self.sparse else whole)]

    def factors(self, shapes: Shapes, *, seed: int, feedback: bool) -> "PowerSGD":
        """Return one worker's PowerSGD encoder, for the codec with two exchanges.

        `shapes`: of the parameters; `seed`: of the first factors, equal for all workers; `feedback`: whether errors are
        fed back.
        """
        raise NotImplementedError


class Uncompressed(Codec):
    """Codec that sends float32 as it is."""

    name = "none"
    keeps_non_finite = True

    def nbytes(self, parameters: int) -> int:
        """Return 4 bytes per parameter."""
        return 4 * parameters


def check_length(data: memoryview, nbytes: int, what: str) -> None:
    """Raise Corrupt, naming `what`, if `data` does not have `nbytes` bytes."""
    if data.nbytes != nbytes:
        raise Corrupt(f"{what}: {data.nbytes} bytes where {nbytes} are expected")


# --- fp16 -------------------------------------------------------------------------------------------------------------
# Half precision. Finite values stay finite; values that are not finite stay visible to the receiver.

_HALF_MAX = 65_504.0  # float16's largest number


class HalfPrecision(Codec):
    """Codec that sends float16. Large values are clamped to float16's range; infinite ones stay infinite."""

    name = "fp16"
    keeps_non_finite = True

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Return each of `parts` of the values as float16 bytes. `random` is not used: rounding is deterministic."""
        import torch

        clamped = values.clamp(-_HALF_MAX, _HALF_MAX)
        halves = torch.where(values.isinf(), values, clamped).half()
        return [halves[part].view(torch.uint8) for part in parts]

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """Decode `data`, float16 bytes, into `out`. Raises Corrupt, naming `what`, if the length differs."""
        import torch

        from crossover.algorithms import buffers

        check_length(data, self.nbytes(out.numel()), what)
        out.copy_(buffers.tensor(data, torch.float16))

    def nbytes(self, parameters: int) -> int:
        """Return 2 bytes per parameter."""
        return 2 * parameters


# --- powersgd ---------------------------------------------------------------------------------------------------------
# PowerSGD: crossover/algorithms/compression.py. Its two factors follow one another, in an exchange each.


@dataclass(frozen=True)
class LowRank(Codec):
    """Codec PowerSGD, which sends each matrix as a product of two thin ones of this `rank`."""

    rank: int
    name = "powersgd"
    exchanges = 2
    feeds_back = True
    needs_shapes = True
    only_mean = "what travels are factors of them, which mean nothing one by one"

    def problem(self, shapes: Shapes) -> str | None:
        """Return why no matrix of these `shapes` becomes smaller at this rank; None if one does."""
        from crossover.algorithms import compression

        return compression.find_problem(shapes, rank=self.rank)

    def exchanged_bytes(
        self, parameters: int, buffers: int, *, workers: int, shapes: Callable[[], Shapes]
    ) -> list[tuple[int, int]]:
        """Return (bytes sent, bytes returned) of the round's two exchanges, of the factors P and of Q.

        The sizes follow from `shapes` and `buffers`; they do not depend on `workers`, nor on the count of `parameters`
        alone.
        """
        from crossover.algorithms.compression import build_layout

        parts = build_layout(shapes(), rank=self.rank)
        first, second = 4 * (parts.p_elements + parts.whole_elements + buffers), 4 * parts.q_elements
        return [(first, first), (second, second)]

    def factors(self, shapes: Shapes, *, seed: int, feedback: bool) -> "PowerSGD":
        """Return one worker's PowerSGD encoder for parameters of these `shapes`.

        `seed`: of the first factors, equal for all workers; `feedback`: whether errors are fed back.
        """
        import torch

        from crossover.algorithms.compression import PowerSGD

        return PowerSGD(shapes, rank=self.rank, seed=seed, feedback=feedback, dtype=torch.float32)


# --- qsgd -------------------------------------------------------------------------------------------------------------
# QSGD: crossover/algorithms/compression.py. A part ends where a bucket does, so that no bucket has two scales.


@dataclass(frozen=True)
class Quantized(Codec):
    """Codec QSGD, which sends each element in `bits` bits; the elements of a bucket share a scale, by their `norm`."""

    bits: int
    bucket: int
    norm: Literal["l2", "max"]
    name = "qsgd"

    @property
    def unit(self) -> int:
        """The size of a bucket in elements: parts of a vector begin where a bucket does."""
        return self.bucket

    @property
    def feedback_problem(self) -> str:
        """Reason why errors that are fed back could grow, from the bounds of QSGD's variance; "" if they cannot."""
        levels = (1 << (self.bits - 1)) - 1  # by the bounds of the variance in algorithms/compression.py
        # With the l2 norm, either of the two bounds is below 1 then.
        if self.bucket < (4 * levels**2 if self.norm == "max" else levels**2):
            return ""
        smaller = "a smaller exchange.bucket, " if self.bucket > 128 else ""
        return (
            f"qsgd of {self.bits} bits in buckets of {self.bucket} may leave out more than there was, which fed back grows from round to "
            f"round; expected more exchange.bits, {smaller}or false: qsgd is unbiased"
        )

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Return the quantized bytes of each of `parts` of the values.

        `random`: draws the stochastic rounding. Raises Refused if a value is not finite.
        """
        from crossover.algorithms import compression

        levels = compression.quantize(values, bits=self.bits, bucket=self.bucket, norm=self.norm, generator=random)
        return [compression.pack(levels.part(part)) for part in parts]

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """Decode `data`, quantized bytes, into `out`. Raises Corrupt, naming `what`, if they are invalid."""
        import torch

        from crossover.algorithms import buffers, compression

        compression.decompress(buffers.tensor(data, torch.uint8), out=out, key=what)

    def nbytes(self, parameters: int) -> int:
        """Return the bytes of header, scales and codes for `parameters` elements."""
        from crossover.algorithms import compression

        return compression.compressed_bytes(parameters, bits=self.bits, bucket=self.bucket)


# --- top k ------------------------------------------------------------------------------------------------------------
# The coordinates that are largest by magnitude, as (index, value) pairs: crossover/algorithms/compression.py.
#
# Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017). Of equal magnitudes the one that comes first is taken.


@dataclass(frozen=True)
class Largest(Codec):
    """Codec top-k, which sends the largest `share` of the elements by magnitude as (index, value) pairs."""

    share: float
    name = "top_k"
    feeds_back = True
    sparse = True
    only_mean = "most of each is zero"

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Return the (index, value) pairs of the largest of `values` as bytes, for each of `parts`.

        `random` is not used. Raises Refused if a value is not finite.
        """
        import torch

        from crossover.algorithms import compression
        from crossover.algorithms.aggregation import is_finite

        if not is_finite(values):
            raise Refused("top_k: the gradient has values that are not finite")
        indices = compression.find_largest(values, self.count(values.numel()))
        bodies = []
        for part in parts:
            begin, end, _ = part.indices(values.numel())
            first, last = torch.searchsorted(indices, torch.tensor([begin, end])).tolist()
            bodies.append(
                compression.encode_pairs(indices[first:last] - begin, values[indices[first:last]], elements=end - begin)
            )
        return bodies

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """Decode `data`, (index, value) pairs, into `out`, zeros elsewhere.

        Raises Corrupt, naming `what`, if they are invalid.
        """
        from crossover.algorithms import buffers, compression

        out.zero_()
        try:
            compression.add_to(out, buffers.octets(data))
        except ValueError as error:
            raise Corrupt(f"{what}: {error}") from error

    def nbytes(self, parameters: int) -> int:
        """Return the bytes of the pairs that are sent of `parameters` elements."""
        from crossover.algorithms import compression

        return compression.sparse_bytes(self.count(parameters))

    def count(self, parameters: int) -> int:
        """Return how many of `parameters` elements are sent."""
        return min(parameters, ceil(self.share * parameters))


# --- codecs -----------------------------------------------------------------------------------------------------------
# The codecs that exchange.compression may name: every subclass above is found. None needs torch to be named.

CODECS: dict[str, type[Codec]] = {
    each.name: each
    for each in tuple(vars().values())
    if isinstance(each, type) and issubclass(each, Codec) and each is not Codec
}


def build_codec(exchange: Exchange) -> Codec:
    """Return the codec that `exchange.compression` names, with its settings."""
    codec = CODECS[exchange.compression]
    return codec(**{each.name: getattr(exchange, each.name) for each in fields(codec)})


def count_exchanges(exchange: Exchange) -> int:
    """Return the number of exchanges in a round with this compression."""
    return CODECS[exchange.compression].exchanges


def has_error_feedback(exchange: Exchange) -> bool:
    """Return whether errors are fed back: `exchange.error_feedback` if it is set, otherwise the codec's default."""
    told = exchange.error_feedback
    return CODECS[exchange.compression].feeds_back if told is None else told
