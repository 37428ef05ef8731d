"""What `make test-aws` does, against the cloud on one machine: everything of it but the account. Minutes: `make test-every-call` alone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crossover.local.cloud import LocalCloud
from tests.aws import unproven
from tests.cloud.listings import snapshot

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.deep


def start(cloud: LocalCloud, out: Path) -> subprocess.Popen[str]:
    """Start the AWS suite against the local cloud in a session of its own and return the process, with its output on a pipe. `out`:
    folder for the suite's results.
    """
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "--noconftest",
            "-p",
            "no:cacheprovider",
            "-s",
            "-rs",
            "tests/aws/test_account.py",
        ],
        cwd=ROOT,
        env={
            **os.environ,
            **cloud.environment(),
            "CROSSOVER_TEST_AWS": "on --most-usd 2",
            "CROSSOVER_TEST_AWS_OUT": str(out),
            "CROSSOVER_WITHOUT_LAYERS": "1",
            "PYTHONUNBUFFERED": "1",
        },
        start_new_session=True,  # a terminal's Ctrl-C reaches pytest and the driver
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_it_looks_at_everything_and_leaves_nothing(cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that the AWS suite gives a verdict on every fact against the local cloud, refutes none and leaves no resource."""
    before = snapshot(cloud.session())
    running = start(cloud, tmp_path / "out")
    said, _ = running.communicate()
    assert running.returncode == 0, said[-4_000:]
    written = json.loads((tmp_path / "out" / "verified-aws.json").read_text())
    verdicts = {fact["id"]: fact["verdict"] for fact in written["facts"]}
    assert list(verdicts) == list(unproven.read())
    assert {fact["label"] for fact in written["facts"]} == {"measured-local"}  # a stand-in proves nothing about AWS
    assert [id for id, verdict in verdicts.items() if verdict == "refuted"] == []
    for id in ("reports-joined", "cold-import", "experiment-goes-quickly"):
        assert verdicts[id] == "proven", id
    assert written["records"] == "metrics.jsonl" and (tmp_path / "out" / "metrics.jsonl").exists()
    assert snapshot(cloud.session()) == before


# The smallest run, a shared stack that is being made.
@pytest.mark.parametrize("at", ["epoch 1/1", "crossover-verify-broker: creating"])
def test_ctrl_c_destroys_what_was_deployed(at: str, cloud: LocalCloud, tmp_path: Path) -> None:
    """Check that the AWS suite destroys what it deployed when it is interrupted."""
    before = snapshot(cloud.session())
    running = start(cloud, tmp_path / "out")
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        if at in line:
            os.killpg(running.pid, signal.SIGINT)
            break
    else:
        pytest.fail(said[-4_000:])
    rest, _ = running.communicate()
    assert running.returncode == 130 and "nothing is left" in rest, rest[-4_000:]
    assert json.loads((tmp_path / "out" / "verified-aws.json").read_text())["failure"] == "KeyboardInterrupt"
    assert snapshot(cloud.session()) == before
