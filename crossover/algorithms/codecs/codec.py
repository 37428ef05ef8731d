"""What a codec is: how a gradient's parameters are written as bytes, how many that are, and what it cannot be combined with.

Nothing here needs torch before the first gradient: projections and checks ask for sizes and refusals alone. What a worker keeps from round
to round stands in contributions.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from crossover.errors import Corrupt

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from crossover.algorithms.powersgd import PowerSGD

Shapes = Sequence[Sequence[int]]  # of a model's parameters, in the order in which they stand in its vector


@dataclass(frozen=True)
class Codec:
    """One way to write P float32 as bytes. Its fields are the settings of the YAML's section `exchange` that belong to it, by name."""

    name: ClassVar[str]  # as exchange.compression names it
    exchanges: ClassVar[int] = 1  # that a round has; one with two gives `factors` and `travels`, and no `encode`
    feeds_back: ClassVar[bool] = False  # whether errors are fed back unless the YAML says otherwise
    sparse: ClassVar[bool] = False  # whether most of what is decoded is zero, and the mean of a few such vectors too
    keeps_non_finite: ClassVar[bool] = False  # whether it writes what is not finite so that the reader sees it
    needs_shapes: ClassVar[bool] = False  # whether its bytes follow from the shapes of the model's parameters
    only_mean: ClassVar[str] = ""  # why robust rules cannot compare what workers send; none where they can

    @property
    def unit(self) -> int:
        """Parts that are encoded by themselves begin at multiples of so many elements."""
        return 1

    @property
    def grows(self) -> str:
        """Why errors that are fed back would grow from round to round; "" where less is left out than there was, whatever the gradient."""
        return ""

    def problem(self, shapes: Shapes) -> str | None:
        """Why a model with parameters of these shapes cannot be compressed so; None where it can."""
        return None

    def encode(
        self, values: "Tensor", *, random: "Generator", parts: Sequence[slice] = (slice(None),)
    ) -> "list[Tensor]":
        """(P,) float32 -> for each of `parts` its bytes, (nbytes,) uint8; decoded they give what the whole would give there. The same
        values and the same state of `random` give the same bytes. Raises Refused on values that are not finite and cannot be written.
        """
        raise NotImplementedError

    def decode(self, data: memoryview, *, out: "Tensor", what: str) -> None:
        """The bytes of `encode` into `out`, (P,) float32. Raises Corrupt, naming `what`, on bytes that are none, or of another length."""
        raise NotImplementedError

    def nbytes(self, parameters: int) -> int:
        """How many bytes `encode` makes of P parameters, as one part."""
        raise NotImplementedError

    def travels(
        self, parameters: int, buffers: int, *, workers: int, shapes: Callable[[], Shapes]
    ) -> list[tuple[int, int]]:
        """For each of a round's exchanges, the bytes of a worker's contribution and of the result that comes back (docs/exchange.md). Of
        sparse ones, the most that it can be: workers whose largest coordinates are the same ones send back less.
        """
        up, whole = self.nbytes(parameters) + 4 * buffers, 4 * (parameters + buffers)
        union = up + (workers - 1) * (self.nbytes(parameters) - self.nbytes(0))
        return [(up, min(whole, union) if self.sparse else whole)]

    def factors(self, shapes: Shapes, *, seed: int, feedback: bool) -> "PowerSGD":
        """What one worker has of a codec with two exchanges: the first contribution, the second, and the result."""
        raise NotImplementedError


class Uncompressed(Codec):
    """float32 as it is."""

    name = "none"
    keeps_non_finite = True

    def nbytes(self, parameters: int) -> int:
        return 4 * parameters


def expect(data: memoryview, nbytes: int, what: str) -> None:
    """Raises Corrupt, naming `what`, on bytes of another length."""
    if data.nbytes != nbytes:
        raise Corrupt(f"{what}: {data.nbytes} bytes where {nbytes} are expected")
