"""The checks of what the steps of a verification try on purpose: an update in place, a redrive, a stack whose time is over."""

from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import Checks, Observed, judged, uncovered

STACK_TAG = "aws:cloudformation:stack-id"
STANDARD_VCPUS = "L-1216C47A"
CHILD_FAILED = "ChildFailed"


# --- while it stands --------------------------------------------------------------------------------------------------


def definitions_accepted(evidence: Evidence) -> Observed:
    """A stack stands only when CreateStateMachine took every definition in it."""
    if not evidence.on_aws:
        return uncovered("the cloud on one machine checks definitions less strictly")
    wanted = [evidence.stack, f"{evidence.experiment.project}-expiry"]
    names = [name for name in evidence.state_machines if name in wanted or name.startswith(f"{evidence.stack}-")]
    if not names:
        return uncovered("no state machine stands")
    return judged(True, f"{len(names)} state machines were created", value=len(names))


def first_zone(evidence: Evidence) -> Observed:
    """Hosts and broker were made in one zone: it offered them."""
    if not evidence.on_aws:
        return uncovered("the cloud on one machine offers everything everywhere")
    zones = evidence.zones
    if not zones:
        return uncovered("nothing stands in a zone")
    return judged(len(zones) == 1, f"everything was made in {', '.join(sorted(zones))}")


def standard_vcpus(evidence: Evidence) -> Observed:
    """The quota itself is one account's; that hosts were made within it is what a deployment shows."""
    if not evidence.on_aws:
        return uncovered("the cloud on one machine has no quotas")
    from botocore.exceptions import ClientError

    try:
        quotas = evidence.client("service-quotas")
        found = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=STANDARD_VCPUS)["Quota"]["Value"]
    except ClientError as error:
        return judged(False, f"{STANDARD_VCPUS} could not be read: {error.response['Error']['Code']}")
    return judged(True, f"{STANDARD_VCPUS} reads {found:g} vCPUs", value=found, unit="vCPUs")


def packages_at_boot(evidence: Evidence) -> Observed:
    """A host that reported had got apt's lock; how long it waited is in its log alone."""
    waits = [made for made in evidence.made if made.kind == "AWS::CloudFormation::WaitCondition"]
    if not waits or not evidence.on_aws:
        return uncovered("no host installed packages")
    return judged(True, f"{len(waits)} host(s) installed their packages and reported", value=len(waits))


def classic_queues(evidence: Evidence) -> Observed:
    if not evidence.on_aws:
        return uncovered("the broker is this machine's")
    client, name = evidence.client("mq"), f"{evidence.experiment.project}-broker"
    mine = [each for each in client.list_brokers()["BrokerSummaries"] if each["BrokerName"] == name]
    if not mine or evidence.run is None:
        return uncovered("no broker stands" if not mine else "no run ended")
    found = client.describe_broker(BrokerId=mine[0]["BrokerId"])
    requests, outcome = evidence.run.result["traffic"]["bus"]["requests"], evidence.run.result["outcome"]
    seen = f"RabbitMQ {found['EngineVersion']} on {found['HostInstanceType']}; {requests} requests, the run {outcome}"
    return judged(outcome == "finished" and requests > 0, seen, value=requests)


def bucket_shows_stack(evidence: Evidence) -> Observed:
    if not evidence.on_aws:
        return uncovered("the tags of the cloud on one machine are its own")
    from botocore.exceptions import ClientError

    bucket = evidence.bucket
    if not bucket:
        return uncovered("no bucket stands")
    try:
        tags = evidence.client("s3").get_bucket_tagging(Bucket=bucket)["TagSet"]
    except ClientError as error:
        return judged(False, f"its tags could not be read: {error.response['Error']['Code']}")
    shown = any(tag["Key"] == STACK_TAG for tag in tags)
    return judged(shown, f"{STACK_TAG} is {'among' if shown else 'not among'} the {len(tags)} tags of {bucket}")


# --- after the update, after the redrives -----------------------------------------------------------------------------------


def redis_update_completes(evidence: Evidence) -> Observed:
    if evidence.updated is None:
        return uncovered("no update was tried")
    workers, outcome = evidence.updated.result["experiment"]["workers"], evidence.updated.result["outcome"]
    return judged(outcome == "finished", f"the updated stack trained with {workers} workers: {outcome}")


def failed_child_adopted(evidence: Evidence) -> Observed:
    found = evidence.redriven_alone
    if found is None:
        return uncovered("no run was stopped while a child of it worked")
    seen = f"redriven over a stopped child the run ended {found.status} {found.error}".rstrip()
    return judged(found.adopted and found.status == "FAILED" and found.error == CHILD_FAILED, seen)


def redriven_child_adopted(evidence: Evidence) -> Observed:
    found = evidence.redriven
    if found is None:
        return uncovered("no run was stopped while a child of it worked")
    seen = (
        f"its children redriven first, the run ended {found.status}, {'with' if found.adopted else 'without'} adopting"
    )
    return judged(found.adopted and found.status == "SUCCEEDED", seen)


# --- afterwards -------------------------------------------------------------------------------------------------------


def schedule_fires(evidence: Evidence) -> Observed:
    if evidence.fired is None:
        return uncovered(
            "not waited for" if evidence.on_aws else "the cloud on one machine keeps schedules, and fires none"
        )
    return judged(
        evidence.fired, "the schedule had the stack deleted" if evidence.fired else "it did not within 20 min"
    )


def resource_tag_on_delete(evidence: Evidence) -> Observed:
    if evidence.expiry_state is None:
        return uncovered("the expiry was not tried")
    if not evidence.on_aws:
        return uncovered("the cloud on one machine checks no conditions on CloudFormation's actions")
    state = evidence.expiry_state
    return judged(state == "", "the expiry's role deleted the stack" if not state else f"the stack was left {state}")


def interfaces_after_role(evidence: Evidence) -> Observed:
    if not evidence.on_aws:
        return uncovered("the cloud on one machine gives functions no network interfaces")
    if not evidence.interfaces_left or "network deleted" not in evidence.minutes:
        return uncovered("no interface outlived its function's role")
    went = "went with the network" if evidence.network_deleted else "kept the network from going"
    return judged(evidence.network_deleted, f"{evidence.interfaces_left} interfaces without a role {went}")


STANDING: Checks = {
    "definitions-accepted": definitions_accepted,
    "first-zone": first_zone,
    "standard-vcpus": standard_vcpus,
    "packages-at-boot": packages_at_boot,
    "classic-queues": classic_queues,
    "bucket-shows-stack": bucket_shows_stack,
}
UPDATED: Checks = {"redis-update-completes": redis_update_completes}
REDRIVEN: Checks = {
    "failed-child-adopted": failed_child_adopted,
    "redriven-child-adopted": redriven_child_adopted,
}
AFTERWARDS: Checks = {
    "schedule-fires": schedule_fires,
    "resource-tag-on-delete": resource_tag_on_delete,
    "interfaces-after-role": interfaces_after_role,
}
