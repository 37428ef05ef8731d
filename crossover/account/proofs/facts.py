"""What an account showed of each fact that docs/aws.md calls unproven: one small check per fact.

A check reads the evidence and says proven, refuted or not covered, with what it saw. Those that need the deployment standing are called
before it is destroyed, the others afterwards. A fact that nothing here can decide stands in NOT_COVERED with the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from crossover.account import price_list
from crossover.account.deployment import readiness
from crossover.account.proofs import facts_of_steps
from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import Checks, Observed, judged, uncovered
from crossover.account.resources.listings import FLEET, INSTANCE
from crossover.asl import INLINE_MAP_LIMIT
from crossover.costs import prices
from crossover.errors import CrossoverError

INIT_LIMIT_S = 10.0  # of Lambda, before INIT is started again inside the first invocation
REDIS_BOOT_LIMIT_MIN = 20.0
BROKER_MINUTES, BROKER_TOLERANCE = 18.0, 0.5
QUICK_DELETION_MIN = 10.0
LINGERING_MIN = 15.0
GPU_BOOT_LIMIT_MIN = 5.0
ROOT_DEVICE = "/dev/xvda"


# --- while it stands --------------------------------------------------------------------------------------------------


def redis_host_boots(evidence: Evidence) -> Observed:
    waits = [made.minutes for made in evidence.made if made.kind == "AWS::CloudFormation::WaitCondition"]
    if not waits:
        return uncovered("no wait condition among the stack's events")
    return judged(
        max(waits) < REDIS_BOOT_LIMIT_MIN,
        f"the hosts reported after {max(waits):.1f} min",
        value=max(waits),
        unit="min",
    )


def root_volume(evidence: Evidence) -> Observed:
    mine = [{"Name": "instance-id", "Values": evidence.owner.ids(INSTANCE)}]
    paginator = evidence.client("ec2").get_paginator("describe_instances")
    pages = paginator.paginate(Filters=mine) if evidence.owner.ids(INSTANCE) else []
    hosts = [
        host
        for page in pages
        for reservation in page["Reservations"]
        for host in reservation["Instances"]
        if {"Key": "crossover:role", "Value": "redis"} in host.get("Tags", [])
        and host["State"]["Name"] in ("pending", "running")
    ]
    if not hosts:
        return uncovered("no Redis host runs")
    roots = sorted({str(host.get("RootDeviceName")) for host in hosts})
    most = max(len(host.get("BlockDeviceMappings", [])) for host in hosts)
    return judged(roots == [ROOT_DEVICE] and most == 1, f"root device {', '.join(roots)}; {most} volume(s) per host")


def redis_certificates(evidence: Evidence) -> Observed:
    if not evidence.on_aws:
        return uncovered("the cloud on one machine runs Redis without TLS")
    if evidence.run is None:
        return uncovered("no run ended")
    requests = evidence.run.result["traffic"]["tensor_store"]["requests"]
    finished = evidence.run.result["outcome"] == "finished"
    if not requests:
        return uncovered("this architecture has no tensor database")
    return judged(finished, f"{requests} requests over TLS; the run {evidence.run.result['outcome']}", value=requests)


def broker_minutes(evidence: Evidence) -> Observed:
    found = [made.minutes for made in evidence.made if made.kind == "AWS::AmazonMQ::Broker"]
    if not found:
        return uncovered("no broker among the stacks' events")
    near = abs(found[0] - BROKER_MINUTES) <= BROKER_TOLERANCE * BROKER_MINUTES
    return judged(near, f"made in {found[0]:.1f} min", value=found[0], unit="min")


def cold_import(evidence: Evidence) -> Observed:
    starts = [
        report.init_ms / 1_000
        for report in evidence.reports.values()
        if report.init_ms is not None and report.function in evidence.torch_functions
    ]
    if not starts:
        return uncovered("no cold start of a function with PyTorch was reported")
    seen = f"INIT of {len(starts)} functions with PyTorch: {min(starts):.2f} to {max(starts):.2f} s"
    return judged(max(starts) < INIT_LIMIT_S, seen, value=max(starts), unit="s")


def layer_size(evidence: Evidence) -> Observed:
    two = [each for each in evidence.functions if len(each.get("Layers", [])) == 2]
    if not two:
        return uncovered("no function with both layers")
    return _all_active(two, "with both layers")


def interfaces_denied_to_code(evidence: Evidence) -> Observed:
    if not evidence.on_aws:
        return uncovered("the cloud on one machine gives functions no network interfaces")
    inside = [each for each in evidence.functions if each.get("VpcConfig", {}).get("VpcId")]
    if not inside:
        return uncovered("no function in the VPC")
    return _all_active(inside, "in the VPC")


def _all_active(functions: Sequence[Mapping[str, Any]], which: str) -> Observed:
    active = sum(each.get("State", "Active") == "Active" for each in functions)
    return judged(active == len(functions), f"{active} of {len(functions)} functions {which} are active")


def image_packaging(evidence: Evidence) -> Observed:
    if evidence.experiment.functions.packaging != "image":
        return uncovered("the functions came as layers; a config with functions.packaging: image would show it")
    if evidence.run is None:
        return uncovered("no run ended")
    outcome = evidence.run.result["outcome"]
    return judged(outcome == "finished", f"deployed as an image; the run {outcome}")


def distributed_maps(evidence: Evidence) -> Observed:
    """Every minibatch's function of one worker and round at work at the same moment."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in evidence.records:
        groups.setdefault((record["step"], record["worker"], record["round"]), []).append(record)
    widest = max(groups.values(), key=lambda each: len({r["minibatch"] for r in each}), default=[])
    items = len({record["minibatch"] for record in widest})
    if items <= INLINE_MAP_LIMIT:
        return uncovered(
            f"the widest map had {items} iterations; a config with more than {INLINE_MAP_LIMIT} would show it"
        )
    together = _most_at_once(widest)
    return judged(together == items, f"{together} of {items} iterations at once", value=together)


