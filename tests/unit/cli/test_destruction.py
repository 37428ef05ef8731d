"""What `crossover destroy` takes away, without AWS; tests/cloud deletes real stacks of the cloud on one machine."""

from pathlib import Path
from typing import Any

import pytest

from crossover.cli import destruction
from crossover.cli.aws import ownership, sweeping
from crossover.cli.aws.ownership import Owner
from crossover.experiment import Experiment, Gpu


@pytest.mark.parametrize(("baseline", "expected"), [("none", ["c-e"]), ("gpu", ["c-e", "c-e-gpu"])])
def test_the_fleet_of_a_baseline_goes_with_its_experiment(
    baseline: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment first: its stack depends on the fleet's."""
    deleted: list[str] = []
    swept: list[str] = []
    monkeypatch.setattr(ownership, "of", lambda session, project, name: Owner(project, name))
    monkeypatch.setattr(sweeping, "wait_for_stack", lambda session, name: "CREATE_COMPLETE")
    monkeypatch.setattr(sweeping, "stop_running", lambda session, owner, tell: None)
    monkeypatch.setattr(
        destruction, "_delete_stack", lambda session, config, experiment, name, owner, ask: deleted.append(name)
    )
    monkeypatch.setattr(destruction, "_remove_orphans", lambda session, owner: swept.append(owner.stack))
    experiment = Experiment(project="c", name="e", architecture="spirt", baseline=baseline, gpu=Gpu(instances=4))
    destruction.delete_experiment(None, Path("e.yaml"), experiment, ask=False)
    assert deleted == swept == expected
