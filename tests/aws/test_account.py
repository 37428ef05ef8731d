"""What an AWS account shows of each line of docs/aws.md that is unproven: `make test-aws`, which destroys what it deployed.

tests/conftest.py keeps it from being collected and replaces the person's AWS settings; `make test-aws` alone leaves that file out.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.aws import unproven

ROOT = Path(__file__).parents[2]
ASKED = os.environ.get("CROSSOVER_TEST_AWS", "")  # "on", and the driver's options behind it
OUT = Path(os.environ.get("CROSSOVER_TEST_AWS_OUT") or ROOT / "results" / "test-aws")
pytestmark = pytest.mark.skipif(not ASKED, reason="it costs dollars on an AWS account: make test-aws")


@dataclass(frozen=True)
class Walked:
    """The result of the verification: its exit status, and what it showed of each line of the list, by id."""

    status: int
    facts: dict[str, dict[str, Any]]


def walk_through_account(options: Sequence[str]) -> int:
    """Run the driver and return its exit status, however often Ctrl-C comes: it comes to the driver too, which then destroys.

    A process of its own, because pytest makes errors of warnings, and none may end a walk that costs dollars.
    """
    command = [sys.executable, "-m", "tests.aws", *options, "--out", str(OUT)]
    before = signal.signal(
        signal.SIGINT, lambda number, frame: None
    )  # a handler, which the new process does not inherit
    try:
        with subprocess.Popen(command, cwd=ROOT) as driver:
            ended = signal.signal(signal.SIGTERM, lambda number, frame: driver.terminate())
            try:
                return driver.wait()
            finally:
                signal.signal(signal.SIGTERM, ended)
    finally:
        signal.signal(signal.SIGINT, before)


def written(path: Path) -> bytes:
    """Return a file's content; empty if it does not exist."""
    return path.read_bytes() if path.exists() else b""


@pytest.fixture(scope="module")
def walked() -> Walked:
    """Deploy, train, look and destroy once, for all tests of this file."""
    path = OUT / "verified-aws.json"
    earlier = written(path)
    status = walk_through_account(shlex.split(ASKED)[1:])
    if status == 130:
        pytest.exit("stopped by Ctrl-C; what was deployed is destroyed", returncode=130)
    found = written(path)
    facts = json.loads(found)["facts"] if found != earlier else []  # an earlier walk's show nothing of this one
    return Walked(status, {fact["id"]: fact for fact in facts})


def test_every_step_ends_well_and_nothing_is_left(walked: Walked) -> None:
    """Check that the verification of the account ended with status 0."""
    assert walked.status == 0


@pytest.mark.parametrize("id", list(unproven.read()))
def test_the_account_shows(id: str, walked: Walked) -> None:
    """Check that the verification has proven one unproven fact. Skips a fact that was not covered."""
    if id not in walked.facts or walked.facts[id]["verdict"] == "not covered":
        pytest.skip(walked.facts.get(id, {}).get("seen", "nothing was looked at"))
    assert walked.facts[id]["verdict"] == "proven", walked.facts[id]["seen"]
