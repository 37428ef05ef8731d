"""The checks of what the steps of a verification try on purpose: an update in place, a redrive, a stack whose time is over."""

from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import Checks, Observed, by_id, check, judged, known, needs

STACK_TAG = "aws:cloudformation:stack-id"
STANDARD_VCPUS = "L-1216C47A"
CHILD_FAILED = "ChildFailed"


# --- while it stands --------------------------------------------------------------------------------------------------


@check
def definitions_accepted(evidence: Evidence) -> Observed:
    """A stack stands only when CreateStateMachine took every definition in it."""
    needs(evidence.on_aws, "the cloud on one machine checks definitions less strictly")
    wanted = [evidence.stack, f"{evidence.experiment.project}-expiry"]
    names = [name for name in evidence.state_machines if name in wanted or name.startswith(f"{evidence.stack}-")]
    needs(names, "no state machine stands")
    return judged(True, f"{len(names)} state machines were created", value=len(names))


@check
def first_zone(evidence: Evidence) -> Observed:
    """Hosts and broker were made in one zone: it offered them."""
    needs(evidence.on_aws, "the cloud on one machine offers everything everywhere")
    needs(evidence.zones, "nothing stands in a zone")
    return judged(len(evidence.zones) == 1, f"everything was made in {', '.join(sorted(evidence.zones))}")


@check
def standard_vcpus(evidence: Evidence) -> Observed:
    """The quota itself is one account's; that hosts were made within it is what a deployment shows."""
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
    """A host that reported had got apt's lock; how long it waited is in its log alone."""
    waits = [made for made in evidence.made if made.kind == "AWS::CloudFormation::WaitCondition"]
    needs(waits and evidence.on_aws, "no host installed packages")
    return judged(True, f"{len(waits)} host(s) installed their packages and reported", value=len(waits))


@check
def classic_queues(evidence: Evidence) -> Observed:
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
    needs(evidence.on_aws, "the tags of the cloud on one machine are its own")
    from botocore.exceptions import ClientError

    needs(evidence.bucket, "no bucket stands")
    try:
        tags = evidence.client("s3").get_bucket_tagging(Bucket=evidence.bucket)["TagSet"]
    except ClientError as error:
        return judged(False, f"its tags could not be read: {error.response['Error']['Code']}")
    shown = any(tag["Key"] == STACK_TAG for tag in tags)
    return judged(
        shown, f"{STACK_TAG} is {'among' if shown else 'not among'} the {len(tags)} tags of {evidence.bucket}"
    )


# --- after the update, after the redrives -----------------------------------------------------------------------------------


@check
def redis_update_completes(evidence: Evidence) -> Observed:
    result = known(evidence.updated, "no update was tried").result
    workers, outcome = result["experiment"]["workers"], result["outcome"]
    return judged(outcome == "finished", f"the updated stack trained with {workers} workers: {outcome}")


@check
def failed_child_adopted(evidence: Evidence) -> Observed:
    found = known(evidence.redriven_alone, "no run was stopped while a child of it worked")
    seen = f"redriven over a stopped child the run ended {found.status} {found.error}".rstrip()
    return judged(found.adopted and found.status == "FAILED" and found.error == CHILD_FAILED, seen)


@check
def redriven_child_adopted(evidence: Evidence) -> Observed:
    found = known(evidence.redriven, "no run was stopped while a child of it worked")
    how = "with" if found.adopted else "without"
    seen = f"its children redriven first, the run ended {found.status}, {how} adopting"
    return judged(found.adopted and found.status == "SUCCEEDED", seen)


# --- afterwards -------------------------------------------------------------------------------------------------------


@check
def schedule_fires(evidence: Evidence) -> Observed:
    unfired = "not waited for" if evidence.on_aws else "the cloud on one machine keeps schedules, and fires none"
    fired = known(evidence.fired, unfired)
    return judged(fired, "the schedule had the stack deleted" if fired else "it did not within 20 min")


@check
def resource_tag_on_delete(evidence: Evidence) -> Observed:
    state = known(evidence.expiry_state, "the expiry was not tried")
    needs(evidence.on_aws, "the cloud on one machine checks no conditions on CloudFormation's actions")
    return judged(state == "", "the expiry's role deleted the stack" if not state else f"the stack was left {state}")


@check
def interfaces_after_role(evidence: Evidence) -> Observed:
    needs(evidence.on_aws, "the cloud on one machine gives functions no network interfaces")
    outlived = evidence.interfaces_left and "network deleted" in evidence.minutes
    needs(outlived, "no interface outlived its function's role")
    went = "went with the network" if evidence.network_deleted else "kept the network from going"
    return judged(evidence.network_deleted, f"{evidence.interfaces_left} interfaces without a role {went}")


STANDING: Checks = by_id(
    definitions_accepted, first_zone, standard_vcpus, packages_at_boot, classic_queues, bucket_shows_stack
)
UPDATED: Checks = by_id(redis_update_completes)
REDRIVEN: Checks = by_id(failed_child_adopted, redriven_child_adopted)
AFTERWARDS: Checks = by_id(schedule_fires, resource_tag_on_delete, interfaces_after_role)
