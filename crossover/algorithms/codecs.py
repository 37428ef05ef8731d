"""Compress what workers exchange: half precision, the largest entries, few levels (QSGD), low rank (PowerSGD). One class each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Literal

from crossover.algorithms.encoded_sizes import qsgd_bytes, sparse_bytes
from crossover.algorithms.low_rank import Shapes, build_layout, find_rank_problem
from crossover.errors import Corrupt, Refused
from crossover.experiment import Exchange

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from crossover.algorithms.compression import PowerSGD


# --- codec ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Codec:
    """Base class of the codecs, which compress a vector of P float32 (a gradient, or what else workers exchange) to bytes. A codec's
    fields are those settings of the YAML's section `exchange` that it uses; `build_codec` makes it.

    Class variables: `name` in `exchange.compression`; `exchanges`: how many a round has (a codec with two has `build_powersgd` and
    `exchanged_bytes` instead of `encode`); `feeds_back`: whether errors are fed back by default; `sparse`: most decoded values are 0;
    `keeps_non_finite`: values that are not finite reach the receiver; `needs_shapes`: sizes depend on the shapes of the model's
    parameters; `only_mean`: why robust rules cannot compare what workers send, "" if they can.
    """

    name: ClassVar[str]  # as exchange.compression names it
    exchanges: ClassVar[int] = (
        1  # that a round has; one with two gives `build_powersgd` and `exchanged_bytes`, and no `encode`
    )
    feeds_back: ClassVar[bool] = False  # whether errors are fed back unless the YAML says otherwise
    sparse: ClassVar[bool] = False  # whether most of what is decoded is zero, and the mean of a few such vectors too
    keeps_non_finite: ClassVar[bool] = False  # whether it writes what is not finite so that the reader sees it
    needs_shapes: ClassVar[bool] = False  # whether its bytes follow from the shapes of the model's parameters
    only_mean: ClassVar[str] = ""  # why robust rules cannot compare what workers send; none where they can

    @property
    def unit(self) -> int:
        """Step, in elements, at whose multiples a vector may be cut into parts that are encoded separately."""
        return 1

    @property
    def feedback_problem(self) -> str:
        """Reason in words why errors of this codec could grow from round to round if they are fed back; "" if they cannot."""
        return ""

    def find_shape_problem(self, shapes: Shapes) -> str | None:
        """Return in words why this codec cannot compress a model with parameters of these `shapes`; None if it can."""
        return None

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Encode `values`, (P,) float32, and return for each slice in `parts` its bytes as a uint8 tensor. Codecs with one exchange per
        round override it.

        A part decodes to the values that the whole would decode to there. Equal values and an equal state of `random` give equal bytes.
        Raises Refused if values are not finite and the codec cannot represent them.
        """
        raise NotImplementedError

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """Decode `data`, bytes of one part from `encode`, into `out`, float32 of that part's length.

        `what`: name for errors. Raises Corrupt if the bytes are invalid or of another length. Codecs with one exchange per round override
        it.
        """
        raise NotImplementedError

    def nbytes(self, parameters: int) -> int:
        """Return the number of bytes that `parameters` elements take when encoded as one part. Codecs with one exchange per round override
        it. Raises NotImplementedError for other codecs.
        """
        raise NotImplementedError

    def exchanged_bytes(
        self, parameters: int, buffers: int, *, workers: int, shapes: Callable[[], Shapes]
    ) -> list[tuple[int, int]]:
        """Return for each exchange of a round (bytes that one worker sends, bytes of the result that it gets back), for a model of
        `parameters` and `buffers` (elements of BatchNorm statistics); see docs/exchange.md.

        For sparse codecs the second is an upper bound: the result is smaller if workers choose the same coordinates. `shapes`:
        returns the parameters' shapes; called only if sizes depend on them.
        """
        up, whole = self.nbytes(parameters) + 4 * buffers, 4 * (parameters + buffers)
        union = up + (workers - 1) * (self.nbytes(parameters) - self.nbytes(0))
        return [(up, min(whole, union) if self.sparse else whole)]

    def build_powersgd(self, shapes: Shapes, *, seed: int, feedback: bool) -> "PowerSGD":
        """Return one worker's PowerSGD encoder. Only codecs with two exchanges per round override it.

        `shapes`: of the parameters; `seed`: of the first factors, equal for all workers; `feedback`: whether errors are fed back.
        """
        raise NotImplementedError


class Uncompressed(Codec):
    """Codec "none", for vectors that are sent as float32; it has sizes only: `encode` and `decode` raise NotImplementedError."""

    name = "none"
    keeps_non_finite = True

    def nbytes(self, parameters: int) -> int:
        """Return the size in bytes of `parameters` elements: 4 each."""
        return 4 * parameters


def check_length(data: memoryview, nbytes: int, what: str) -> None:
    """Raise Corrupt, naming `what`, if `data` does not have `nbytes` bytes."""
    if data.nbytes != nbytes:
        raise Corrupt(f"{what}: {data.nbytes} bytes where {nbytes} are expected")


# --- fp16 -------------------------------------------------------------------------------------------------------------
# Half precision. Finite values stay finite; values that are not finite stay visible to the receiver.

_HALF_MAX = 65_504.0  # float16's largest number


