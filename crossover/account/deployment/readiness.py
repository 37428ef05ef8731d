"""Is an account ready for an experiment: bootstrap, concurrency, memory, quotas of vCPUs, a zone. Nothing is changed by asking."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from crossover.account import standing
from crossover.account.deployment import bootstrap, organisation, state_machines, surroundings, zones
from crossover.account.deployment.finding import Finding
from crossover.account.deployment.minutes import expected_minutes
from crossover.account.resources import stacks
from crossover.architecture import architecture_of, trees
from crossover.architecture.infrastructure import most_minibatches, shared_stacks
from crossover.clients import aws_calls
from crossover.costs import infrastructure, prices
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.validation.account_file import AccountFile
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence

# vCPUs by class of instances: what its types begin with, the quota's code on demand and as spot.
# Source: docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
QUOTAS = {
    "vCPU quota": (r"(a|c|d|h|i|im|is|m|r|t|z)\d", {False: "L-1216C47A", True: "L-34B43A08"}),
    "GPU quota": (r"(g|gr|vt)\d", {False: "L-DB2E81BA", True: "L-3819A6DF"}),
    "P4 quota": (r"p4", {False: "L-417A185B", True: "L-7212CCBC"}),
    "P5 quota": (r"p5", {False: "L-417A185B", True: "L-C4BD4855"}),
}
Asking = Callable[[Any, Experiment], Iterator[Finding]]
# Of a region, or a quota, that does not know the question.
NO_ANSWER = {"NoSuchResourceException", "InvalidAction", "UnsupportedOperation"}
NEW_ACCOUNT_CONCURRENCY, NEW_ACCOUNT_MEMORY_MB = 10, 3_008


def examine(session: Any, experiment: Experiment, account: AccountFile | None = None) -> Iterator[Finding]:
    """One finding per requirement, in the order in which they matter. `account`: what an organisation says of its own. Raises ConfigError
    where the experiment contradicts that.
    """
    account = account or AccountFile()
    experiment = account.placed(experiment)
    identity = session.client("sts").get_caller_identity()
    yield Finding("credentials", True, f"account {identity['Account']}, {identity['Arn'].rpartition(':')[2]}")
    for name, question in _questions(session, experiment, account, caller=identity["Arn"]):
        try:
            yield from question(session, experiment)
        except ClientError as error:
            code = aws_calls.code_of(error)
            if code not in aws_calls.DENIED | NO_ANSWER:
                raise
            how = "denied" if code in aws_calls.DENIED else "not answered"
            yield Finding(
                name, True, f"not asked: {error.operation_name} was {how} ({code})", certain=False, asked=False
            )


def _questions(
    session: Any, experiment: Experiment, account: AccountFile, *, caller: str
) -> Iterator[tuple[str, Asking]]:
    """Each with the name under which a refused one is told."""
    wanted = infrastructure.of(experiment)
    yield "region", _region
    yield "bootstrap", lambda session, experiment: iter([bootstrap.finding(session)])
    yield "time to live", _time_to_live
    if account.permissions_boundary:
        yield "permissions boundary", partial(organisation.boundary, account=account)
    if account.kms_key:
        yield "own key", partial(organisation.key, account=account)
    if experiment.lifetime.notify:
        yield "topic", partial(_topic, account=account)
    if wanted.memory_mb:
        yield "Lambda concurrency", _functions
    yield (
        "state machines",
        lambda session, experiment: iter([state_machines.finding(session, experiment, caller=caller)]),
    )
    if shared_stacks(experiment):
        yield "availability zone", zones.findings
        yield "own network", partial(organisation.network, account=account)
        if not account.network.vpc:
            yield "VPC quota", surroundings.network_quotas
        yield "VPC block public access", partial(surroundings.public_access, own=account.network.vpc)
    if wanted.fleets:
        yield "vCPU quota", _processors
        yield "own image", partial(organisation.images, account=account)
        yield "image", partial(surroundings.images, account=account)
        yield "allowed images", partial(surroundings.allowed_images, account=account)
        yield "EBS key" if account.kms_key else "default EBS key", partial(surroundings.volumes_key, account=account)


def _region(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """One that AWS has, as far as botocore knows; prices are of one region alone, which is said."""
    region, priced = session.client("sts").meta.region_name, prices.load().region
    try:
        standing.check_prices(session, experiment)
    except UserError as error:
        yield Finding("region", False, str(error))
        return
    if region == priced:
        yield Finding("region", True, region)
    else:
        yield Finding("region", True, f"{region}; costs are shown at the prices of {priced} ({prices.load().as_of})")


def _time_to_live(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """The clean-up would delete the first stacks while the last one is made."""
    minutes = sum(each for name, each in expected_minutes(experiment).items() if stacks.look(session, name) is None)
    hours = experiment.lifetime.ttl_hours
    detail = f"{hours:g} h, of which the deployment is expected to take {minutes} minutes"
    wrong = f"lifetime.ttl_hours: {detail}: its stacks would be deleted while they are made; expected more than {minutes / 60:.2g}"
    yield Finding("time to live", fits := hours * 60 > minutes, detail if fits else wrong)


def _topic(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """The clean-up may publish to topics of its own region and account, under no key of the account's own."""
    topic, region = str(experiment.lifetime.notify), session.client("sns").meta.region_name
    here = session.client("sts").get_caller_identity()["Account"]
    wrong = f"lifetime.notify: {topic} is not in {region} of account {here}, where the clean-up stands, or is not there"
    found: dict[str, str] = {}
    if topic.split(":")[3:5] == [region, here]:
        with aws_calls.Tolerating("NotFound"):
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
            "topic", False, f"lifetime.notify: nobody hears {topic}; aws sns subscribe, and confirm it", certain=False
        )
    else:
        yield Finding("topic", True, f"{topic}, {found['SubscriptionsConfirmed']} confirmed subscriptions")


