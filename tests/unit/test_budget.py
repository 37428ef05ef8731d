"""A run ends before it passes its budget, however the epochs' costs are spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.budget import BudgetReached, Guard


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), st.floats(0.01, 5.0))
def test_an_epoch_starts_only_where_the_dearest_so_far_still_fits(epochs: list[float], limit: float) -> None:
    guard, spent, dearest = Guard(limit), 0.0, 0.0
    for number, cost in enumerate(epochs):
        spent, dearest = spent + cost, max(dearest, cost)
        try:
            guard.epoch(spent, last=number == len(epochs) - 1)
        except BudgetReached:
            assert spent + dearest > limit * (1 - 1e-9)
            return
        assert spent < limit
    assert spent < limit


def test_within_an_epoch_it_stops_at_the_limit() -> None:
    guard = Guard(0.5)
    guard.between(0.49)
    with pytest.raises(BudgetReached, match=r"stopped at \$0\.5000: lifetime\.budget_usd is 0\.5"):
        guard.between(0.5)


def test_the_last_epoch_needs_no_room_for_another() -> None:
    guard = Guard(0.5)
    guard.epoch(0.25, last=False)
    guard.epoch(0.45, last=True)
    with pytest.raises(BudgetReached, match="one more epoch costs up to"):
        Guard(0.5).epoch(0.3, last=False)


def test_without_a_budget_nothing_is_stopped() -> None:
    Guard(None).epoch(1e9, last=False)
    Guard(None).between(1e9)
