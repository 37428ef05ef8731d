"""Wrong without a word: what strangers found with models, seeds, servers and faults of their own, a section for each kind of finding.

Each test here goes in by the door that the stranger took. What a finding's mend is made of has its tests where it lies.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossover.cli import main as cli
from crossover.reports import folder
from crossover.simulation import AWS, assumptions
from crossover.simulation.calibration import Calibration
from tests.mutation import protocol, silent
from tests.unit.advice.few import few_candidates
from tests.unit.reports import recorded

FAULTS = silent.listed()
ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"


# --- faults planted again: the old behaviours, each found by the test that it names -----------------------------------


def test_each_silent_fault_can_be_planted() -> None:
    planted = [protocol.Fault(fault.name, "planted", fault.loses, (), fault.edits) for fault in FAULTS]
    assert [why for fault in planted for why in protocol.missing(fault, protocol.ROOT)] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_silent_fault_is_found(fault: silent.Fault) -> None:
    assert silent.outcome(fault) == "found"


# --- the cloud on this machine asks who is there (1) ------------------------------------------------------------------

# --- damage: a byte, a kill, a full disk (2, 3) -----------------------------------------------------------------------

# --- waits, space, decoders, certificates (4) -------------------------------------------------------------------------


def on_a_small_disk(folder: Path, megabytes: int, *arguments: str, **variables: str) -> tuple[int, str]:
    """A command line where `folder` is a disk of that size: its exit status, and what it said on standard error."""
    mounted = f'mount -t tmpfs -o size={megabytes}m none "{folder}" && exec "$0" "$@"'
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    command = [*namespace, "sh", "-c", mounted, sys.executable, "-m", "crossover.cli", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_too_little_room_for_a_broker_is_told_before_anything_is_started(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    run = ("run", "config/p2p-instance.yaml", "--on", "local", "--set", "training.epochs=1")
    status, said = on_a_small_disk(disk, 150, *run, "--out", str(tmp_path / "run"), TMPDIR=str(disk))
    assert status == 2
    for words in (str(disk), "300 MB are needed", "157 MB are free", "200 MB", "TMPDIR"):
        assert words in said

    status, said = on_a_small_disk(disk, 20, *run, "--out", str(disk / "run"))
    assert status == 2
    for words in (str(disk / "run"), "50 MB are needed", "20 MB are free", "--out"):
        assert words in said


# --- what the virtual world sees (5) ----------------------------------------------------------------------------------

# --- benchmarks run; the tensor module keeps what the mission uses (6, 7) ---------------------------------------------

# --- a model is the model that was trained (8 to 12) ------------------------------------------------------------------

# --- a verdict is one (13 to 15) --------------------------------------------------------------------------------------


def test_of_three_runs_of_one_file_none_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"seed": 1, "paper_method_usd": 7e-6, "full_usd": 0.002, "cpu_share": 0.9}
    for name, seconds in (("same1", 0.152), ("same2", 0.149), ("same3", 0.116)):
        run = recorded.as_run(figures | {"elapsed_s": seconds}, "same")
        folder.write(tmp_path / name, result=run.result, records=run.records)
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *(str(tmp_path / f"same{n}") for n in (1, 2, 3)), "--out", str(tmp_path / "out")])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "soonest with" not in said and "sooner than" not in said


NETWORK = """
from torch import nn

def network(classes, input_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, classes))
"""
OWN = """
name: mine
architecture: all_reduce
workers: 2
training: {model: "mine:network", epochs: 3, batch_size: 60, target: null}
data: {dataset: digits, validation: 0.2}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(NETWORK)
    (tmp_path / "mine.yaml").write_text(OWN)
    return tmp_path / "mine.yaml"


def told(*arguments: str) -> int:
    """What the command ends with."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_project_says_of_the_files_that_advise_wrote_what_advise_said(own: Path, tmp_path: Path) -> None:
    """Of a model of one's own; seconds apart from those until everything stands, which a run does not have."""
    with few_candidates():
        assert told("advise", str(own), "--on-hand", "lambda,ec2", "--out", str(tmp_path / "advice")) == 0
    advised = json.loads((tmp_path / "advice" / "advice.json").read_text())
    files = sorted(tmp_path.glob("mine-advice-*.yaml"))
    for path, said in zip(files, (advised["winner"], *advised["alternatives"]), strict=True):
        assert told("project", str(path), "--out", str(tmp_path / "out.json")) == 0
        projected = json.loads((tmp_path / "out.json").read_text())["repetitions"]
        assert projected["usd"]["p50"] == pytest.approx(said["usd"]["p50"], rel=0.01)
        assert projected["seconds"]["p50"] == pytest.approx(said["seconds"]["p50"] - said["before_s"], rel=0.01)


def test_nothing_holds_that_is_no_advice(own: Path, tmp_path: Path) -> None:
    with few_candidates():
        assert (
            told("advise", str(own), "--on-hand", "lambda", "--deadline", "1s", "--out", str(tmp_path / "advice")) == 3
        )


def test_what_cannot_run_has_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(CONFIG / "all-reduce-cifar10.yaml")
    sized = ("--parameters", "1300000000", "--set", "training.epochs=1", "--repetitions", "20")
    assert told("project", config, *sized) == 2
    said = capsys.readouterr()
    assert "$" not in said.out and "AWS would not run it so, and there is no total" in said.err


def test_what_an_answer_rests_on_turns_it_by_the_factor_that_is_told() -> None:
    """Of three by construction: a function's dollars follow the vCPU's speed, and a GPU's the GPU's."""

    def cheapest(cloud: Calibration) -> str:
        usd = {"a function": cloud.mac_s / AWS.mac_s, "a GPU": 2.5 * AWS.gpu_efficiency / cloud.gpu_efficiency}
        return min(usd, key=lambda name: usd[name])

    for what, paced in assumptions.assumed(AWS, gpus=True):
        (turn,) = assumptions.turns(cheapest, paced)
        assert cheapest(paced(turn.before)) == cheapest(AWS) != cheapest(paced(turn.after)) == turn.other
        assert turn.after == pytest.approx(2.5 if "vCPU" in what else 0.4, rel=0.011)
    said = assumptions.words(cheapest, AWS, gpus=True)
    assert (
        said.startswith("It rests on a core of this machine for a vCPU of ARM (2.5")
        and "x slower, it would be a GPU)" in said
    )
