"""Checks before a deployment: whether the account is ready and the names are free, and why AWS refused a deployment."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cdk import expiry_machine
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.reports import bill, prices
from crossover.reports.usage import GROUPS
from crossover.running import account, organisation, running_costs
from crossover.running import account as credentials
from crossover.running import account as stacks
from crossover.running.account import Ownership
from crossover.running.organisation import Finding
from crossover.stores import deployed_clients
from crossover.training.gradients import build_baselines
from crossover.validation.account_file import AccountFile
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, state_machines
from crossover.workflow import Sequence as InOrder
from crossover.workflow.architecture import architecture_of, steps, trees
from crossover.workflow.infrastructure import most_minibatches, shared_stacks
from crossover.workflow.state_machines import fill_placeholders

# --- minutes ----------------------------------------------------------------------------------------------------------

EXPECTED_MINUTES = {"network": 4, "broker": 10, "experiment": 6}
ALONE_MINUTES = 2  # of an experiment without network, hosts and fleets


def expected_minutes(experiment: Experiment) -> dict[str, int]:
    """Return {stack: minutes}: how long the first deployment of each stack of the experiment is expected to take, in order of deployment.
    Baselines come before the experiment, shared stacks before those that use them. AWS is not asked which of them exist already.
    """
    found: dict[str, int] = {}
    for each in (*build_baselines(experiment), experiment):
        shared = shared_stacks(each)
        found |= {f"{each.project}-{part}": EXPECTED_MINUTES[part] for part in shared}
        found[f"{each.project}-{each.name}"] = EXPECTED_MINUTES["experiment"] if shared else ALONE_MINUTES
    return found


# --- failures ---------------------------------------------------------------------------------------------------------
# Why a deployment failed: errors of hosts are in their stack's events, which remain after hosts and rollback.

CLOCK_TOLERANCE = timedelta(minutes=5)  # AWS refuses requests whose clock is further off
FIRST_STATES = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")
HOST_TYPE = "AWS::CloudFormation::WaitCondition"


def list_failure_reasons(session: Any, stacks: Iterable[str], *, since: datetime, project: str) -> list[str]:
    """Return a line for each resource that failed in a stack's last operation, first failures first; if a host failed, also a line that
    names the log group with the logs of its boot.

    `session`: makes the AWS clients; `stacks`: their names; `since`: events earlier than 5 minutes before it are ignored; `project`: names
    the log group.
    """
    found = []
    for stack in stacks:
        failed = [each for each in _read_last_operation(session, stack, since=since) if _is_a_cause(each)]
        in_order = reversed(failed)  # they come newest first
        found += [f"{stack}: {each['LogicalResourceId']}: {each['ResourceStatusReason']}" for each in in_order]
        if any(event["ResourceType"] == HOST_TYPE for event in failed):
            found.append(f"the whole log of each host's boot: log group /crossover/{project}/boot in CloudWatch")
    return found


def _read_last_operation(session: Any, stack: str, *, since: datetime) -> Iterator[dict[str, Any]]:
    """Yield CloudFormation's events of the last operation on the stack called `stack`, newest first, without those before `since`. Yields
    nothing if there is no such stack.
    """
    with deployed_clients.ToleratedErrors("does not exist"):
        for event in deployed_clients.list_items(
            session, "cloudformation", "describe_stack_events", "StackEvents", StackName=stack
        ):
            if event["Timestamp"] < since - CLOCK_TOLERANCE:
                return
            yield event
            if event["PhysicalResourceId"] == event["StackId"] and event["ResourceStatus"] in FIRST_STATES:
                return


def _is_a_cause(event: dict[str, Any]) -> bool:
    """Return whether the CloudFormation event is a failure with a cause of its own: not the one that sums up the stack, and not an
    operation that was cancelled because another one failed.
    """
    reason = event.get("ResourceStatusReason", "")
    failed = event["ResourceStatus"] in ("CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED")
    return failed and event["PhysicalResourceId"] != event["StackId"] and "cancelled" not in reason


# --- taken names ------------------------------------------------------------------------------------------------------
# Names that a deployment would use and that are taken: found before CloudFormation fails on them half way.


def check_names_free(session: Any, experiment: Experiment, *, config: Path | str) -> None:
    """Raise UserError if resources in the account of `session` already have names that the experiment's stack would use.

    The message lists them and says what to do: choose another name if they are somebody else's, or `crossover destroy` if an earlier
    deployment left them. Nothing is checked if the stack exists. `config`: the configuration's path, shown in the message.
    """
    owner = account.load_owner(session, experiment.project, experiment.name)
    if account.find_stack(session, owner.stack) is not None:
        return
    names = list_fixed_names(experiment)
    found = [each for each in account.find_resources(session, owner, names) if each.name in names[each.kind]]
    found += account.find_resources(session, owner, ["parameter"])  # everything below the experiment's path
    for whose, then in (
        (Ownership.UNPROVEN, "they are not ours: choose another name or project"),
        (Ownership.LEFT, f"crossover destroy {config} removes what an earlier deployment left"),
    ):
        if taken := [str(each) for each in found if each.whose is whose]:
            listed = ", ".join(taken[:3]) + (f" and {len(taken) - 3} more" if len(taken) > 3 else "")
            raise UserError(f"{owner.stack}: names are taken although the stack does not exist: {listed}; {then}")


def list_fixed_names(experiment: Experiment) -> dict[str, set[str]]:
    """Return {kind of resource: names} for the resources of an experiment's stack whose names are fixed. CloudFormation generates all other
    names.
    """
    architecture, stack = architecture_of(experiment), f"{experiment.project}-{experiment.name}"
    named = {f"{stack}-{step.name.replace('_', '-')}" for step in steps(architecture)}
    functions = {*named, f"{stack}-bucket-emptier"}
    return {
        "function": functions,
        "log group": {GROUPS + name for name in functions},
        "state machine": {f"{stack}-{name.replace('_', '-')}" for name in ("run", *architecture.machines)},
        "auto scaling group": {f"{stack}-fleet"},
        "budget": {stack},
    }


# --- state machines ---------------------------------------------------------------------------------------------------
# Step Functions validates a definition without creating anything.

VALIDATE_ACTION = "states:ValidateStateMachineDefinition"


def check_definitions(session: Any, experiment: Experiment) -> Finding:
    """Return a finding on whether Step Functions accepts the definition of every state machine that a deployment would create. If the
    credentials lack the permission to ask, the finding is successful, since other credentials may deploy.
    """
    caller = session.client("sts").get_caller_identity()["Arn"]  # contains partition and account
    states, accepted, refused = session.client("stepfunctions"), 0, list[str]()
    _, partition, _, _, account, _ = caller.split(":", 5)
    for name, definition in build_definitions(experiment).items():
        text = fill_placeholders(
            json.dumps(definition),
            stack=f"{experiment.project}-{experiment.name}",
            region=states.meta.region_name,
            account=account,
            partition=partition,
        )
        try:
            answer = states.validate_state_machine_definition(definition=text, type="STANDARD")
        except ClientError as error:
            if deployed_clients.get_error_code(error) not in deployed_clients.DENIED_CODES:
                raise
            return Finding("state machines", True, f"not checked: the credentials lack {VALIDATE_ACTION}")
        accepted += answer["result"] == "OK"
        if answer["result"] != "OK":
            refused += [f"{name}: {each}" for each in _format_errors(answer["diagnostics"])]
    if refused:
        return Finding("state machines", False, f"Step Functions would refuse {'; '.join(refused)}")
    return Finding("state machines", True, f"Step Functions accepts all {accepted}")


def build_definitions(experiment: Experiment) -> dict[str, state_machines.StateDefinition]:
    """Return {name: definition} of the state machines that a deployment of the experiment creates: those of its runs, and `expiry`, which
    deletes expired stacks.
    """
    architecture = architecture_of(experiment)
    alone = not shared_stacks(experiment, architecture)
    only = f"{experiment.project}-{experiment.name}" if alone else ""
    own = state_machines.build_definitions(architecture, experiment, minibatches=most_minibatches(experiment))
    return {**own, "expiry": expiry_machine.definition(experiment.project, only=only)}


def _format_errors(diagnostics: list[dict[str, str]]) -> Iterator[str]:
    """Yield a line for each error (not warning) in the diagnostics with which Step Functions answers about a definition."""
    for each in diagnostics:
        if each["severity"] == "ERROR":
            where = f" at {each['location']}" if each.get("location") else ""
            yield f"{each['code']}{where}: {each['message']}"


# --- bootstrap --------------------------------------------------------------------------------------------------------
# Whether the CDK is bootstrapped in the account and region, under this project's qualifier, with a recent version.

CDK_JSON = Path(__file__).parents[2] / "cdk.json"
QUALIFIER_KEY = "@aws-cdk/core:bootstrapQualifier"
DEFAULT_QUALIFIER = "hnb659fds"  # the CDK's own
MINIMUM_VERSION = 6  # what manifests ask for: `requiresBootstrapStackVersion`


def check_bootstrap(session: Any) -> Finding:
    """Return a finding on whether `cdk bootstrap` has been run in the session's region with a recent version. If not, its detail is the
    command to run.
    """
    version = int(deployed_clients.read_parameter(session, bootstrap_parameter()) or 0)
    region, other = session.client("ssm").meta.region_name, read_qualifier()
    apart = "" if other == DEFAULT_QUALIFIER else f" --toolkit-stack-name CDKToolkit-{other}"
    how = f".venv/bin/cdk bootstrap{apart}, once per account and region"
    if version == 0:
        return Finding(
            "bootstrap", False, f"the CDK has not been set up in {region} (no {bootstrap_parameter()}): {how}"
        )
    old = "" if version >= MINIMUM_VERSION else f" is older than {MINIMUM_VERSION}: {how}"
    return Finding("bootstrap", not old, f"version {version}{old}")


def bootstrap_parameter() -> str:
    """Return the name of the SSM parameter in which `cdk bootstrap` stores the version of its set-up."""
    return f"/cdk-bootstrap/{read_qualifier()}/version"


def read_qualifier() -> str:
    """Return the bootstrap qualifier, an id that separates several set-ups of the CDK in one account, where the CDK's command line looks
    for it: the project's cdk.json, then ~/.cdk.json, then the CDK's default.
    """
    for file in (CDK_JSON, Path("~/.cdk.json").expanduser()):
        context = json.loads(file.read_text(encoding="utf-8")).get("context", {}) if file.exists() else {}
        if QUALIFIER_KEY in context:
            return str(context[QUALIFIER_KEY])
    return DEFAULT_QUALIFIER


# --- readiness --------------------------------------------------------------------------------------------------------
# Whether an account is ready for an experiment: bootstrap, concurrency, memory, vCPU quotas, a zone. Nothing is changed.

# vCPUs by class of instances: what its types begin with, the quota's code on demand and as spot.
# Source: docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
QUOTAS = {
    "vCPU quota": (r"(a|c|d|h|i|im|is|m|r|t|z)\d", {False: "L-1216C47A", True: "L-34B43A08"}),
    "GPU quota": (r"(g|gr|vt)\d", {False: "L-DB2E81BA", True: "L-3819A6DF"}),
    "P4 quota": (r"p4", {False: "L-417A185B", True: "L-7212CCBC"}),
    "P5 quota": (r"p5", {False: "L-417A185B", True: "L-C4BD4855"}),
}
AccountCheck = Callable[[Any, Experiment], Iterator[Finding]]
NEW_ACCOUNT_CONCURRENCY, NEW_ACCOUNT_MEMORY_MB = 10, 3_008


def examine(
    session: Any,
    experiment: Experiment,
    account: AccountFile | None = None,
    *,
    report: Callable[[str], None] = lambda name: None,
) -> Iterator[Finding]:
    """Check all that the AWS account must have for a deployment of the experiment, and yield one or more findings for each requirement, the
    most important first.

    `session`: makes the AWS clients; `account`: the organisation's account file, by default an empty one; `report`: takes the name of each
    check before it begins. Changes nothing on AWS. A check that AWS refuses gives a finding that says so. Raises ConfigError if the
    experiment contradicts the account file, UserError outside the partition `aws`, and botocore's error if there are no credentials.
    """
    credentials.check_partition(session.region_name)
    account = account or AccountFile()
    experiment = account.place_in_zone(experiment)
    for name, question in _list_checks(experiment, account):
        report(name)
        try:
            yield from question(session, experiment)
        except organisation.UNANSWERED_ERRORS as error:
            if name == "credentials" and isinstance(error, BotoCoreError):
                raise  # no credentials, or no endpoint in this region
            yield organisation.make_unasked_finding(name, error)


def _list_checks(experiment: Experiment, account: AccountFile) -> Iterator[tuple[str, AccountCheck]]:
    """Yield (name, check) for each check that applies to the experiment. The check is called with session and experiment; the name is used
    if AWS refuses it. `account`: the organisation's account file.
    """
    wanted = bill.infrastructure_of(experiment)
    yield "credentials", _check_credentials
    yield "region", _check_region
    yield "bootstrap", lambda session, experiment: iter([check_bootstrap(session)])
    yield "time to live", _check_time_to_live
    if account.permissions_boundary:
        yield "permissions boundary", partial(organisation.check_boundary, account=account)
    if account.kms_key:
        yield "own key", partial(organisation.check_key, account=account)
    if experiment.lifetime.notify:
        yield "topic", partial(_check_topic, account=account)
    if wanted.memory_mb:
        yield "Lambda concurrency", _check_functions
    yield "state machines", lambda session, experiment: iter([check_definitions(session, experiment)])
    if shared_stacks(experiment):
        yield "availability zone", organisation.check_zones
        yield "own network", partial(organisation.check_network, account=account)
        if not account.network.vpc:
            yield "VPC quota", organisation.check_network_quotas
        yield "VPC block public access", partial(organisation.check_public_access, own=account.network.vpc)
    if wanted.fleets:
        yield "vCPU quota", _check_processors
        yield "own image", partial(organisation.check_own_images, account=account)
        yield "image", partial(organisation.check_public_images, account=account)
        yield "allowed images", partial(organisation.check_allowed_images, account=account)
        yield (
            "EBS key" if account.kms_key else "default EBS key",
            partial(organisation.check_volumes_key, account=account),
        )


def _check_credentials(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield a successful finding that names the account and the user of the credentials. `experiment`: not used; all checks take it."""
    identity = session.client("sts").get_caller_identity()
    yield Finding("credentials", True, f"account {identity['Account']}, {identity['Arn'].rpartition(':')[2]}")


