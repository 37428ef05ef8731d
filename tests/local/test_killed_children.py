"""`crossover run` on this machine when one of its children is killed with -9: it ends right, or with one plain message."""

import json
import os
import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from crossover.running.deployed import synthesize_assembly
from crossover.running.inline import run_inline
from crossover.validation import load
from crossover.workflow.architecture import architectures
from tests.local import kills
from tests.sampling import WHOLE

pytestmark = pytest.mark.slow

EPOCHS = 10
SEEDS = int(os.environ.get("CROSSOVER_KILLS", "2" if WHOLE else "0"))  # per architecture
SERVERS = {"redis-server", "broker", "broker's script"}
NEEDED = {
    *SERVERS,
    "synthesis",
    "node",
    "helper",
}  # a run can end with one of these; Erlang's helpers may take the broker with them


@dataclass(frozen=True)
class Undisturbed:
    """An architecture's result without kills, and its synthesized assembly."""

    digest: str  # of the parameters that the run ends with
    assembly: Path


@cache
def undisturbed(architecture: str, folder: Path) -> Undisturbed:
    """Train the architecture inline, synthesize its assembly, and return both; once per process."""
    folder.mkdir()
    experiment = load(kills.write_experiment(architecture, folder, epochs=EPOCHS))
    found = run_inline(experiment, folder / "out", lambda progress: None)
    assembly = synthesize_assembly(experiment, folder / "assembly")
    return Undisturbed(str(found.result["final"]["parameters_sha256"]), assembly)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the undisturbed runs."""
    return tmp_path_factory.mktemp("undisturbed")


def check(ended: kills.Ended, out: Path, *, digest: str) -> None:
    """Check what a run with a killed child has left: the undisturbed model and no unfinished files, or exit status 1 with one error. If a
    server was killed after an epoch, the error must name it and its log, and the result must have the epochs.
    """
    assert "Traceback" not in ended.said and "fault of Crossover" not in ended.said, ended.said
    errors = [line for line in ended.said.splitlines() if line.startswith("error: ")]
    assert len(errors) == bool(ended.status), ended.said
    if not ended.status:
        assert json.loads((out / "result.json").read_text())["final"]["parameters_sha256"] == digest
        assert not (out / "server.log").exists() and not (out / "unfinished").exists()
        return
    assert ended.status == 1 and ended.victim in NEEDED, ended.said
    if ended.victim in SERVERS and ended.epochs:
        # Of Erlang's end rabbitmq-server's script tells no signal.
        how = "exit status 0" if ended.victim == "broker" else "killed by SIGKILL"
        told = re.search(rf"^error: (?:redis|rabbitmq)-server .* has ended \({how}\), .* log: (.*)$", ended.said, re.M)
        assert told and Path(told[1]).stat().st_size, ended.said
        result = json.loads((out / "result.json").read_text())
        assert result["failure"] == errors[0].removeprefix("error: ")
        assert len(result["epochs"]) >= ended.epochs and (out / "unfinished").is_dir(), ended.said


@pytest.mark.parametrize("architecture", ["mlless", *(["spirt"] if SEEDS else [])])
def test_a_database_that_dies_ends_the_run(architecture: str, tmp_path: Path) -> None:
    """Kill the database after two epochs: the run ends with status 1, and its error names the server and its log."""
    config = kills.write_experiment(architecture, tmp_path, epochs=EPOCHS)
    ended = kills.run(config, tmp_path, choose=kills.choose_of_kind("redis-server", random.Random(1)), epochs=2)
    assert ended.status == 1 and ended.victim == "redis-server", ended.said
    check(ended, tmp_path / "out", digest="")


@pytest.mark.parametrize("architecture", architectures())
@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_random_child_at_a_random_moment(architecture: str, seed: int, tmp_path: Path, folder: Path) -> None:
    """Kill a random child process of a run at a random moment: the run ends with the undisturbed model, or with one plain error."""
    rng = random.Random(f"{architecture} {seed}")
    early, other = rng.random() < 0.2, undisturbed(architecture, folder / architecture)
    ended = kills.run(
        kills.write_experiment(architecture, tmp_path, epochs=EPOCHS),
        tmp_path,
        choose=kills.choose_of_any_kind(rng),
        epochs=0 if early else rng.randint(1, EPOCHS - 3),
        wait_s=rng.uniform(0.0, 20.0 if early else 0.5),
        assembly=None if early else other.assembly,
    )
    print(f"{architecture} {seed}: {ended.victim} after {ended.epochs} epochs: {ended.status}, {ended.seconds:.1f} s")
    check(ended, tmp_path / "out", digest=other.digest)
