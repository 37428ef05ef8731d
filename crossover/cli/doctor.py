"""`crossover doctor`: what a run on this machine, or a deployment on AWS, needs, and whether it is there."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from crossover.account.credentials import aws_errors_explained
from crossover.account.deployment.deploying import ROOT, cdk, hosts_processor
from crossover.account.deployment.finding import Finding
from crossover.cli.arguments import AsJson, Config, Debug, Override, accepted, print_json
from crossover.cli.docker import check_docker
from crossover.cli.plan import tried
from crossover.errors import MissingTool, UserError
from crossover.experiment import Experiment
from crossover.reports import terminal
from crossover.simulation import own_steps
from crossover.validation import account_file, check_deployment


def doctor(
    config: Config,
    on: Annotated[
        Literal["local", "aws"], typer.Option(help="local: this machine; aws: the account as well.")
    ] = "local",
    override: Override = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check what the experiment needs, on this machine or on AWS; nothing is changed, and each line says how to mend it."""
    experiment = accepted(config, override)
    findings = list(examine(experiment) if on == "local" else examine_account(experiment))
    missing = [finding.name for finding in findings if not finding.holds]
    if as_json:
        print_json({"ready": not missing, "findings": [asdict(finding) for finding in findings]})
    else:
        for each in findings:
            terminal.show(f"{each.word:<7}  {each.name}: {each.detail}")
    if missing and on == "local":
        raise MissingTool(f"this machine lacks {', '.join(missing)}; the lines above say what to do")
    if missing:
        raise UserError(f"the account is not ready: {', '.join(missing)}; the lines above say what to do")
    if not as_json and all(finding.asked for finding in findings):
        terminal.show(f"ready: crossover {'run' if on == 'local' else 'deploy'} {config}")


def examine_account(experiment: Experiment) -> Iterator[Finding]:
    """What a deployment needs: own code, tools here, the layers, and what AWS says of the account."""
    yield from own(experiment)
    check_deployment(experiment)
    own_steps.check_fits(experiment)
    import boto3  # seconds on a busy machine, which a look at this one need not wait for

    from crossover.account.deployment import readiness

    yield Finding("CDK", True, cdk()[-1])
    yield from _packaging(experiment)
    yield from hosts_module(experiment)
    with aws_errors_explained():
        yield from readiness.examine(boto3.Session(), experiment, account_file.load())


def own(experiment: Experiment) -> Iterator[Finding]:
    """What was found of code of one's own; faults of it end the command."""
    if found := tried(experiment):
        yield Finding("your code", True, found)


def _packaging(experiment: Experiment) -> Iterator[Finding]:
    """What the functions' code is packed with: the layers, or a program that builds images."""
    if experiment.functions.packaging == "image":
        try:
            check_docker(experiment)
        except MissingTool as error:
            yield Finding("image builder", False, str(error))
        else:
            yield Finding("image builder", True, "builds for linux/arm64")
        return
    for name in ("dataplane", "torch"):
        yield _built(f"layer {name}", ROOT / "build" / f"layer-{name}.zip", "make layer")


def hosts_module(experiment: Experiment) -> Iterator[Finding]:
    """What Redis hosts load, built here for their processor."""
    if kind := hosts_processor(experiment):
        mend = f"make host-module PROCESSOR={kind}"
        yield _built("hosts' tensor module", ROOT / "build" / f"tensors-{kind}.so", mend)


def examine(experiment: Experiment) -> Iterator[Finding]:
    """Own code, programs, the tensor module, the data set's folder."""
    yield from own(experiment)
    from crossover.local import tools

    for program, package in tools.PACKAGES.items():
        found = tools.find(program)
        yield Finding(program, bool(found), found or f"apt-get install {package}")
    yield _built("tensor module", ROOT / "redis_module" / "build" / "tensors.so", "make redis-module")
    if experiment.data.directory:
        folder = Path(experiment.data.directory)
        yield Finding(
            "data.directory", folder.is_dir(), f"{folder}" if folder.is_dir() else f"{folder}: no such folder"
        )


def _built(name: str, path: Path, mend: str) -> Finding:
    return Finding(name, path.exists(), str(path) if path.exists() else mend)
