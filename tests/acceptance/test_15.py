"""Wrong without a word: what strangers found with models, seeds, servers and faults of their own, a section for each kind of finding.

Each test here goes in by the door that the stranger took. What a finding's mend is made of has its tests where it lies.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.validation import load
from crossover.virtual.schedule import Fault
from crossover.virtual.trials import Trials, reduced
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

SEEN = {  # of the faults that it was blind to: a seed that finds each
    "dead-worker-not-removed": "49",
    "resumed-at-the-oldest-common-round": "6",
    "report-before-update": "0",
}


@pytest.mark.parametrize("name", SEEN)
def test_what_the_world_was_blind_to_is_found(name: str) -> None:
    fault = next(each for each in protocol.listed() if each.name == name)
    chaos = [str(Path(sys.executable).with_name("crossover")), "chaos", "{config}", "--first", "--processes", "1"]

    assert protocol.outcome(fault, [*chaos, "--seeds", SEEN[name]]).startswith("found")
    assert protocol.outcome(replace(fault, edits=()), [*chaos, "--seeds", SEEN[name]]) == "missed"


def test_a_worker_whose_twin_has_finished_goes_on_by_itself() -> None:
    faults = [
        Fault(kind="duplicate", role="train 1", request=1, side="after", seconds=0.209),
        Fault(kind="lose", role="train 1", request=129, side="after", silent=True),
    ]

    assert not Trials(reduced(load("config/scatter-reduce.yaml"))).under(faults, 930_035).findings


# --- benchmarks run; the tensor module keeps what the mission uses (6, 7) ---------------------------------------------

# --- a model is the model that was trained (8 to 12) ------------------------------------------------------------------

# --- a verdict is one (13 to 15) --------------------------------------------------------------------------------------
