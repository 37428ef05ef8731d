"""What `crossover destroy` takes away, without AWS; tests/cloud deletes real stacks of the cloud on one machine."""

from typing import Any

import pytest

from crossover.account.removal import destroying
from crossover.experiment import Experiment, Gpu


@pytest.mark.parametrize(("baseline", "expected"), [("none", ["c-e"]), ("gpu", ["c-e", "c-e-gpu"])])
def test_the_fleet_of_a_baseline_goes_with_its_experiment(
    baseline: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment first: its stack depends on the fleet's."""
    deleted: list[str] = []
    monkeypatch.setattr(destroying, "_delete", lambda session, project, name: deleted.append(f"{project}-{name}"))
    experiment = Experiment(project="c", name="e", architecture="spirt", baseline=baseline, gpu=Gpu(instances=4))
    destroying.delete_experiment(None, experiment)
    assert deleted == expected
