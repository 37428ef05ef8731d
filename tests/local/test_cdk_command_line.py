"""The plain CDK way: `cdk deploy` and `cdk destroy`, pointed at the local cloud, with SPIRT's own stacks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from crossover import validation
from crossover.errors import MissingTool
from crossover.local.cloud import LocalCloud
from crossover.running import deploying

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the synthesized assembly of config/spirt.yaml."""
    from stacks.synthesis import synthesize

    return synthesize(validation.load(ROOT / "config" / "spirt.yaml"), tmp_path_factory.mktemp("cdk") / "assembly")


@pytest.mark.slow
def test_deploy_and_destroy(cloud: LocalCloud, assembly: Path, tmp_path: Path) -> None:
    """Deploy and destroy SPIRT's stacks on the local cloud by the CDK's command line: servers and state machines exist in between, and
    nothing afterwards. Skips if a program is missing.
    """
    if not (shutil.which("redis-server") and shutil.which("rabbitmq-server")):
        pytest.skip("redis-server and rabbitmq-server are needed")
    try:
        program = deploying.cdk_command()
    except MissingTool as missing:
        pytest.skip(str(missing))
    environment = {**os.environ, **cloud.environment()}

    def cdk(*arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the CDK's command line on the assembly and return the result, whatever its exit status."""
        command = [*program, *arguments, "--app", str(assembly), "--no-notices"]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )

    done = cdk("deploy", "--all", "--method=direct", "--require-approval", "never")
    assert done.returncode == 0, done.stderr
    assert set(cloud.stacks()) == {"crossover-network", "crossover-broker", "crossover-spirt"}
    assert len(cloud.servers.redis) == 4
    assert list(cloud.servers.brokers) == ["crossover-broker"]
    machines = cloud.session().client("stepfunctions").list_state_machines()["stateMachines"]
    assert "crossover-spirt-run" in [each["name"] for each in machines]

    done = cdk("destroy", "--all", "--force")
    assert done.returncode == 0, done.stderr
    assert cloud.stacks() == []
    assert not cloud.servers.redis
    assert not cloud.servers.brokers


@pytest.mark.slow
def test_the_real_stacks_come_and_go(cloud: LocalCloud, assembly: Path) -> None:
    """Deploy and destroy SPIRT's stacks by the local cloud itself: four databases run in between, and nothing afterwards. Skips if a
    program is missing.
    """
    if not (shutil.which("redis-server") and shutil.which("rabbitmq-server")):
        pytest.skip("redis-server and rabbitmq-server are needed")
    cloud.deploy(assembly)
    assert len(cloud.servers.redis) == 4
    cloud.destroy()
    assert (cloud.stacks(), cloud.servers.redis, cloud.servers.brokers) == ([], {}, {})
