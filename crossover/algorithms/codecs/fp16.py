"""Half precision. What was finite stays so; what was not must be seen by whoever receives it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crossover.algorithms.codecs.codec import Codec, expect

if TYPE_CHECKING:
    from torch import Generator, Tensor

_HALF_MAX = 65_504.0  # float16's largest number


class HalfPrecision(Codec):
    """float16."""

    name = "fp16"
    keeps_non_finite = True

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

        expect(data, self.nbytes(out.numel()), what)
        out.copy_(buffers.tensor(data, torch.float16))

    def nbytes(self, parameters: int) -> int:
        return 2 * parameters
