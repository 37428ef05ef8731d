"""A run ends before it passes its budget, however the epochs' costs are spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.reports import spending


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), st.floats(0.01, 5.0))
def test_an_epoch_starts_only_where_the_dearest_so_far_still_fits(epochs: list[float], limit: float) -> None:
    """However the costs of `epochs` are spread, a run starts an epoch only if its most expensive one so far would still fit the budget."""
    spent, dearest = 0.0, 0.0
    for cost in epochs:
        if spending.explain_no_further_epoch(limit, spent, dearest_usd=dearest):
            assert spent + dearest > limit
            return
        assert spent + dearest <= limit
        spent, dearest = spent + cost, max(dearest, cost)


def test_within_an_epoch_it_stops_at_the_limit() -> None:
    """BudgetReached is raised as soon as the cost equals the budget."""
    spending.check_budget(0.5, 0.49)
    with pytest.raises(spending.BudgetReached, match=r"stopped at \$0\.5000: lifetime\.budget_usd is 0\.5"):
        spending.check_budget(0.5, 0.5)


def test_no_room_for_another_epoch() -> None:
    """Another epoch is allowed if it exactly fills the budget, and refused with a reason if it would exceed it."""
    assert spending.explain_no_further_epoch(0.5, 0.25, dearest_usd=0.25) == ""
    assert "training until the next evaluation costs up to $0.3000" in spending.explain_no_further_epoch(
        0.5, 0.3, dearest_usd=0.3
    )
