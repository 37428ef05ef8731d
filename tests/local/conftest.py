from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover.local.cloud import LocalCloud


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A cloud without stacks; one per module, because there is one per process."""
    workspace: Path = tmp_path_factory.mktemp("cloud")
    with LocalCloud(workspace, cores=2) as running:
        running.session().client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")  # parts.ROLE
        yield running
