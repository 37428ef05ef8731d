"""Synthesis in a process of its own: the same assembly, the same refusal, nothing of the CDK in this process."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from crossover.errors import ConfigError, RunFailed
from crossover.experiment import Experiment
from crossover.running.deployed import synthesize_assembly
from crossover.validation import load
from stacks.synthesis import synthesize
from tests.local.kills import list_children
from tests.local.parts import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """Return the experiment of config/p2p-instance.yaml."""
    return load(ROOT / "config" / "p2p-instance.yaml")


def templates(folder: Path) -> dict[str, object]:
    """Return the content of each template in the folder, by file name."""
    return {each.name: json.loads(each.read_text()) for each in folder.glob("*.template.json")}


@pytest.mark.slow
def test_the_assembly_is_the_same(experiment: Experiment, tmp_path: Path) -> None:
    """Check that synthesis in a process of its own gives the same templates as in this process."""
    assert synthesize_assembly(experiment, tmp_path / "apart") == tmp_path / "apart"
    assert templates(tmp_path / "apart") == templates(synthesize(experiment, tmp_path / "here")) != {}


@pytest.mark.slow
def test_what_cannot_be_deployed_is_said_in_the_same_words(experiment: Experiment, tmp_path: Path) -> None:
    """Check that synthesis in a process of its own raises the same ConfigError as in this process."""
    wrong = replace(experiment, architecture="p4p")
    with pytest.raises(ConfigError) as apart:
        synthesize_assembly(wrong, tmp_path / "apart")
    with pytest.raises(ConfigError) as here:
        synthesize(wrong, tmp_path / "here")
    assert str(apart.value) == str(here.value)


def test_a_broken_cdk_is_told_with_its_own_words(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an error of the CDK in the other process is raised as RuntimeError with its message."""
    (tmp_path / "aws_cdk.py").write_text("raise ImportError('no CDK today')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="no CDK today"):
        synthesize_assembly(experiment, tmp_path / "apart")


@pytest.mark.parametrize("kind", ["synthesis", "node"])
def test_a_killed_cdk_is_said_in_a_line(experiment: Experiment, tmp_path: Path, kind: str) -> None:
    """Kill the synthesizing process, or its Node. Check that RunFailed says so."""
    before = {each.pid for each in list_children(os.getpid())}  # this process's own Node among them
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(synthesize_assembly, experiment, tmp_path / "apart")
        while not (
            victims := [each for each in list_children(os.getpid()) if each.kind == kind and each.pid not in before]
        ):
            assert not running.done(), running.result()
        os.kill(victims[0].pid, signal.SIGKILL)
        with pytest.raises(
            RunFailed, match="synthesis of p2p-instance: the CDK was killed by SIGKILL; the run had not started"
        ):
            running.result()


@pytest.mark.slow
def test_a_run_brings_no_cdk_into_its_process() -> None:
    """Check that the modules of a local run do not import the CDK."""
    code = "import sys, crossover.running.deployed, crossover.local.cloud, crossover.local.servers; sys.exit('aws_cdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_an_interrupted_synthesis_leaves_nothing(tmp_path: Path) -> None:
    """Check that an interrupted synthesis leaves neither a process nor the folder into which Node unpacks the CDK."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = (
        "import sys, pathlib; from crossover.running.deployed import synthesize_assembly; from crossover.validation import load;"
        f"synthesize_assembly(load(pathlib.Path({str(ROOT / 'config' / 'p2p-instance.yaml')!r})), pathlib.Path({str(tmp_path / 'out')!r}))"
    )
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        eventually(lambda: any(temporary.rglob("jsii-kernel-*")), what="Node has begun", timeout_s=120)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate()[1]
    assert errors.endswith("KeyboardInterrupt\n")
    assert not any(temporary.iterdir())
    mine = str(temporary).encode()
    eventually(
        lambda: not any(mine in _read(each) for each in Path("/proc").glob("[0-9]*/environ")), what="all have ended"
    )


def _read(path: Path) -> bytes:
    """Return the file's bytes, or b"" if its process has ended or may not be read."""
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