def _check_region(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding on the session's region. It fails if the experiment has a budget and the price file is of another region; without a
    budget it only says so.
    """
    region, priced = session.client("sts").meta.region_name, prices.load().region
    try:
        running_costs.check_prices(session, experiment)
    except UserError as error:
        yield Finding("region", False, str(error))
        return
    if region == priced:
        yield Finding("region", True, region)
    else:
        yield Finding("region", True, f"{region}; costs are shown at the prices of {priced} ({prices.load().as_of})")


def _check_time_to_live(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding on whether the experiment's time to live is longer than the expected deployment of the stacks that do not exist yet.
    Otherwise the clean-up would delete the first stacks while the last one is being created.
    """
    minutes = sum(
        each for name, each in expected_minutes(experiment).items() if stacks.find_stack(session, name) is None
    )
    hours = experiment.lifetime.ttl_hours
    detail = f"{hours:g} h, of which the deployment is expected to take {minutes} minutes"
    wrong = f"lifetime.ttl_hours: {detail}: its stacks would be deleted during their deployment; expected more than {minutes / 60:.2g}"
    yield Finding("time to live", fits := hours * 60 > minutes, detail if fits else wrong)


def _check_topic(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield a finding on the SNS topic to which the clean-up sends notifications: it must exist in the session's region and account, have a
    confirmed subscription, and be encrypted with no other key than the account file's.
    """
    topic, region = str(experiment.lifetime.notify), session.client("sns").meta.region_name
    here = session.client("sts").get_caller_identity()["Account"]
    wrong = f"lifetime.notify: {topic} is not in {region} of account {here}, where the clean-up runs, or does not exist"
    found: dict[str, str] = {}
    if topic.split(":")[3:5] == [region, here]:
        with deployed_clients.ToleratedErrors("NotFound"):
            found = session.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"]
    if not found:
        yield Finding("topic", False, f"{wrong}; aws sns create-topic makes one")
    elif (key := found.get("KmsMasterKeyId")) and key != account.kms_key:
        yield Finding(
            "topic",
            False,
            f"lifetime.notify: {topic} is encrypted by {key}, which the clean-up may not use",
            certain=False,
        )
    elif found.get("SubscriptionsConfirmed", "0") == "0":
        yield Finding(
            "topic",
            False,
            f"lifetime.notify: {topic} has no confirmed subscription; use aws sns subscribe, and confirm it",
            certain=False,
        )
    else:
        yield Finding("topic", True, f"{topic}, {found['SubscriptionsConfirmed']} confirmed subscriptions")


def _check_functions(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield two findings on the account's limits of Lambda: whether enough functions can run at once, and whether the largest function's
    memory is allowed. The second is inferred from the first, since no API reports that limit.
    """
    memory_mb = max(bill.infrastructure_of(experiment).memory_mb.values())
    limits = session.client("lambda").get_account_settings()["AccountLimit"]
    free, needed = limits["UnreservedConcurrentExecutions"], compute_concurrency(experiment)
    ask = "ask for more: Service Quotas, AWS Lambda, Concurrent executions (L-B99A9384)"
    detail = f"{free} free, {needed} functions run at once"
    yield Finding(
        "Lambda concurrency", free >= needed, detail if free >= needed else f"{detail}; {ask}, or fewer workers"
    )
    small = limits["ConcurrentExecutions"] <= NEW_ACCOUNT_CONCURRENCY and memory_mb > NEW_ACCOUNT_MEMORY_MB
    detail = f"largest function {memory_mb} MB"
    # No API reports this limit: it is inferred from the concurrency that new accounts start with.
    yield Finding(
        "Lambda memory",
        not small,
        f"{detail}; accounts this new stop at {NEW_ACCOUNT_MEMORY_MB} MB: ask AWS support, or lower functions.memory_mb"
        if small
        else detail,
        certain=False,
    )


def compute_concurrency(experiment: Experiment) -> int:
    """Return the largest number of Lambda functions that a run of the experiment has running at the same time, from the parallel branches
    and loops of its workflow.
    """
    architecture = architecture_of(experiment)
    minibatches = most_minibatches(experiment) or 1

    def count_at_once(node: Node) -> int:
        """Return the largest number of functions that run at the same time below this node of the workflow: 1 for a step, the
        largest of a sequence, the sum over parallel branches, and for a loop over workers or minibatches so many times its body's number.
        """
        match node:
            case InOrder(nodes=nodes):
                return max((count_at_once(each) for each in nodes), default=0)
            case Parallel(branches=branches):
                return sum(count_at_once(each) for each in branches)
            case ForEach(count=count, body=body):
                return count_at_once(body) * (experiment.workers if count == "workers" else minibatches)
            case Repeat(body=body) | Child(body=body):
                return count_at_once(body)
        return 1

    per_program = experiment.workers if architecture.program else 1
    return max((count_at_once(tree) for tree in trees(architecture)), default=0) * per_program


def _check_processors(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding for each EC2 quota of vCPUs that the experiment's instances count against: whether what is in use and what they need
    fit. Yields nothing if an instance type is not offered here.
    """
    fleets = bill.infrastructure_of(experiment).fleets
    vcpus = _load_vcpus(session, {each.instance_type for each in fleets})
    if not vcpus:
        return
    for (name, code), counted in _group_by_quota(fleets).items():
        needed = sum(fleet.count * vcpus[fleet.instance_type] for fleet in counted)
        words = " and ".join(f"{fleet.count} x {fleet.instance_type}" for fleet in counted)
        quota = session.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
        used = _count_vcpus_in_use(session, experiment, code)
        detail = f"{quota:.0f} vCPUs allowed, {f'{used} in use, ' if used else ''}{words} need {needed}"
        total = used + needed
        ask = f"; aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} --desired-value {total}"
        yield Finding(name, quota >= total, detail if quota >= total else detail + ask)


def _count_vcpus_in_use(session: Any, experiment: Experiment, code: str) -> int:
    """Return the number of vCPUs that instances other than the experiment's use, pending or running, of the quota with the code `code`; 0
    if one of their types is not offered in this region. The experiment's own are left out because they are part of its need.
    """
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    used = list[str]()
    for held in deployed_clients.list_items(session, "ec2", "describe_instances", "Reservations", Filters=states):
        for each in held["Instances"]:
            tags = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
            own = (tags.get("project"), tags.get("experiment")) == (experiment.project, experiment.name)
            kind, spot = each["InstanceType"], each.get("InstanceLifecycle") == "spot"
            if not own and any(re.match(of, kind) and codes[spot] == code for of, codes in QUOTAS.values()):
                used.append(kind)
    counted = _load_vcpus(session, set(used))
    return sum(counted.get(kind, 0) for kind in used)


def _load_vcpus(session: Any, types: set[str]) -> dict[str, int]:
    """Return {instance type: number of vCPUs}; empty if one of `types` is not offered, which another check reports."""
    found = dict[str, int]()
    with deployed_clients.ToleratedErrors("InvalidInstanceType"):
        listed = (
            session.client("ec2").describe_instance_types(InstanceTypes=sorted(types))["InstanceTypes"] if types else []
        )
        found |= {each["InstanceType"]: int(each["VCpuInfo"]["DefaultVCpus"]) for each in listed}
    return found


def _group_by_quota(fleets: Iterable[bill.Fleet]) -> dict[tuple[str, str], list[bill.Fleet]]:
    """Return the fleets grouped by the quota of vCPUs that they count against, {(name, code): fleets}. Fleets of instance classes that are
    not in QUOTAS are left out.
    """
    found: dict[tuple[str, str], list[bill.Fleet]] = {}
    for fleet in fleets:
        for name, (families, codes) in QUOTAS.items():
            if re.match(families, fleet.instance_type):
                found.setdefault((name, codes[fleet.spot]), []).append(fleet)
    return found
