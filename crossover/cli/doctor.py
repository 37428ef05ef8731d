"""`crossover doctor`: what a run on this machine needs, and whether it is there."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from crossover.cli.arguments import Config, Debug
from crossover.cli.deployment import ROOT
from crossover.errors import MissingTool
from crossover.experiment import Experiment
from crossover.validation import load

PROGRAMS = {  # program -> Debian package
    "redis-server": "redis-server",
    "rabbitmq-server": "rabbitmq-server",
    "g++": "g++",
    "make": "make",
}
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/lib/rabbitmq/bin")


@dataclass(frozen=True)
class Finding:
    """One thing looked at."""

    name: str
    holds: bool
    detail: str


def doctor(config: Config, debug: Debug = False) -> None:
    """Check that this machine can run the experiment; nothing is asked of AWS."""
    findings = list(examine(load(config)))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"{'ok     ' if finding.holds else 'missing'}  {finding.name}: {finding.detail}", markup=False)
    missing = [finding.name for finding in findings if not finding.holds]
    if missing:
        raise MissingTool(f"this machine lacks {', '.join(missing)}; the lines above say what to do")


def examine(experiment: Experiment) -> Iterator[Finding]:
    """Programs, the tensor module, the data set's folder."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
    for program, package in PROGRAMS.items():
        found = shutil.which(program, path=path)
        if not found and program == "redis-server":
            found = shutil.which("valkey-server", path=path)
        yield Finding(program, bool(found), found or f"apt-get install {package}")
    yield _module()
    if experiment.data.directory:
        folder = Path(experiment.data.directory)
        yield Finding(
            "data.directory", folder.is_dir(), f"{folder}" if folder.is_dir() else f"{folder}: no such folder"
        )


def _module() -> Finding:
    module = ROOT / "redis_module" / "build" / "tensors.so"
    return Finding("tensor module", module.exists(), str(module) if module.exists() else "make redis-module")
