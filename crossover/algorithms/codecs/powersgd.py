"""PowerSGD: crossover/algorithms/powersgd.py. Its two factors follow one another, in an exchange each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossover.algorithms.codecs.codec import Codec, Shapes

if TYPE_CHECKING:
    from crossover.algorithms.powersgd import PowerSGD


@dataclass(frozen=True)
class LowRank(Codec):
    """Matrices as products of two of this `rank`."""

    rank: int
    name = "powersgd"
    exchanges = 2
    feeds_back = True
    needs_shapes = True
    only_mean = "what travels are factors of them, which mean nothing one by one"

    def problem(self, shapes: Shapes) -> str | None:
        from crossover.algorithms import powersgd

        return powersgd.problem(shapes, rank=self.rank)

    def travels(
        self, parameters: int, buffers: int, *, workers: int, shapes: Callable[[], Shapes]
    ) -> list[tuple[int, int]]:
        from crossover.algorithms.powersgd import layout

        parts = layout(shapes(), rank=self.rank)
        first, second = 4 * (parts.p_elements + parts.whole_elements + buffers), 4 * parts.q_elements
        return [(first, first), (second, second)]

    def factors(self, shapes: Shapes, *, seed: int, feedback: bool) -> "PowerSGD":
        import torch

        from crossover.algorithms.powersgd import PowerSGD

        return PowerSGD(shapes, rank=self.rank, seed=seed, feedback=feedback, dtype=torch.float32)
