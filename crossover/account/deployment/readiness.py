"""Is an account ready for an experiment: bootstrap, concurrency, memory, quotas of vCPUs, a zone. Nothing is changed by asking."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from crossover.account.deployment import bootstrap, state_machines, zones
from crossover.account.deployment.finding import Finding
from crossover.account.deployment.minutes import expected_minutes
from crossover.account.resources import stacks
from crossover.architecture import architecture_of, trees
from crossover.architecture.infrastructure import most_minibatches, shared_stacks
from crossover.clients import aws_calls
from crossover.costs import infrastructure, prices
from crossover.experiment import Experiment
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence

# vCPUs by class of instances: what its types begin with, the quota's code on demand and as spot.
# Source: docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
QUOTAS = {
    "vCPU quota": (r"(a|c|d|h|i|im|is|m|r|t|z)\d", {False: "L-1216C47A", True: "L-34B43A08"}),
    "GPU quota": (r"(g|gr|vt)\d", {False: "L-DB2E81BA", True: "L-3819A6DF"}),
}
NEW_ACCOUNT_CONCURRENCY, NEW_ACCOUNT_MEMORY_MB = 10, 3_008


def examine(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """One finding per requirement, in the order in which they matter."""
    identity = session.client("sts").get_caller_identity()
    yield Finding("credentials", True, f"account {identity['Account']}, {identity['Arn'].rpartition(':')[2]}")
    yield _region(session)
    yield bootstrap.finding(session)
    yield _time_to_live(session, experiment)
    if topic := experiment.lifetime.notify:
        yield _topic(session, topic)
    wanted = infrastructure.of(experiment)
    if wanted.memory_mb:
        yield from _functions(session, experiment, max(wanted.memory_mb.values()))
    yield state_machines.finding(session, experiment, caller=identity["Arn"])
    if shared_stacks(experiment):
        yield from zones.findings(session, experiment)
    if wanted.fleets:
        yield from _processors(session, experiment)


def _region(session: Any) -> Finding:
    """One that AWS has, as far as botocore knows; prices are of one region alone, which is said."""
    region, priced = session.client("sts").meta.region_name, prices.load().region
    if region == priced:
        return Finding("region", True, region)
    return Finding("region", True, f"{region}; costs are shown at the prices of {priced}")


def _time_to_live(session: Any, experiment: Experiment) -> Finding:
    """The clean-up would delete the first stacks while the last one is made."""
    minutes = sum(each for name, each in expected_minutes(experiment).items() if stacks.look(session, name) is None)
    hours = experiment.lifetime.ttl_hours
    detail = f"{hours:g} h, of which the deployment is expected to take {minutes} minutes"
    wrong = f"lifetime.ttl_hours: {detail}: its stacks would be deleted while they are made; expected more than {minutes / 60:.2g}"
    return Finding("time to live", fits := hours * 60 > minutes, detail if fits else wrong)


def _topic(session: Any, topic: str) -> Finding:
    region = session.client("sns").meta.region_name
    if topic.split(":")[3] != region:
        return Finding(
            "topic",
            False,
            f"lifetime.notify: {topic} is not in {region}, where the clean-up stands; expected a topic there",
        )
    with aws_calls.Tolerating("NotFound"):
        confirmed = (
            session.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"].get("SubscriptionsConfirmed", "0")
        )
        return Finding("topic", True, f"{topic}, {confirmed} confirmed subscriptions")
    return Finding("topic", False, f"lifetime.notify: there is no topic {topic}; aws sns create-topic makes one")


def _functions(session: Any, experiment: Experiment, memory_mb: int) -> Iterator[Finding]:
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
    fleets, vcpus = infrastructure.of(experiment).fleets, dict[str, int]()
    with aws_calls.Tolerating("InvalidInstanceType"):  # that it is not offered is a finding already
        types = sorted({each.instance_type for each in fleets})
        listed = session.client("ec2").describe_instance_types(InstanceTypes=types)["InstanceTypes"]
        vcpus |= {each["InstanceType"]: int(each["VCpuInfo"]["DefaultVCpus"]) for each in listed}
    if not vcpus:
        return
    for (name, code), counted in _by_quota(fleets).items():
        needed = sum(fleet.count * vcpus[fleet.instance_type] for fleet in counted)
        words = " and ".join(f"{fleet.count} x {fleet.instance_type}" for fleet in counted)
        quota = session.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]
        detail = f"{quota:.0f} vCPUs allowed, {words} need {needed}"
        ask = f"; aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {code} --desired-value {needed}"
        yield Finding(name, quota >= needed, detail if quota >= needed else detail + ask)


def _by_quota(fleets: Iterable[infrastructure.Fleet]) -> dict[tuple[str, str], list[infrastructure.Fleet]]:
    """By name and code of the quota. Classes that no configuration of ours uses have others, which AWS tells at their start."""
    found: dict[tuple[str, str], list[infrastructure.Fleet]] = {}
    for fleet in fleets:
        for name, (families, codes) in QUOTAS.items():
            if re.match(families, fleet.instance_type):
                found.setdefault((name, codes[fleet.spot]), []).append(fleet)
    return found
