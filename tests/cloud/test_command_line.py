"""deploy, run --on aws, status, destroy --verify: the real CDK command line and AWS's APIs alone, against the cloud on one machine."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from cdk.packaging import ROOT
from crossover.local.cloud import LocalCloud
from crossover.workflow.architecture import architectures
from tests.cloud import made
from tests.cloud.conftest import written
from tests.cloud.listings import snapshot
from tests.sampling import WHOLE

pytestmark = pytest.mark.slow
EVERY = architectures()

# One with a fleet and machines; SPIRT's whole life is in test_interruptions. `make test-every-call` takes all of them, a minute each.
DEPLOYABLE = EVERY if WHOLE else ["p2p_serverless"]


def crossover(cloud: LocalCloud, *arguments: str, fails: bool = False) -> str:
    """Run a `crossover` command against the cloud and return what it wrote on both outputs. `fails`: whether it must fail,
    or else succeed.
    """
    environment = {**os.environ, **cloud.environment(), "CROSSOVER_WITHOUT_LAYERS": "1"}
    command = [sys.executable, "-c", "from crossover.cli.main import main; main()", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    said = ended.stdout + ended.stderr
    assert bool(ended.returncode) is fails, said[-4_000:]
    return said


def test_two_experiments_from_one_file_stand_side_by_side(cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that --set gives one file two experiments, which come and go alone, and that the next command can be copied from an answer."""
    config = written(tmp_path, "all_reduce", storage={"channel": "s3"})
    before = snapshot(cloud.session())
    one, two = ["--set", "name=one"], ["--set", "name=two", "--set", "owner=Ada L."]
    for each in (one, two):
        said = crossover(cloud, "deploy", str(config), *each, "--yes")
        assert f"crossover run {shlex.join([str(config), *each])} --on aws" in said
    owners = made.stack_tags(cloud.session(), "crossover-two")
    assert owners["owner"] == "Ada L."
    out = tmp_path / "results"
    crossover(cloud, "run", str(config), *two, "--on", "aws", "--out", str(out))
    assert json.loads((out / "result.json").read_text())["experiment"]["name"] == "two"
    assert "crossover-two: nothing is left" in crossover(cloud, "destroy", str(config), *two, "--yes", "--verify")
    assert "not deployed" in crossover(cloud, "status", str(config), *two)
    assert "CREATE_COMPLETE" in crossover(cloud, "status", str(config), *one)
    crossover(cloud, "destroy", str(config), *one, "--yes", "--verify")
    assert snapshot(cloud.session()) == before


@pytest.mark.parametrize("architecture", DEPLOYABLE)
def test_an_experiment_comes_runs_and_goes(architecture: str, cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that deploy, status, run and destroy work on an experiment of the architecture, and leave nothing."""
    config = written(tmp_path, architecture)
    before = snapshot(cloud.session())
    assert "deployed in" in crossover(cloud, "deploy", str(config), "--yes")
    assert "running: " in crossover(cloud, "status", str(config))
    answer, _ = json.JSONDecoder().raw_decode(crossover(cloud, "status", str(config), "--json"))
    form = json.loads(crossover(cloud, "schema", "status"))
    jsonschema.validate(answer, form, jsonschema.Draft202012Validator)
    assert answer["stacks"][-1]["state"] == "CREATE_COMPLETE" and any(each["ours"] for each in answer["resources"])
    out = tmp_path / "results"
    crossover(cloud, "run", str(config), "--on", "aws", "--out", str(out))
    result = json.loads((out / "result.json").read_text())
    assert result["label"] == "measured-local" and len(result["epochs"]) == 1  # seconds of this machine, not AWS's
    said = crossover(cloud, "destroy", str(config), "--yes", "--shared", "--verify")
    assert "nothing is left" in said
    assert snapshot(cloud.session()) == before
