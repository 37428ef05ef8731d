"""The plain CDK way: `cdk deploy` and `cdk destroy`, pointed at the local cloud, with SPIRT's own stacks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crossover import validation
from crossover.account.deployment.deploying import CDK
from crossover.local.cloud import LocalCloud

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stacks.synthesis import synthesize

    return synthesize(validation.load(ROOT / "config" / "spirt.yaml"), tmp_path_factory.mktemp("cdk") / "assembly")


@pytest.mark.slow
def test_deploy_and_destroy(cloud: LocalCloud, assembly: Path, tmp_path: Path) -> None:
    if not (shutil.which("redis-server") and shutil.which("rabbitmq-server")):
        pytest.skip("redis-server and rabbitmq-server are needed")
    npx = Path(sys.executable).with_name("npx")
    offline = {"npm_config_prefer_offline": "true"}
    environment = {**os.environ, **offline, **cloud.environment(), "PATH": f"{npx.parent}:{os.environ['PATH']}"}

    def cdk(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(npx), "--yes", CDK, *arguments, "--app", str(assembly), "--no-notices"]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )

    version = cdk("--version")
    if version.returncode:
        pytest.skip(f"{CDK} cannot be had here: {version.stderr[-200:]}")
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
    if not (shutil.which("redis-server") and shutil.which("rabbitmq-server")):
        pytest.skip("redis-server and rabbitmq-server are needed")
    cloud.deploy(assembly)
    assert len(cloud.servers.redis) == 4
    cloud.destroy()
    assert (cloud.stacks(), cloud.servers.redis, cloud.servers.brokers) == ([], {}, {})
