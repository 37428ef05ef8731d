"""How a gradient's parameters travel: as they are, in half precision, or quantized. Each way knows how many bytes it makes.

torch is imported by the first gradient: a projection, which asks for sizes alone, needs none.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Generator, Tensor

_HALF_MAX = 65_504.0  # float16's largest number


class Compression(Protocol):
    """One way to write P float32 as bytes."""

    @property
    def lossless(self) -> bool:
        """Whether the bytes are the numbers themselves: they can be sent from where they lie, and read where they arrive."""

    def encode(self, values: "Tensor", *, random: "Generator") -> "Tensor":
        """(P,) float32 -> (nbytes,) uint8. The same values and the same state of `random` give the same bytes."""

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """The bytes of `encode` into `out`, (P,) float32. Raises Corrupt, naming `what`, on bytes that are none."""

    def nbytes(self, parameters: int) -> int:
        """How many bytes `encode` makes of P parameters."""


class Uncompressed:
    """float32 as it is."""

    lossless = True

    def encode(self, values: "Tensor", *, random: "Generator") -> "Tensor":
        import torch

        return values.view(torch.uint8)

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        from crossover.algorithms import buffers

        out.copy_(buffers.tensor(data))

    def nbytes(self, parameters: int) -> int:
        return 4 * parameters


class HalfPrecision:
    """float16. What was finite stays so; what was not must be seen by whoever receives it."""

    lossless = False

    def encode(self, values: "Tensor", *, random: "Generator") -> "Tensor":
        import torch

        clamped = values.clamp(-_HALF_MAX, _HALF_MAX)
        return torch.where(values.isinf(), values, clamped).half().view(torch.uint8)

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        import torch

        from crossover.algorithms import buffers

        out.copy_(buffers.tensor(data, torch.float16))

    def nbytes(self, parameters: int) -> int:
        return 2 * parameters


@dataclass(frozen=True)
class Quantized:
    """QSGD: crossover/algorithms/qsgd.py."""

    bits: int
    bucket: int
    norm: Literal["l2", "max"]
    lossless = False

    def encode(self, values: "Tensor", *, random: "Generator") -> "Tensor":
        from crossover.algorithms import qsgd

        return qsgd.compress(values, bits=self.bits, bucket=self.bucket, norm=self.norm, generator=random)

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        import torch

        from crossover.algorithms import buffers, qsgd

        qsgd.decompress(buffers.tensor(data, torch.uint8), out=out, key=what)

    def nbytes(self, parameters: int) -> int:
        from crossover.algorithms import qsgd

        return qsgd.compressed_bytes(parameters, bits=self.bits, bucket=self.bucket)


def named(name: Literal["none", "fp16", "qsgd"], *, bits: int, bucket: int, norm: Literal["l2", "max"]) -> Compression:
    """The way that `p2p.compression` names; the rest is QSGD's."""
    match name:
        case "none":
            return Uncompressed()
        case "fp16":
            return HalfPrecision()
        case "qsgd":
            return Quantized(bits, bucket, norm)
