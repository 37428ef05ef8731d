"""`crossover deploy`, `destroy`, `status` and `doctor`."""

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from crossover.cli.arguments import (
    NEEDS_CHECKOUT,
    AsJson,
    Config,
    Debug,
    Override,
    TakeOver,
    Yes,
    command_words,
    is_checkout,
    load_runnable,
    print_json,
    require_checkout,
)
from crossover.cli.plan import try_user_code
from crossover.errors import ConfigError, CrossoverError, MissingTool, UserError, print_line
from crossover.experiment import Experiment
from crossover.reports import display, prices, tables
from crossover.running import account, running_costs
from crossover.running.account import (
    FLEET,
    FoundResource,
    Owner,
    Ownership,
    check_credentials,
    explain_aws_errors,
)
from crossover.running.deploying import ROOT, cdk_command, check_before_deploying, deploy_previewed, hosts_processor
from crossover.running.organisation import Finding
from crossover.running.removal import (
    announce_removal,
    delete_experiment,
    delete_shared,
    list_experiment_names,
    verify_removed,
)
from crossover.simulation import processors
from crossover.simulation.processors import describe_idle_vcpus
from crossover.training.gradients import build_baselines
from crossover.validation import account_file, check_deployment, load
from crossover.workflow.architecture import architecture_of, steps
from crossover.workflow.infrastructure import shared_stacks

# --- docker -----------------------------------------------------------------------------------------------------------

OTHERWISE = "or set functions.packaging: layer, which needs no Docker"
ARM = ("aarch64", "arm64")
_TIMEOUT_S = 60.0


def check_docker(experiment: Experiment) -> None:
    """Raise MissingTool if the experiment's functions are packaged as images and this machine cannot build them: no Docker (or the program
    in CDK_DOCKER), or none that builds for ARM. Does nothing for other packaging and for experiments without functions. If Docker does not
    say for which platforms it builds, no error is raised.
    """
    if experiment.functions.packaging != "image" or not steps(architecture_of(experiment)):
        return
    program = os.environ.get("CDK_DOCKER", "docker")  # the CDK's own variable: finch, podman
    failure = _run_program(program, "info")[0]
    if failure:
        raise MissingTool(
            f"functions.packaging: image needs {program} to build the image at deployment, but {failure}; install or start it, {OTHERWISE}"
        )
    failure, words = _run_program(program, "buildx", "inspect")
    platforms = re.search(r"^Platforms:(.*)$", words, re.MULTILINE)
    if platform.machine() in ARM or failure or not platforms or "linux/arm64" in platforms[1]:
        return
    raise MissingTool(
        f"functions.packaging: image needs linux/arm64 images, but {program} here builds only for{platforms[1]}; let it emulate ARM "
        f"(docker run --privileged --rm tonistiigi/binfmt --install arm64), {OTHERWISE}"
    )


def _run_program(*command: str) -> tuple[str, str]:
    """Run a command and return (failure, output): the reason why it failed, "" if it did not, and its standard output. It is stopped after
    a minute, which is a failure.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, encoding="utf-8"
        )
    except FileNotFoundError:
        return "it is not installed", ""
    except subprocess.TimeoutExpired:
        return f"it did not answer in {_TIMEOUT_S:.0f} s", ""
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
        return f"it does not answer: {said}", done.stdout
    return "", done.stdout


# --- doctor -----------------------------------------------------------------------------------------------------------
# `crossover doctor`: checks of what a run on this machine, or a deployment on AWS, needs.


def doctor(
    config: Config,
    on: Annotated[
        Literal["local", "aws"], typer.Option(help="local: check this machine; aws: check the AWS account as well.")
    ] = "local",
    override: Override = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check that this machine or the AWS account has what the experiment needs. Changes nothing; each line says how to fix a problem.

    The exit status is 2 if something is missing.
    """
    experiment = load_runnable(config, override)
    findings = list[Finding]()
    for each in check_machine(experiment) if on == "local" else check_account(experiment):
        findings.append(each)
        if not as_json:  # at once: the next check may take long, or end with an error
            tables.show(f"{each.word:<7}  {each.name}: {each.detail}")
    missing = [finding.name for finding in findings if not finding.holds]
    if as_json:
        print_json({"ready": not missing, "findings": [asdict(finding) for finding in findings]})
    if missing and on == "local":
        raise MissingTool(f"this machine lacks {', '.join(missing)}; the lines above say how to fix it")
    if missing:
        raise UserError(f"the account is not ready: {', '.join(missing)}; the lines above say how to fix it")
    if not as_json and all(finding.asked for finding in findings):
        tables.show(f"ready: crossover {'run' if on == 'local' else 'deploy'} {command_words(config, override)}")


