"""QSGD: crossover/algorithms/qsgd.py. A part ends where a bucket does, so that no bucket has two scales."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from crossover.algorithms.codecs.codec import Codec

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Quantized(Codec):
    """Levels of so many `bits`, in buckets that share a scale by their `norm`."""

    bits: int
    bucket: int
    norm: Literal["l2", "max"]
    name = "qsgd"

    @property
    def unit(self) -> int:
        return self.bucket

    @property
    def grows(self) -> str:
        levels = (1 << (self.bits - 1)) - 1  # by the bounds of the variance in algorithms/qsgd.py
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