def _most_at_once(records: Sequence[Mapping[str, Any]]) -> int:
    moments = [(float(each["started_at"]), 1) for each in records]
    moments += [(float(each["started_at"]) + float(each["wall_s"]), -1) for each in records]
    now = most = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


def new_account_memory(evidence: Evidence) -> Observed:
    """In an account as new as that, one function is asked to take a megabyte more; it is destroyed soon anyway."""
    from botocore.exceptions import ClientError

    client = evidence.client("lambda")
    limit = client.get_account_settings()["AccountLimit"]["ConcurrentExecutions"]
    if limit > readiness.NEW_ACCOUNT_CONCURRENCY or not evidence.functions:
        return uncovered(f"this account has {limit} concurrent executions: it is not new")
    name = evidence.functions[0]["FunctionName"]
    try:
        client.update_function_configuration(FunctionName=name, MemorySize=readiness.NEW_ACCOUNT_MEMORY_MB + 1)
    except ClientError as error:
        return judged(True, f"{readiness.NEW_ACCOUNT_MEMORY_MB + 1} MB refused: {error.response['Error']['Message']}")
    return judged(False, f"{readiness.NEW_ACCOUNT_MEMORY_MB + 1} MB accepted with {limit} concurrent executions")


def reports_joined(evidence: Evidence) -> Observed:
    functions = [each for each in evidence.records if not each.get("instance_type")]
    if not functions:
        return uncovered("no function ran")
    found = sum(1 for each in functions if each["request_id"] in evidence.reports)
    return judged(found == len(functions), f"{found} of {len(functions)} records found theirs", value=found)


def reports_billed(evidence: Evidence) -> Observed:
    """The bill itself comes a day later; whether the reports bill INIT is seen at once."""
    cold = [each for each in evidence.reports.values() if each.init_ms is not None]
    with_init = sum(1 for each in cold if each.billed_ms >= int(each.duration_ms + (each.init_ms or 0.0)))
    billed_s = sum(each.billed_ms for each in evidence.reports.values()) / 1_000
    seen = f"{with_init} of {len(cold)} cold starts bill INIT; {billed_s:.1f} s in all: compare with the bill in a day"
    return Observed(verdict="not covered", seen=seen, value=billed_s, unit="s billed")


