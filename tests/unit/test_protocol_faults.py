"""The faults that the virtual world is to find: each stands in today's source exactly once, and a process imports what has it."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crossover.workflow.architecture import architectures
from tests.mutation import mutants, protocol
from tests.mutation.protocol import Edit, Fault

FAULTS = protocol.listed()


def test_each_fault_is_located_and_still_compiles() -> None:
    """The lines of every planted protocol fault exist, and the changed files compile."""
    assert [why for fault in FAULTS for why in protocol.missing(fault, protocol.ROOT)] == []
    for fault in FAULTS:
        for edit in fault.edits:
            text = (protocol.ROOT / edit.file).read_text("utf-8").replace(edit.old, edit.new)
            ast.parse(text)


def test_there_are_enough_of_both_kinds_and_each_says_what_is_lost() -> None:
    """There are at least 40 protocol faults, at least half drawn by the tool, each with what it loses and the architectures to run."""
    sources = Counter(fault.source for fault in FAULTS)
    assert len(FAULTS) >= 40 and 2 * sources["tool"] >= len(FAULTS) - sources["later"]
    assert {"commit f2c7785", "commit 92db4fc"} <= sources.keys()
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.loses and fault.runs and {*fault.runs} <= {*architectures()} for fault in FAULTS)
    assert len([f for f in FAULTS if f.source == "tool"]) + len(protocol.left_out()) == protocol.DRAWN
    assert all(each["reason"] for each in protocol.left_out())


def test_a_process_imports_the_fault() -> None:
    """A process in the folder of a planted fault imports the changed code."""
    fault = next(each for each in FAULTS if each.name == "barrier-without-attempt")
    # The world is of the copy too.
    asked = "import tests.chaos.world.trials; from crossover.stores.keys import Keys; print(Keys('r', 3).barrier)"
    with protocol.planted(fault) as folder:
        said = subprocess.run(
            [sys.executable, "-c", asked],
            cwd=folder,
            env=mutants.environment(folder),
            capture_output=True,
            text=True,
            check=True,
        )
    assert said.stdout.strip() == "r.round"


def test_a_fault_whose_place_is_gone_is_refused(tmp_path: Path) -> None:
    """Planting a fault whose text does not occur exactly once raises ValueError."""
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    fault = Fault("twice", "planted", "", ("spirt",), (Edit("a.py", "x = 1", "x = 2"),))
    with pytest.raises(ValueError, match=r"twice: a\.py: occurs 2 times"), protocol.planted(fault, tmp_path):
        pass
