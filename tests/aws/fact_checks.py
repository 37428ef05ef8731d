"""What an account showed of each fact that docs/aws.md calls unproven: one small check per fact.

A check reads the evidence and says proven, refuted or not covered, with what it saw. Those here need the deployment standing; the others
are in afterwards.py. A fact that no check can decide stands in NOT_COVERED with the reason.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from crossover.errors import CrossoverError
from crossover.reports import prices
from crossover.running import preflight, price_list
from crossover.running.account import FLEET, list_instances
from crossover.simulation.calibration import INIT_LIMIT_S
from crossover.workflow.state_machines import INLINE_MAP_LIMIT
from tests.aws.evidence import Evidence, Lacking, known, needs
from tests.aws.observed import Observed, check, checks_in, judged

REDIS_BOOT_LIMIT_MIN = 20.0
BROKER_MINUTES, BROKER_TOLERANCE = 10.0, 0.5
GPU_BOOT_LIMIT_MIN = 5.0
ROOT_DEVICE = "/dev/xvda"
STACK_TAG = "aws:cloudformation:stack-id"
STANDARD_VCPUS = "L-1216C47A"
BROKER = "AWS::AmazonMQ::Broker"


@check
def redis_host_boots(evidence: Evidence) -> Observed:
    """Return whether Redis hosts report within the limit, and the minutes."""
    waits = evidence.made.get(preflight.HOST_TYPE, [])
    needs(waits, "no wait condition among the stack's events")
    return judged(
        max(waits) < REDIS_BOOT_LIMIT_MIN,
        f"the hosts reported after {max(waits):.1f} min",
        value=max(waits),
        unit="min",
    )


@check
def root_volume(evidence: Evidence) -> Observed:
    """Return whether Redis hosts have exactly one volume, with the expected root device."""
    running = list_instances(evidence.session, evidence.owner, states=["pending", "running"])
    hosts = [each for each in running if {"Key": "crossover:role", "Value": "redis"} in each.get("Tags", [])]
    needs(hosts, "no Redis host runs")
    roots = sorted({str(host.get("RootDeviceName")) for host in hosts})
    most = max(len(host.get("BlockDeviceMappings", [])) for host in hosts)
    return judged(roots == [ROOT_DEVICE] and most == 1, f"root device {', '.join(roots)}; {most} volume(s) per host")


@check
def broker_minutes(evidence: Evidence) -> Observed:
    """Return whether the broker is created in about the documented time, and the minutes."""
    found = evidence.made.get(BROKER, [])
    needs(found, "no broker among the stacks' events")
    near = abs(found[0] - BROKER_MINUTES) <= BROKER_TOLERANCE * BROKER_MINUTES
    return judged(near, f"made in {found[0]:.1f} min", value=found[0], unit="min")


@check
def cold_import(evidence: Evidence) -> Observed:
    """Return whether functions with PyTorch start within Lambda's limit of INIT, and the seconds."""
    starts = [
        report.init_ms / 1_000
        for report in evidence.reports.values()
        if report.init_ms is not None and report.function in evidence.torch_functions
    ]
    needs(starts, "no cold start of a function with PyTorch was reported")
    seen = f"INIT of {len(starts)} functions with PyTorch: {min(starts):.2f} to {max(starts):.2f} s"
    return judged(max(starts) < INIT_LIMIT_S, seen, value=max(starts), unit="s")


@check
def layer_size(evidence: Evidence) -> Observed:
    """Return whether Lambda accepts functions with both layers."""
    two = [each for each in evidence.functions if len(each.get("Layers", [])) == 2]
    needs(two, "no function with both layers")
    return _all_active(two, "with both layers")


@check
def interfaces_denied_to_code(evidence: Evidence) -> Observed:
    """Return whether functions in the VPC work without permissions for network interfaces."""
    needs(evidence.on_aws, "the cloud on one machine gives functions no network interfaces")
    inside = [each for each in evidence.functions if each.get("VpcConfig", {}).get("VpcId")]
    needs(inside, "no function in the VPC")
    return _all_active(inside, "in the VPC")


def _all_active(functions: Sequence[Mapping[str, Any]], which: str) -> Observed:
    """Return whether all of these functions are active. `which`: the functions in words."""
    active = sum(each.get("State", "Active") == "Active" for each in functions)
    return judged(active == len(functions), f"{active} of {len(functions)} functions {which} are active")


