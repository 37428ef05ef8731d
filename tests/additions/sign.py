"""Signs and one scale (Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"): all that a codec needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossover.algorithms.codecs import Codec, check_length
from crossover.errors import Corrupt, Refused

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class Sign(Codec):
    """Codec that sends the mean magnitude as float32, then one bit per element."""

    name = "sign"
    feeds_back = True

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        import torch

        scale = values.double().abs().mean().float()
        if not bool(scale.isfinite()):
            raise Refused("sign: the gradient has values that are not finite")
        weights = 2 ** torch.arange(8, dtype=torch.uint8)
        bodies = []
        for part in parts:
            positive = torch.zeros(-(-values[part].numel() // 8), 8, dtype=torch.uint8)
            positive.view(-1)[: values[part].numel()] = values[part] >= 0
            packed = (positive * weights).sum(dim=1, dtype=torch.uint8)
            bodies.append(torch.cat([scale.view(1).view(torch.uint8), packed]))
        return bodies

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        import torch

        from crossover.algorithms import buffers

        check_length(data, self.nbytes(out.numel()), what)
        scale = buffers.tensor(bytes(data[:4]))
        if not bool(scale.isfinite()):
            raise Corrupt(f"{what}: a scale that is not finite")
        bits = buffers.tensor(data[4:], torch.uint8).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)
        out.copy_((bits & 1).view(-1)[: out.numel()]).mul_(2).sub_(1).mul_(scale)

    def nbytes(self, parameters: int) -> int:
        return 4 + -(-parameters // 8)
