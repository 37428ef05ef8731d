"""The loss scale of a learner that computes in float16."""

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_SCALE, GROWTH_INTERVAL = (
    2.0**16,
    2_000,
)  # as torch.amp.GradScaler starts, and how many finite gradients double its scale


@dataclass
class LossScale:
    """Factor by which a float16 learner multiplies the loss, so that small gradients do not become 0. `finite`: number of finite
    gradients since the last change.

    It is halved and doubled like that of torch.amp.GradScaler. But a minibatch whose scaled gradient overflows is not skipped: it
    is computed again at half the scale, so that every worker takes part in every round. A checkpoint holds both fields.
    """

    scale: float = FIRST_SCALE
    finite: int = 0

    def halve(self) -> None:
        """Halve the scale and start to count finite gradients anew."""
        self.scale, self.finite = self.scale / 2, 0

    def count_finite(self) -> None:
        """Count a finite gradient; double the scale after 2,000 of them in a row."""
        self.finite += 1
        if self.finite >= GROWTH_INTERVAL:
            self.scale, self.finite = 2 * self.scale, 0

    def restore(self, saved: Sequence[float] = (FIRST_SCALE, 0)) -> None:
        """Set scale and count to `saved`, (scale, finite) of a checkpoint, or to their first values."""
        self.scale, self.finite = float(saved[0]), int(saved[1])
