"""The loss scale of a learner that computes in float16."""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_SCALE, GROWTH_INTERVAL = (
    2.0**16,
    2_000,
)  # as torch.amp.GradScaler starts, and how many finite gradients double its scale


@dataclass
class LossScale:
    """Factor on the loss in float16, so that the smallest gradients do not vanish. `finite`: gradients in a row that were finite.

    It halves and doubles as torch.amp.GradScaler's. A minibatch whose scaled gradient overflows is not skipped: it is computed again at
    half the scale, so that every worker takes part in every round. A checkpoint holds both fields.
    """

    scale: float = FIRST_SCALE
    finite: int = 0

    def halve(self) -> None:
        """Halve the scale and start to count finite gradients anew."""
        self.scale, self.finite = self.scale / 2, 0

    def count_finite(self) -> None:
        """Count a finite gradient; double the scale after GROWTH_INTERVAL of them in a row."""
        self.finite += 1
        if self.finite >= GROWTH_INTERVAL:
            self.scale, self.finite = 2 * self.scale, 0

    def restore(self, saved: Sequence[float] = (FIRST_SCALE, 0)) -> None:
        """Set scale and count to those of a checkpoint, or to the first ones."""
        self.scale, self.finite = float(saved[0]), int(saved[1])
