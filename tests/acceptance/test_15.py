"""Wrong without a word: what strangers found with models, seeds, servers and faults of their own, a section for each kind of finding.

Each test here goes in by the door that the stranger took. What a finding's mend is made of has its tests where it lies.
"""

import pytest

from tests.mutation import protocol, silent

FAULTS = silent.listed()


# --- faults planted again: the old behaviours, each found by the test that it names -----------------------------------


def test_each_silent_fault_can_be_planted() -> None:
    planted = [protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits) for fault in FAULTS]
    assert [why for fault in planted for why in protocol.missing(fault, protocol.ROOT)] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_silent_fault_is_found(fault: silent.Fault) -> None:
    assert silent.outcome(fault) == "found"


# --- the cloud on this machine asks who is there (1) ------------------------------------------------------------------

# --- damage: a byte, a kill, a full disk (2, 3) -----------------------------------------------------------------------

# --- waits, space, decoders, certificates (4) -------------------------------------------------------------------------

# --- what the virtual world sees (5) ----------------------------------------------------------------------------------

# --- benchmarks run; the tensor module keeps what the mission uses (6, 7) ---------------------------------------------

# --- a model is the model that was trained (8 to 12) ------------------------------------------------------------------

# --- a verdict is one (13 to 15) --------------------------------------------------------------------------------------