@check
def image_packaging(evidence: Evidence) -> Observed:
    """Return whether a run with functions packaged as images finishes."""
    as_image = evidence.experiment.functions.packaging == "image"
    needs(as_image, "the functions came as layers; a config with functions.packaging: image would show it")
    outcome = evidence.result["outcome"]
    return judged(outcome == "finished", f"deployed as an image; the run {outcome}")


@check
def distributed_maps(evidence: Evidence) -> Observed:
    """Return whether the functions for all minibatches of one worker and round run at the same time."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in evidence.records:
        groups.setdefault((record["step"], record["worker"], record["round"]), []).append(record)
    widest = max(groups.values(), key=lambda each: len({r["minibatch"] for r in each}), default=[])
    items = len({record["minibatch"] for record in widest})
    needs(
        items > INLINE_MAP_LIMIT,
        f"the widest map had {items} iterations; a config with more than {INLINE_MAP_LIMIT} would show it",
    )
    together = _most_at_once(widest)
    return judged(together == items, f"{together} of {items} iterations at once", value=together)


def _most_at_once(records: Sequence[Mapping[str, Any]]) -> int:
    """Return how many of the recorded invocations ran at the same time at most."""
    moments = [(float(each["started_at"]), 1) for each in records]
    moments += [(float(each["started_at"]) + float(each["wall_s"]), -1) for each in records]
    return max(accumulate(change for _, change in sorted(moments)))


@check
def new_account_memory(evidence: Evidence) -> Observed:
    """Return whether a new account limits the memory of functions; tries to raise one function's memory by 1 MB."""
    from botocore.exceptions import ClientError

    client = evidence.client("lambda")
    limit = client.get_account_settings()["AccountLimit"]["ConcurrentExecutions"]
    new = limit <= preflight.NEW_ACCOUNT_CONCURRENCY and evidence.functions
    needs(new, f"this account has {limit} concurrent executions: it is not new")
    name = evidence.functions[0]["FunctionName"]
    try:
        client.update_function_configuration(FunctionName=name, MemorySize=preflight.NEW_ACCOUNT_MEMORY_MB + 1)
    except ClientError as error:
        return judged(True, f"{preflight.NEW_ACCOUNT_MEMORY_MB + 1} MB refused: {error.response['Error']['Message']}")
    return judged(False, f"{preflight.NEW_ACCOUNT_MEMORY_MB + 1} MB accepted with {limit} concurrent executions")


@check
def reports_joined(evidence: Evidence) -> Observed:
    """Return whether each record has a report of Lambda with the same request id."""
    functions = [each for each in evidence.records if not each.get("instance_type")]
    needs(functions, "no function ran")
    found = sum(1 for each in functions if each["request_id"] in evidence.reports)
    return judged(found == len(functions), f"{found} of {len(functions)} records found theirs", value=found)


@check
def reports_billed(evidence: Evidence) -> Observed:
    """Return whether Lambda's reports bill INIT; the bill itself comes a day later."""
    cold = [each for each in evidence.reports.values() if each.init_ms is not None]
    with_init = sum(1 for each in cold if each.billed_ms >= int(each.duration_ms + (each.init_ms or 0.0)))
    billed_s = sum(each.billed_ms for each in evidence.reports.values()) / 1_000
    seen = f"{with_init} of {len(cold)} cold starts bill INIT; {billed_s:.1f} s in all: compare with the bill in a day"
    return Observed("not covered", seen, billed_s, "s billed")


@check
def unverified_prices(evidence: Evidence) -> Observed:
    """Return whether AWS's Price List confirms the prices that nobody has verified."""
    listed = prices.load()
    items = [item for item, price in listed.items.items() if not price.verified]
    needs(items, "every price is verified")
    try:
        now = {item: price_list.fetch_price(evidence.session, item, region=listed.region) for item in items}
    except CrossoverError as error:
        raise Lacking(str(error)) from error
    except Exception as error:  # the API is one more permission, or not there: that refutes no price
        raise Lacking(f"the Price List API did not answer: {type(error).__name__}") from error
    seen = ", ".join(f"{item} {now[item]:g} (listed {listed.of(item).usd:g})" for item in items)
    return judged(all(abs(now[item] - listed.of(item).usd) < 1e-9 for item in items), seen)


@check
def gpu_image(evidence: Evidence) -> Observed:
    """Return whether GPU instances boot from their image and train; a record of one proves it."""
    ranks = {each["worker"] for each in evidence.records if each.get("instance_type")}
    needs(evidence.experiment.module == "gpu" and ranks, "no GPU instance ran")
    return judged(True, f"{len(ranks)} instance(s) booted it and trained", value=len(ranks))


