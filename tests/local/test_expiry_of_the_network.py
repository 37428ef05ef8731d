"""The network's expiry machine cleans up after every experiment, whoever else destroys one of them."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crossover import validation
from crossover.local.cloud import LocalCloud
from crossover.running import deploying
from stacks.synthesis import synthesize
from tests.infrastructure.conftest import NOW
from tests.infrastructure.expiring import filled_in
from tests.moto_patches import AccountCloud

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cloud(account_cloud: AccountCloud) -> AccountCloud:
    """Return the double of an AWS account under the name that this module's tests use."""
    return account_cloud


def gpu(name: str, owner: str, folder: Path, *, now: datetime = NOW) -> Path:
    """Synthesize an experiment on GPUs whose fleet is empty, and return its assembly. Nothing of it holds the network but what its stack
    imports.
    """
    experiment = validation.load(ROOT / "config" / "gpu.yaml", [f"name={name}", f"owner={owner}"])
    return synthesize(experiment, folder / name, now=now)


@pytest.mark.slow
def test_destroying_one_experiment_by_plain_cdk_leaves_the_clean_up_of_another(
    cloud: LocalCloud, tmp_path: Path
) -> None:
    """Destroy one of two experiments by the CDK, which fails at the shared network: the clean-up machine of the network is unchanged, and
    deletes the other experiment, then the network.
    """
    soon = datetime.now(UTC) - timedelta(hours=7, minutes=50)  # its eight hours are over in ten minutes
    for name in ("a", "b"):
        cloud.deploy(gpu(name, "ada@example.org", tmp_path, now=soon))
    command = [*deploying.cdk_command(), "destroy", "--all", "--force", "--app", str(tmp_path / "a")]
    environment = {**os.environ, **cloud.environment()}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert ended.returncode != 0 and "crossover-network" in ended.stdout + ended.stderr
    assert cloud.stacks() == ["crossover-network", "crossover-b"]
    states = cloud.session().client("stepfunctions")
    (machine,) = states.list_state_machines()["stateMachines"]
    deployed = states.describe_state_machine(stateMachineArn=machine["stateMachineArn"])["definition"]
    assert json.loads(deployed) == json.loads(filled_in())
    now = (datetime.now(UTC) + timedelta(minutes=20)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for left in (["crossover-network"], []):  # one look takes the experiment, the next one the network
        started = states.start_execution(stateMachineArn=machine["stateMachineArn"], input=json.dumps({"now": now}))
        _wait(cloud, started["executionArn"], until=left)
    assert cloud.stacks() == []


def _wait(cloud: LocalCloud, execution: str, *, until: list[str]) -> None:
    """Wait until the cloud's stacks are exactly these. Fails after two minutes, with the execution's state."""
    from crossover.runtime import Pauses

    pause = Pauses(0.05, within_s=120)
    while cloud.stacks() != until:
        assert pause(), (
            cloud.stacks(),
            cloud.session().client("stepfunctions").describe_execution(executionArn=execution),
        )
