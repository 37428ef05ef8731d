"""What a rule that combines the workers' vectors is, wherever it is computed. Nothing here needs torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`combine(vectors, samples, settings)`: one (D,) float32 of the workers' (D,), which are known to be finite."""

    name: str  # as aggregation.rule names it
    combine: Callable[["Sequence[Tensor]", Sequence[int], Aggregation], "Tensor"]
    bears: Callable[
        [Aggregation, int], int
    ]  # of so many workers, how many may be faulty before the result means nothing
    by_coordinate: bool = True  # whether a part of the result follows from that part of the vectors alone
    # The tensor database's command TENSOR.<command>, and its own options. None: vectors are combined by functions.
    command: str | None = None
    options: Callable[[Aggregation], Sequence[str | int | float]] = lambda settings: ()