def unverified_prices(evidence: Evidence) -> Observed:
    listed = prices.load()
    items = [item for item, price in listed.items.items() if not price.verified]
    if not items:
        return uncovered("every price is verified")
    try:
        now = {item: price_list.current(evidence.session, item, region=listed.region) for item in items}
    except CrossoverError as error:
        return uncovered(str(error))
    except Exception as error:  # the API is one more permission, or not there: that refutes no price
        return uncovered(f"the Price List API did not answer: {type(error).__name__}")
    seen = ", ".join(f"{item} {now[item]:g} (listed {listed.of(item).usd:g})" for item in items)
    return judged(all(abs(now[item] - listed.of(item).usd) < 1e-9 for item in items), seen)


def gpu_image(evidence: Evidence) -> Observed:
    """Whatever wrote a record had found its image, fetched its code and started the service."""
    ranks = {each["worker"] for each in evidence.records if each.get("instance_type")}
    if evidence.experiment.module != "gpu" or not ranks:
        return uncovered("no GPU instance ran")
    return judged(True, f"{len(ranks)} instance(s) booted it and trained", value=len(ranks))


def gpu_boots(evidence: Evidence) -> Observed:
    started = [float(each["started_at"]) for each in evidence.records if each.get("instance_type")]
    if evidence.experiment.module != "gpu" or not started:
        return uncovered("no GPU instance ran")
    scaling = evidence.client("autoscaling")
    launches = [
        activity["StartTime"].timestamp()
        for name in evidence.owner.ids(FLEET)
        for activity in scaling.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
        if activity["StartTime"].timestamp() < min(started)
    ]
    if not launches:
        return uncovered("no launch was recorded")
    minutes = (min(started) - max(launches)) / 60
    return judged(
        minutes <= GPU_BOOT_LIMIT_MIN, f"{minutes:.1f} min from launch to first step", value=minutes, unit="min"
    )


# --- afterwards -------------------------------------------------------------------------------------------------------


def experiment_goes_quickly(evidence: Evidence) -> Observed:
    minutes = evidence.minutes.get("experiment deleted")
    if minutes is None:
        return uncovered("the experiment's deletion was not seen")
    return judged(minutes < QUICK_DELETION_MIN, f"gone after {minutes:.1f} min", value=minutes, unit="min")


def interfaces_linger(evidence: Evidence) -> Observed:
    if not evidence.on_aws:
        return uncovered("the cloud on one machine gives functions no network interfaces")
    minutes = evidence.minutes.get("network deleted")
    if evidence.interfaces_left is None or minutes is None or not evidence.network_deleted:
        return uncovered("the network was not deleted")
    seen = f"{evidence.interfaces_left} interfaces left when the experiment was gone; the network went in {minutes:.1f} min"
    return judged(evidence.interfaces_left > 0 and minutes >= LINGERING_MIN, seen, value=minutes, unit="min")


STANDING: Checks = {
    "redis-host-boots": redis_host_boots,
    "root-volume": root_volume,
    "redis-certificates": redis_certificates,
    "broker-minutes": broker_minutes,
    "cold-import": cold_import,
    "layer-size": layer_size,
    "interfaces-denied-to-code": interfaces_denied_to_code,
    "image-packaging": image_packaging,
    "distributed-maps": distributed_maps,
    "new-account-memory": new_account_memory,
    "reports-joined": reports_joined,
    "reports-billed": reports_billed,
    "unverified-prices": unverified_prices,
    "gpu-image": gpu_image,
    "gpu-boots": gpu_boots,
    **facts_of_steps.STANDING,
}
UPDATED, REDRIVEN = facts_of_steps.UPDATED, facts_of_steps.REDRIVEN
AFTERWARDS: Checks = {
    "experiment-goes-quickly": experiment_goes_quickly,
    "interfaces-linger": interfaces_linger,
    **facts_of_steps.AFTERWARDS,
}
NOT_COVERED: Mapping[str, str] = {
    "broker-limits": "the broker is private, and two workers open few connections",
    "amqp-per-invocation": "a choice of the design: nothing that runs would show the other",
}
