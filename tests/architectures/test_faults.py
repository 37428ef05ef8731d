"""A process that is killed is replaced without a trace: one real case of every architecture. tests/chaos kills at every other moment.

A clean run gives the bits that the disturbed run must end with (docs/correctness.md, 1).
"""

import pytest

from tests.architectures.fleet import Fleet, only
from tests.architectures.harness import (
    FailAt,
    Job,
    Killed,
    claiming,
    count_changes,
    every_step,
    small,
    tree_architectures,
)
from tests.architectures.lives import restarting
from tests.architectures.trained import trained


@pytest.mark.parametrize("architecture", claiming("survives_kills"))
def test_a_process_that_is_killed_is_replaced_without_a_trace(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a run ends with the same bits if a process is killed after half of its changes, before it knows of the last one."""
    undisturbed, job = trained(small(architecture)), Job(small(architecture))
    death = FailAt(count_changes(undisturbed.calls) // 2, "after", Killed, changes=True)
    if architecture in tree_architectures():
        job.clients.hook = death
        with every_step(monkeypatch, restarting):
            assert job.run() == undisturbed.model
    else:
        fleet = Fleet(job, hooks=only(0, death))
        assert fleet.run(monkeypatch) == undisturbed.model
        assert fleet.left_behind() == []
    assert death.failed
    assert job.tensor_keys() == []
