"""What an optimizer is, wherever its steps are computed. Nothing here needs torch: functions that have the database compute ask it, too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from crossover.algorithms.update import Update

if TYPE_CHECKING:
    from torch import Tensor

Move = Callable[["Tensor", "Tensor", Sequence["Tensor"], Update, "Tensor"], Sequence["Tensor"]]


def decayed(gradient: "Tensor", parameters: "Tensor", update: Update) -> "Tensor":
    """The gradient of the loss and of the decay's own term; itself where nothing decays."""
    parts = update.decaying(gradient.numel())
    found = gradient.clone() if parts else gradient
    for part in parts:
        found[part].add_(parameters[part], alpha=update.weight_decay)
    return found


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """`move(parameters, gradient, vectors, update, out)`: writes the moved parameters to `out` and returns the new vectors; all are (P,)
    float32, and nothing else is changed. `vectors` are those of the step before, none at the first.
    """

    name: str  # as training.optimizer names it
    vectors: Callable[[float], tuple[str, ...]]  # what it keeps between steps, by training.momentum
    kind: Literal["velocity", "moment"] = "moment"  # of these vectors
    move: Move
    # The tensor database's command TENSOR.<command>, how many vectors it takes, and its own options. None: steps are computed by functions.
    command: str | None = None
    places: int = 0
    options: Callable[[Update], Sequence[str | int | float]] = lambda update: ()