@check
def gpu_boots(evidence: Evidence) -> Observed:
    """Return whether a GPU instance boots within the limit, and the minutes."""
    started = [float(each["started_at"]) for each in evidence.records if each.get("instance_type")]
    needs(evidence.experiment.module == "gpu" and started, "no GPU instance ran")
    scaling = evidence.client("autoscaling")
    launches = [
        activity["StartTime"].timestamp()
        for name in evidence.owner.list_ids(FLEET)
        for activity in scaling.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
        if activity["StartTime"].timestamp() < min(started)
    ]
    needs(launches, "no launch was recorded")
    minutes = (min(started) - max(launches)) / 60
    return judged(
        minutes <= GPU_BOOT_LIMIT_MIN, f"{minutes:.1f} min from launch to first step", value=minutes, unit="min"
    )


@check
def definitions_accepted(evidence: Evidence) -> Observed:
    """Return whether AWS accepts all state machine definitions; an existing stack proves it."""
    needs(evidence.on_aws, "the cloud on one machine checks definitions less strictly")
    wanted = [evidence.stack, f"{evidence.experiment.project}-expiry"]
    names = [name for name in evidence.state_machines if name in wanted or name.startswith(f"{evidence.stack}-")]
    needs(names, "no state machine stands")
    return judged(True, f"{len(names)} state machines were created", value=len(names))


@check
def first_zone(evidence: Evidence) -> Observed:
    """Return whether hosts and broker were created in one zone."""
    needs(evidence.on_aws, "the cloud on one machine offers everything everywhere")
    needs(evidence.zones, "nothing stands in a zone")
    return judged(len(evidence.zones) == 1, f"everything was made in {', '.join(sorted(evidence.zones))}")


@check
def standard_vcpus(evidence: Evidence) -> Observed:
    """Return whether the account's vCPU quota suffices for the hosts."""
    needs(evidence.on_aws, "the cloud on one machine has no quotas")
    from botocore.exceptions import ClientError

    try:
        quotas = evidence.client("service-quotas")
        found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=STANDARD_VCPUS)["Quota"]["Value"]
    except ClientError as error:
        return judged(False, f"{STANDARD_VCPUS} could not be read: {error.response['Error']['Code']}")
    return judged(True, f"{STANDARD_VCPUS} reads {found:g} vCPUs", value=found, unit="vCPUs")


@check
def packages_at_boot(evidence: Evidence) -> Observed:
    """Return whether hosts could install their packages at boot; a report of one proves it."""
    waits = evidence.made.get(preflight.HOST_TYPE, [])
    needs(waits and evidence.on_aws, "no host installed packages")
    return judged(True, f"{len(waits)} host(s) installed their packages and reported", value=len(waits))


@check
def classic_queues(evidence: Evidence) -> Observed:
    """Return whether the message bus works on the deployed broker."""
    needs(evidence.on_aws, "the broker is this machine's")
    client, name = evidence.client("mq"), f"{evidence.experiment.project}-broker"
    mine = [each for each in client.list_brokers()["BrokerSummaries"] if each["BrokerName"] == name]
    needs(mine, "no broker stands")
    found = client.describe_broker(BrokerId=mine[0]["BrokerId"])
    requests, outcome = evidence.result["traffic"]["bus"]["requests"], evidence.result["outcome"]
    seen = f"RabbitMQ {found['EngineVersion']} on {found['HostInstanceType']}; {requests} requests, the run {outcome}"
    return judged(outcome == "finished" and requests > 0, seen, value=requests)


@check
def bucket_shows_stack(evidence: Evidence) -> Observed:
    """Return whether CloudFormation's stack tag is readable on the bucket."""
    needs(evidence.on_aws, "the tags of the cloud on one machine are its own")
    from botocore.exceptions import ClientError

    bucket = known(next(iter(evidence.owner.list_ids("AWS::S3::Bucket")), None), "no bucket stands")
    try:
        tags = evidence.client("s3").get_bucket_tagging(Bucket=bucket)["TagSet"]
    except ClientError as error:
        return judged(False, f"its tags could not be read: {error.response['Error']['Code']}")
    shown = any(tag["Key"] == STACK_TAG for tag in tags)
    return judged(shown, f"{STACK_TAG} is {'among' if shown else 'not among'} the {len(tags)} tags of {bucket}")


STANDING = checks_in(__name__)
NOT_COVERED: Mapping[str, str] = {
    "broker-limits": "the broker is private, and two workers open few connections",
    "amqp-per-invocation": "a choice of the design: nothing that runs would show the other",
}
