"""`lifetime.budget_usd`: a run ends before it passes it. Each epoch's decision judges that, whoever follows the run; a command that does
looks every few seconds between.

The dollars are those of config/pricing.yaml on what the run has recorded so far; AWS's own figures come hours later.
"""

from crossover.errors import UserError


class BudgetReached(UserError):
    """The run was stopped, or ended itself; what it had computed so far is kept."""


def no_room(limit_usd: float, usd: float, *, dearest_usd: float) -> str:
    """`usd` at the end of an epoch: why no further one may begin, because the dearest so far would pass the limit; empty where it may."""
    if usd + dearest_usd <= limit_usd:
        return ""
    return (
        f"stopped at ${usd:.4f}: training until the next evaluation costs up to ${dearest_usd:.4f}, and lifetime.budget_usd is "
        f"{limit_usd:g}; a larger one, fewer training.epochs or smaller instances let the run go on"
    )


def check(limit_usd: float, usd: float) -> None:
    """`usd` so far, within an epoch. Raises BudgetReached."""
    if usd >= limit_usd:
        raise BudgetReached(
            f"stopped at ${usd:.4f}: lifetime.budget_usd is {limit_usd:g}; "
            "a larger one, fewer training.epochs or smaller instances let the run go on"
        )