def _functions(session: Any, experiment: Experiment) -> Iterator[Finding]:
    memory_mb = max(infrastructure.of(experiment).memory_mb.values())
    limits = session.client("lambda").get_account_settings()["AccountLimit"]
    free, needed = limits["UnreservedConcurrentExecutions"], concurrency(experiment)
    ask = "ask for more: Service Quotas, AWS Lambda, Concurrent executions (L-B99A9384)"
    detail = f"{free} free, {needed} functions run at once"
    yield Finding(
        "Lambda concurrency", free >= needed, detail if free >= needed else f"{detail}; {ask}, or fewer workers"
    )
    small = limits["ConcurrentExecutions"] <= NEW_ACCOUNT_CONCURRENCY and memory_mb > NEW_ACCOUNT_MEMORY_MB
    detail = f"largest function {memory_mb} MB"
    # No API tells this limit: it is inferred from the concurrency that new accounts start with.
    yield Finding(
        "Lambda memory",
        not small,
        f"{detail}; accounts this new stop at {NEW_ACCOUNT_MEMORY_MB} MB: ask AWS support, or lower functions.memory_mb"
        if small
        else detail,
        certain=False,
    )


def concurrency(experiment: Experiment) -> int:
    """Functions at work at the same time, at most: the tree's parallel iterations multiplied out."""
    architecture = architecture_of(experiment)
    minibatches = most_minibatches(experiment) or 1

    def most(node: Node) -> int:
        match node:
            case Sequence(nodes=nodes):
                return max((most(each) for each in nodes), default=0)
            case Parallel(branches=branches):
                return sum(most(each) for each in branches)
            case ForEach(count=count, body=body):
                return most(body) * (experiment.workers if count == "workers" else minibatches)
            case Repeat(body=body) | Child(body=body):
                return most(body)
        return 1

    per_program = experiment.workers if architecture.program else 1
    return max((most(tree) for tree in trees(architecture)), default=0) * per_program


def _processors(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Instances count by their vCPUs, which each class has a quota of."""
    fleets = infrastructure.of(experiment).fleets
    vcpus = _vcpus(session, {each.instance_type for each in fleets})
    if not vcpus:
        return
    for (name, code), counted in _by_quota(fleets).items():
        needed = sum(fleet.count * vcpus[fleet.instance_type] for fleet in counted)
        words = " and ".join(f"{fleet.count} x {fleet.instance_type}" for fleet in counted)
        quota = session.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
        used = _in_use(session, experiment, code)
        detail = f"{quota:.0f} vCPUs allowed, {f'{used} in use, ' if used else ''}{words} need {needed}"
        total = used + needed
        ask = f"; aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} --desired-value {total}"
        yield Finding(name, quota >= total, detail if quota >= total else detail + ask)


def _in_use(session: Any, experiment: Experiment, code: str) -> int:
    """vCPUs that others' instances take of the quota; this experiment's own are counted as needed."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    used = list[str]()
    for held in aws_calls.entries(session, "ec2", "describe_instances", "Reservations", Filters=states):
        for each in held["Instances"]:
            tags = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
            own = (tags.get("project"), tags.get("experiment")) == (experiment.project, experiment.name)
            kind, spot = each["InstanceType"], each.get("InstanceLifecycle") == "spot"
            if not own and any(re.match(of, kind) and codes[spot] == code for of, codes in QUOTAS.values()):
                used.append(kind)
    counted = _vcpus(session, set(used))
    return sum(counted.get(kind, 0) for kind in used)


def _vcpus(session: Any, types: set[str]) -> dict[str, int]:
    """By type; nothing where one of them is not offered, which is a finding already."""
    found = dict[str, int]()
    with aws_calls.Tolerating("InvalidInstanceType"):
        listed = (
            session.client("ec2").describe_instance_types(InstanceTypes=sorted(types))["InstanceTypes"] if types else []
        )
        found |= {each["InstanceType"]: int(each["VCpuInfo"]["DefaultVCpus"]) for each in listed}
    return found


def _by_quota(fleets: Iterable[infrastructure.Fleet]) -> dict[tuple[str, str], list[infrastructure.Fleet]]:
    """By name and code of the quota. Classes that no configuration of ours uses have others, which AWS tells at their start."""
    found: dict[tuple[str, str], list[infrastructure.Fleet]] = {}
    for fleet in fleets:
        for name, (families, codes) in QUOTAS.items():
            if re.match(families, fleet.instance_type):
                found.setdefault((name, codes[fleet.spot]), []).append(fleet)
    return found