class HalfPrecision(Codec):
    """Codec that sends float16. Finite values too large for float16 are clamped to its range; infinite ones stay infinite."""

    name = "fp16"
    keeps_non_finite = True

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Return for each slice in `parts` that slice of `values` as float16 bytes; finite values are clamped to float16's range.
        `random` is not used: rounding is deterministic.
        """
        import torch

        clamped = values.clamp(-_HALF_MAX, _HALF_MAX)
        halves = torch.where(values.isinf(), values, clamped).half()
        return [halves[part].view(torch.uint8) for part in parts]

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """Decode `data`, float16 bytes, into `out`, float32. Raises Corrupt, naming `what`, if the length differs."""
        import torch

        from crossover.algorithms import buffers

        check_length(data, self.nbytes(out.numel()), what)
        out.copy_(buffers.tensor(data, torch.float16))

    def nbytes(self, parameters: int) -> int:
        """Return the size in bytes of `parameters` encoded elements: 2 each."""
        return 2 * parameters


# --- powersgd ---------------------------------------------------------------------------------------------------------
# PowerSGD: crossover/algorithms/compression.py. Its two factors follow one another, in an exchange each.


@dataclass(frozen=True)
class LowRank(Codec):
    """Codec PowerSGD, which sends each matrix as a product of two thin ones. `rank`: number of columns of each."""

    rank: int
    name = "powersgd"
    exchanges = 2
    feeds_back = True
    needs_shapes = True
    only_mean = "what travels are factors of them, which mean nothing one by one"

    def find_shape_problem(self, shapes: Shapes) -> str | None:
        """Return in words why no matrix of these `shapes` becomes smaller at this rank; None if one does."""
        return find_rank_problem(shapes, rank=self.rank)

    def exchanged_bytes(
        self, parameters: int, buffers: int, *, workers: int, shapes: Callable[[], Shapes]
    ) -> list[tuple[int, int]]:
        """Return [(bytes sent, bytes received), (bytes sent, bytes received)] of one worker in the round's two exchanges: of the
        factors P with everything uncompressed, then of the factors Q.

        The sizes follow from `shapes` and `buffers`; `workers` and the number of `parameters` do not matter.
        """
        parts = build_layout(shapes(), rank=self.rank)
        first, second = 4 * (parts.p_elements + parts.whole_elements + buffers), 4 * parts.q_elements
        return [(first, first), (second, second)]

    def build_powersgd(self, shapes: Shapes, *, seed: int, feedback: bool) -> "PowerSGD":
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
    """Codec QSGD, which sends each element in `bits` bits. The elements of a bucket (of `bucket` elements) share a scale: their L2
    norm or largest magnitude, as `norm` says.
    """

    bits: int
    bucket: int
    norm: Literal["l2", "max"]
    name = "qsgd"

    @property
    def unit(self) -> int:
        """Size of a bucket in elements: a vector may be cut into parts only at the beginning of a bucket."""
        return self.bucket

    @property
    def feedback_problem(self) -> str:
        """Reason in words why errors that are fed back could grow, because the bound on QSGD's variance is too high; "" if they cannot."""
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
        """Return for each slice in `parts` the quantized bytes of that slice of `values`.

        `random`: generator for the stochastic rounding. Raises Refused if a value is not finite.
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
        """Return the bytes of header, scales and codes for `parameters` elements encoded as one part."""
        return qsgd_bytes(parameters, bits=self.bits, bucket=self.bucket)


# --- top k ------------------------------------------------------------------------------------------------------------
# The coordinates that are largest by magnitude, as (index, value) pairs: crossover/algorithms/compression.py.
#
# Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (2017). Of equal magnitudes the one that comes first is taken.


@dataclass(frozen=True)
class Largest(Codec):
    """Codec top-k, which sends only the elements of largest magnitude, as (index, value) pairs. `share`: fraction of the elements
    that is sent.
    """

    share: float
    name = "top_k"
    feeds_back = True
    sparse = True
    only_mean = "most of each is zero"

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """Return for each slice in `parts` the (index, value) pairs of those elements in it that are among the largest of all
        `values`, as bytes.

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
        """Decode `data`, (index, value) pairs, into `out`: the values at their indices, zeros elsewhere.

        Raises Corrupt, naming `what`, if they are invalid.
        """
        from crossover.algorithms import buffers, compression

        out.zero_()
        try:
            compression.add_to(out, buffers.octets(data))
        except ValueError as error:
            raise Corrupt(f"{what}: {error}") from error

    def nbytes(self, parameters: int) -> int:
        """Return the bytes of the (index, value) pairs that are sent of `parameters` elements."""
        return sparse_bytes(self.count(parameters))

    def count(self, parameters: int) -> int:
        """Return how many of `parameters` elements are sent: the fraction `share`, rounded up."""
        return min(parameters, ceil(self.share * parameters))


# --- codecs -----------------------------------------------------------------------------------------------------------
# The codecs that exchange.compression may name: every subclass above is found. None needs torch to be named.

CODECS: dict[str, type[Codec]] = {
    each.name: each
    for each in tuple(vars().values())
    if isinstance(each, type) and issubclass(each, Codec) and each is not Codec
}


def build_codec(exchange: Exchange) -> Codec:
    """Return the codec that `exchange.compression` names, built with its settings from `exchange`; for "none" it is an Uncompressed, which
    cannot encode.
    """
    codec = CODECS[exchange.compression]
    return codec(**{each.name: getattr(exchange, each.name) for each in fields(codec)})


def count_exchanges(exchange: Exchange) -> int:
    """Return how many exchanges a round has with this compression: 2 for PowerSGD, otherwise 1."""
    return CODECS[exchange.compression].exchanges


def has_error_feedback(exchange: Exchange) -> bool:
    """Return whether each round's compression error is added to the next gradient: `exchange.error_feedback` if it is set,
    otherwise the codec's default.
    """
    told = exchange.error_feedback
    return CODECS[exchange.compression].feeds_back if told is None else told
