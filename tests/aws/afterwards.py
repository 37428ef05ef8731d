"""The checks of what a verification tried on purpose, an update in place, redrives, a stack whose time is over, and of how it went."""

from tests.aws.evidence import Evidence, known, needs
from tests.aws.observed import Observed, check, checks_in, judged

CHILD_FAILED = "ChildFailed"
QUICK_DELETION_MIN = 10.0
LINGERING_MIN = 15.0


@check
def redis_update_completes(evidence: Evidence) -> Observed:
    """Return whether the updated stack trained to its end."""
    result = known(evidence.updated, "no update was tried").result
    workers, outcome = result["experiment"]["workers"], result["outcome"]
    return judged(outcome == "finished", f"the updated stack trained with {workers} workers: {outcome}")


@check
def failed_child_adopted(evidence: Evidence) -> Observed:
    """Return whether a redriven run adopts a child that was stopped, and fails with its error."""
    found = known(evidence.redriven_alone, "no run was stopped while a child of it worked")
    seen = f"redriven over a stopped child the run ended {found.status} {found.error}".rstrip()
    return judged(found.adopted and found.status == "FAILED" and found.error == CHILD_FAILED, seen)


@check
def redriven_child_adopted(evidence: Evidence) -> Observed:
    """Return whether a run succeeds whose children were redriven before it."""
    found = known(evidence.redriven, "no run was stopped while a child of it worked")
    how = (
        "and it was adopted"
        if found.adopted
        else "which is a success while the child works: the same name, the same input"
    )
    seen = f"its children redriven first, the run ended {found.status}; starting them again was answered {how}"
    return judged(found.status == "SUCCEEDED", seen)


@check
def schedule_fires(evidence: Evidence) -> Observed:
    """Return whether the schedule deleted the expired stack."""
    unfired = "not waited for" if evidence.on_aws else "the cloud on one machine keeps schedules, and fires none"
    fired = known(evidence.fired, unfired)
    return judged(fired, "the schedule had the stack deleted" if fired else "it did not within 20 min")


@check
def resource_tag_on_delete(evidence: Evidence) -> Observed:
    """Return whether the expiry's role, limited by tags, may delete the stack."""
    state = known(evidence.expiry_state, "the expiry was not tried")
    needs(evidence.on_aws, "the cloud on one machine checks no conditions on CloudFormation's actions")
    return judged(state == "", "the expiry's role deleted the stack" if not state else f"the stack was left {state}")


@check
def interfaces_after_role(evidence: Evidence) -> Observed:
    """Return whether network interfaces can be deleted after the role of their function."""
    needs(evidence.on_aws, "the cloud on one machine gives functions no network interfaces")
    outlived = evidence.interfaces_left and "network deleted" in evidence.minutes
    needs(outlived, "no interface outlived its function's role")
    went = "went with the network" if evidence.network_deleted else "kept the network from going"
    return judged(evidence.network_deleted, f"{evidence.interfaces_left} interfaces without a role {went}")


@check
def experiment_goes_quickly(evidence: Evidence) -> Observed:
    """Return whether the experiment's deletion is quick, and its minutes."""
    minutes = known(evidence.minutes.get("experiment deleted"), "the experiment's deletion was not seen")
    return judged(minutes < QUICK_DELETION_MIN, f"gone after {minutes:.1f} min", value=minutes, unit="min")


@check
def interfaces_linger(evidence: Evidence) -> Observed:
    """Return whether network interfaces outlive their functions, and the minutes until the network is deleted."""
    needs(evidence.on_aws, "the cloud on one machine gives functions no network interfaces")
    needs(evidence.network_deleted, "the network was not deleted")
    minutes = known(evidence.minutes.get("network deleted"), "the network was not deleted")
    left = known(evidence.interfaces_left, "the network was not deleted")
    seen = f"{left} interfaces left when the experiment was gone; the network went in {minutes:.1f} min"
    return judged(left > 0 and minutes >= LINGERING_MIN, seen, value=minutes, unit="min")


AFTERWARDS = checks_in(__name__)
