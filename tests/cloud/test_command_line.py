"""deploy, run --on aws, status, destroy --verify: the real CDK command line and AWS's APIs alone, against the cloud on one machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cdk.packaging import ROOT
from crossover.architecture import architectures
from crossover.local.cloud import LocalCloud
from tests.cloud.listings import snapshot

pytestmark = pytest.mark.slow
EVERY = architectures()

# One with a fleet and machines; SPIRT's whole life is in test_interruptions. `make test-every-call` takes all of them, a minute each.
DEPLOYABLE = EVERY if os.environ.get("CROSSOVER_EVERY_CALL") else ["p2p_serverless"]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    with LocalCloud(tmp_path / "cloud", cores=2) as running:
        yield running


@pytest.fixture(params=DEPLOYABLE)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(request.param, tmp_path)


def written(architecture: str, folder: Path, **more: object) -> Path:
    fields = {
        "name": f"tiny-{architecture.replace('_', '-')}",
        "architecture": architecture,
        "workers": 2,
        "training": {"model": "small_cnn", "epochs": 1, "batch_size": 20},
        "data": {"dataset": "digits", "limit": 60, "validation": 0.05},
        **({"gpu": {"instances": 2, "gpus_per_instance": 1}} if architecture == "gpu" else {}),
        **more,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def crossover(cloud: LocalCloud, *arguments: str, fails: bool = False) -> str:
    """What the command said on both outputs."""
    environment = {**os.environ, **cloud.environment(), "CROSSOVER_WITHOUT_LAYERS": "1"}
    command = [sys.executable, "-c", "from crossover.cli.main import main; main()", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    said = ended.stdout + ended.stderr
    assert bool(ended.returncode) is fails, said[-4_000:]
    return said


def test_an_experiment_comes_runs_and_goes(config: Path, cloud: LocalCloud, tmp_path: Path) -> None:
    before = snapshot(cloud.session())
    assert "deployed in" in crossover(cloud, "deploy", str(config), "--yes")
    assert "alive: " in crossover(cloud, "status", str(config))
    out = tmp_path / "results"
    crossover(cloud, "run", str(config), "--on", "aws", "--out", str(out))
    result = json.loads((out / "result.json").read_text())
    assert result["label"] == "measured-local" and len(result["epochs"]) == 1  # seconds of this machine, not AWS's
    said = crossover(cloud, "destroy", str(config), "--yes", "--shared", "--verify")
    assert "nothing is left" in said
    assert snapshot(cloud.session()) == before
