"""Faults that once gave a wrong result without a word: each can be planted again, and the test that it names finds it."""

import pytest

from tests.mutation import protocol, silent

FAULTS = silent.listed()


def test_each_silent_fault_can_be_planted() -> None:
    """The lines of every silent fault exist."""
    planted = [protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits) for fault in FAULTS]
    assert [why for fault in planted for why in protocol.missing(fault, protocol.ROOT)] == []


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_silent_fault_is_found(fault: silent.Fault) -> None:
    """The tests find the planted silent fault."""
    assert silent.outcome(fault) == "found"
