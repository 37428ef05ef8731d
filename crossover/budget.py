"""`lifetime.budget_usd`: a run ends before it passes it, judged after every epoch and every few seconds between.

The dollars are those of config/pricing.yaml on what the run has recorded so far; AWS's own figures come hours later.
"""

import math
from dataclasses import dataclass

from crossover.errors import UserError


class BudgetReached(UserError):
    """The run was stopped; what it had computed so far is kept."""


@dataclass
class Guard:
    """`limit_usd` None: nothing is ever stopped."""

    limit_usd: float | None
    _after_last_epoch: float = 0.0
    _dearest_epoch: float = 0.0

    @property
    def _limit(self) -> float:
        return math.inf if self.limit_usd is None else self.limit_usd

    def between(self, usd: float) -> None:
        """`usd` so far, within an epoch. Raises BudgetReached."""
        if usd >= self._limit:
            raise BudgetReached(
                f"stopped at ${usd:.4f}: lifetime.budget_usd is {self.limit_usd:g}; "
                "a larger one, fewer training.epochs or smaller instances let the run go on"
            )

    def epoch(self, usd: float, *, last: bool) -> None:
        """`usd` at the end of an epoch. Raises BudgetReached where one more of the dearest seen would pass the limit."""
        self._dearest_epoch = max(self._dearest_epoch, usd - self._after_last_epoch)
        self._after_last_epoch = usd
        if not last and usd + self._dearest_epoch > self._limit:
            raise BudgetReached(
                f"stopped at ${usd:.4f}: one more epoch costs up to ${self._dearest_epoch:.4f}, and lifetime.budget_usd is "
                f"{self.limit_usd:g}"
            )
        self.between(usd)