def check_account(experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding about everything that a deployment needs: user code, local tools, the layers, and the AWS account. Creates nothing on
    AWS. The name of each check of the account is printed to standard error before it begins. A missing thing is a finding. Errors of the
    user code and of the experiment's own checks are raised (OwnCodeError, ConfigError); botocore's errors become UserError or
    CrossoverError.
    """
    yield from check_user_code(experiment)
    check_deployment(experiment)
    processors.check_fits(experiment)
    from crossover.running import preflight  # boto3 takes seconds, which a look at this machine need not wait for

    try:
        yield Finding("CDK", True, cdk_command()[-1])
    except MissingTool as error:
        yield Finding("CDK", False, str(error))
    yield from _check_packaging(experiment)
    yield from check_hosts_module(experiment)
    with explain_aws_errors():
        yield from preflight.examine(
            account.open_impatient_session(),
            experiment,
            account_file.load(),
            report=lambda name: tables.show(f"asking AWS: {name}", stderr=True),
        )


def check_user_code(experiment: Experiment) -> Iterator[Finding]:
    """Try the experiment's user code by training on a few samples, and yield a finding that it works; nothing if the experiment has no user
    code. Errors of the code are raised.
    """
    found, _ = try_user_code(experiment)
    if found:
        yield Finding("your code", True, found)


def _check_packaging(experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding for each thing of which the functions' packages are made: the two layer files, or for images the program that builds
    them. A missing thing is a finding, not an error.
    """
    if experiment.functions.packaging == "image":
        try:
            check_docker(experiment)
        except MissingTool as error:
            yield Finding("image builder", False, str(error))
        else:
            yield Finding("image builder", True, "builds for linux/arm64")
        return
    for name in ("dataplane", "torch"):
        yield _check_built_file(f"layer {name}", ROOT / "build" / f"layer-{name}.zip", "make layer")


def check_hosts_module(experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding on whether the Redis module for database hosts has been built for their processor. Yields nothing if the experiment
    has no such hosts.
    """
    if kind := hosts_processor(experiment):
        mend = f"make host-module PROCESSOR={kind}"
        yield _check_built_file("hosts' tensor module", ROOT / "build" / f"tensors-{kind}.so", mend)


def check_machine(experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding about everything that a run on this machine's local cloud needs: user code, server programs, the Redis module, the
    data set's folder. Changes nothing. If this program is an installed package, that is the last finding: module and folder are not
    checked. A missing thing is a finding; errors of the user code are raised.
    """
    yield from check_user_code(experiment)
    from crossover.local import servers

    for program, package in servers.PACKAGES.items():
        found = servers.find_program(program)
        yield Finding(program, bool(found), found or f"apt-get install {package}")
    if not is_checkout():
        yield Finding("checkout", False, f"--on local {NEEDS_CHECKOUT}; `run --on inline` works without")
        return
    yield _check_built_file("tensor module", ROOT / "redis_module" / "build" / "tensors.so", "make redis-module")
    if experiment.data.directory:
        folder = Path(experiment.data.directory)
        yield Finding(
            "data.directory", folder.is_dir(), f"{folder}" if folder.is_dir() else f"{folder}: no such folder"
        )


def _check_built_file(name: str, path: Path, mend: str) -> Finding:
    """Return a finding on whether the built file `path` exists. `name`: words for the file; `mend`: command that builds it."""
    how = mend if is_checkout() else f"{mend}, which {NEEDS_CHECKOUT}"
    return Finding(name, path.exists(), str(path) if path.exists() else how)


# --- status -----------------------------------------------------------------------------------------------------------
# `crossover status`: an experiment's stacks on AWS, their resources, hourly costs and expiry.

HEAD = ("stack", "state", "since", "ends")


def status(config: Config, override: Override = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the experiment's stacks on AWS: their time to live, running resources and cost per hour.

    Changes nothing. A stack that does not exist is shown as not deployed.
    """
    experiment = load(config, override or [])
    import boto3  # a tenth of a second that other commands need not wait for

    names = [f"{experiment.project}-{part}" for part in (*shared_stacks(experiment), experiment.name)]
    session, now = boto3.Session(), datetime.now(UTC)
    with explain_aws_errors():
        for name in names:
            account.check_ours(session, name, project=experiment.project)
        stood = list(list_stack_rows(session, names, now=now))
        owner = account.load_owner(session, experiment.project, experiment.name)
        found = account.find_resources(session, owner)
        said = [
            *describe_resources(found),
            *describe_run(session, experiment, owner, now=now),
            running_costs.describe_costs(session, experiment, now=now),
        ]
    if as_json:
        stacks_ = [dict(zip(HEAD, row, strict=True)) for row in stood]
        print_json({"stacks": stacks_, "resources": [_resource_as_json(each) for each in found], "words": said})
    else:
        tables.show(tables.TextTable("", HEAD, stood), *said)


def _resource_as_json(found: FoundResource) -> dict[str, Any]:
    """Return a resource that was found on AWS as a dictionary for --json."""
    return {
        "kind": found.kind,
        "name": str(found),
        "billable": found.billable,
        "ours": found.whose is not Ownership.UNPROVEN,
    }


def list_stack_rows(session: Any, names: list[str], *, now: datetime) -> Iterator[tuple[str, str, str, str]]:
    """Yield a table row for each stack named in `names`: its name, state ("not deployed" if it does not exist), time of the last change,
    and time to live, as texts. Asks AWS. `session`: boto3 session; `now`: the current time.
    """
    for name in names:
        stack = account.find_stack(session, name)
        if stack is None:
            yield name, "not deployed", "", ""
            continue
        yield name, stack.state, f"{stack.changed:%Y-%m-%d %H:%M} UTC", time_to_live(stack.expires_at, now=now)


def time_to_live(ends: datetime | None, *, now: datetime) -> str:
    """Return in words when a stack expires: `in 7.5 h`, or `expired 2.0 h ago: being deleted`; "" if `ends`, the time of expiry, is None.
    `now`: the current time.
    """
    if ends is None:
        return ""
    hours = (ends - now).total_seconds() / 3_600
    return f"in {hours:.1f} h" if hours > 0 else f"expired {-hours:.1f} h ago: being deleted"


def describe_resources(found: Sequence[FoundResource]) -> Iterator[str]:
    """Yield a line that counts, by kind, the resources that cost money by existing, and a line for each resource that looks like the
    project's but may be somebody else's.
    """
    counts = Counter(each.kind for each in found if each.billable and each.whose is not Ownership.UNPROVEN)
    listed = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    yield f"running: {listed}" if listed else "running: nothing that is billed by the hour"
    yield from (f"possibly not ours: {each}: {each.why}" for each in found if each.whose is Ownership.UNPROVEN)


def describe_run(session: Any, experiment: Experiment, owner: Owner, *, now: datetime) -> Iterator[str]:
    """Yield one line on the run that is under way on the experiment's stack: its start, the number of epochs done, and the cost so far; or
    why the cost is unknown. Yields nothing if no run is under way, if the stack is incomplete, or if what its parameters name is not in
    `owner`. Raises ClientError if AWS refuses a request, Corrupt as `find_run_under_way` does.

    `session`: boto3 session; `owner`: ids of the resources in the experiment's stack; `now`: the current time.
    """
    from crossover.running import monitor
    from crossover.running.monitor import DeployedParameters

    held = {*owner.held.get("AWS::StepFunctions::StateMachine", ()), *owner.held.get(FLEET, ())}
    if not held:
        return
    try:
        deployed = DeployedParameters.load(experiment, session)
    except ConfigError:  # half way
        return
    if (deployed.run_machine or deployed.fleet) not in held or not (
        found := monitor.find_run_under_way(experiment, session)
    ):
        return
    try:
        run, cost = monitor.load_run_with_cost(found, experiment, session, now=now.timestamp())
    except CrossoverError as error:
        yield f"run {found.run}: its cost so far is unknown: {error}"
        return
    began = datetime.fromtimestamp(run.facts["created_at"], UTC)
    done = run.decisions[-1]["epoch"] if run.decisions else 0
    yield (
        f"run {found.run}: started {began:%Y-%m-%d %H:%M} UTC, {done} of {run.experiment.training.epochs} epochs done; "
        f"so far {display.usd(cost.full_usd)} (total AWS bill), {display.usd(cost.paper_method_usd)} by the papers' method "
        f"({prices.load().basis})"
    )


# --- destruction ------------------------------------------------------------------------------------------------------
# `crossover destroy`: announce what is deleted and what stays, ask, delete; --verify checks it.


def destroy(
    config: Config,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Afterwards check by resource type and by tag that nothing is left; fail otherwise."
        ),
    ] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared", help="Also delete the project's network and broker, if no other experiment is deployed."
        ),
    ] = False,
    yes: Yes = False,
    take_over: TakeOver = False,
    override: Override = None,
    debug: Debug = False,
) -> None:
    """Delete the experiment from AWS, with everything that its stack left behind. Other experiments' shared network and broker stay.

    Asks before it deletes; without a terminal it works only with --yes. If it fails, the message says what is gone and what is left.
    """
    experiment = load(config, override or [])
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("destroy: cannot ask for confirmation, because standard input is not a terminal; add --yes")
    import boto3

    session = boto3.Session()
    with explain_aws_errors():
        for name in () if take_over else list_experiment_names(experiment):
            command = f"crossover destroy {command_words(config, override)}"
            account.check_owner(session, f"{experiment.project}-{name}", owner=experiment.owner, command=command)
        for line in announce_removal(session, experiment, shared=shared):
            print_line(line)
    if not yes and not typer.confirm("Delete all this?"):
        raise UserError("destroy: nothing was deleted")
    delete_experiment(session, experiment)
    if shared:
        delete_shared(session, experiment)
    if verify:
        with explain_aws_errors():
            for each in [None] if shared else list_experiment_names(experiment):
                print_line(verify_removed(session, experiment.project, each))


# --- deployment -------------------------------------------------------------------------------------------------------
# `crossover deploy`.


def deploy(
    config: Config, yes: Yes = False, take_over: TakeOver = False, override: Override = None, debug: Debug = False
) -> None:
    """Deploy the experiment on AWS, and the shared network and broker if they do not exist yet.

    First prints what would change. Without a terminal it works only with --yes.
    """
    require_checkout("deploy")
    experiment, named = load_runnable(config, override), command_words(config, override)
    check_deployment(experiment)
    processors.check_fits(experiment)
    check_docker(experiment)
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("deploy: cannot ask for confirmation, because standard input is not a terminal; add --yes")
    with explain_aws_errors():
        for each in (experiment, *build_baselines(experiment)):  # baselines are deployed by the same command
            check_before_deploying(each, config=named, tell=print_line, take_over=take_over)
    if wasted := describe_idle_vcpus(experiment):
        print_line(f"note: {wasted}", stderr=True)
    started = time.monotonic()
    deploy_previewed(config, experiment, overrides=override or (), ask=not yes, tell=print_line)
    print_line(f"deployed in {(time.monotonic() - started) / 60:.1f} minutes; crossover run {named} --on aws")
