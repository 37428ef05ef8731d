"""Two architectures beside one another: whichever goes first, network and broker go on working for the other."""

from pathlib import Path
from typing import Any

import pytest

from crossover import validation
from crossover.errors import UserError
from crossover.local.cloud import LocalCloud
from crossover.running import deployed, removal
from stacks.synthesis import synthesize
from tests.cloud import made
from tests.cloud.conftest import written

pytestmark = pytest.mark.slow

SHARED = ["crossover-network", "crossover-broker"]
SPIRT, MLLESS = "crossover-tiny-spirt", "crossover-tiny-mlless"


def shared(session: Any) -> dict[str, str]:
    """Return the physical id of every resource of the shared stacks, by "stack logical-id"."""
    client = session.client("cloudformation")
    return {
        f"{name} {each['LogicalResourceId']}": each["PhysicalResourceId"]
        for name in SHARED
        for each in client.list_stack_resources(StackName=name)["StackResourceSummaries"]
    }


def test_two_architectures_come_and_go_in_either_order(cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that two experiments share a network and a broker, which stay unchanged while either goes and comes back."""
    session = cloud.session()
    experiments, assemblies = {}, {}
    for architecture, stack in (("spirt", SPIRT), ("mlless", MLLESS)):
        folder = tmp_path / architecture
        folder.mkdir()
        experiments[stack] = validation.load(written(folder, architecture))
        assemblies[stack] = synthesize(experiments[stack], folder / "assembly")
        cloud.deploy(assemblies[stack])
    network, brokers = shared(session), list(cloud.servers.brokers)
    assert made.stacks(cloud) == {*SHARED, SPIRT, MLLESS} and len(brokers) == 1

    for gone, left in ((SPIRT, MLLESS), (MLLESS, SPIRT)):
        cloud.destroy(gone)
        assert made.stacks(cloud) == {*SHARED, left}
        assert (shared(session), list(cloud.servers.brokers)) == (network, brokers)
        with pytest.raises(UserError, match=rf"--shared: {left} still exist and need network and broker"):
            removal.delete_shared(session, experiments[gone])
        out = tmp_path / "out" / left
        found = deployed.run_deployed(experiments[left], out, lambda progress: None, session=session, where="local")
        assert (found.result["outcome"], len(found.result["epochs"])) == ("finished", 1)
        cloud.deploy(assemblies[gone])  # it comes back beside the other
        assert (shared(session), list(cloud.servers.brokers)) == (network, brokers)
