"""A CloudFormation stack as it stands: whether it can be deployed over, run, and until when it lives."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossover.errors import UserError

EXPIRES_AT = "expires-at"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`created`: when it was made; `changed`: then, or at its last update."""

    name: str
    state: str
    created: datetime
    changed: datetime
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def in_progress(self) -> bool:
        return self.state.endswith("_IN_PROGRESS") and self.state != "REVIEW_IN_PROGRESS"  # that one waits for people

    @property
    def complete(self) -> bool:
        return self.state in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")

    @property
    def expires_at(self) -> datetime | None:
        written = self.tags.get(EXPIRES_AT)
        return datetime.fromisoformat(written) if written else None


def look(session: Any, name: str) -> Standing | None:
    """The stack, None where there is none."""
    from botocore.exceptions import ClientError

    try:
        found = session.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
    except ClientError as error:
        if "does not exist" in str(error):
            return None
        raise
    if found["StackStatus"] == "DELETE_COMPLETE":
        return None
    return Standing(
        name=name,
        state=found["StackStatus"],
        created=found["CreationTime"],
        changed=found.get("LastUpdatedTime") or found["CreationTime"],
        tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
    )


def check_ours(session: Any, name: str, *, project: str) -> None:
    """Raises UserError where a stack of this name is somebody else's: a deployment would change it."""
    stack = look(session, name)
    if stack is None or not stack.tags:
        return
    if (found := stack.tags.get("project")) is None:
        raise UserError(f"{name}: a stack of this name exists and is not Crossover's; choose another name or project")
    if found != project:
        raise UserError(f"{name}: a stack of this name belongs to project {found!r}; choose another name or project")


def check_deployable(session: Any, name: str, *, config: Path) -> None:
    """Raises UserError where the stack is half way in a manner that a deployment cannot complete."""
    stack = look(session, name)
    if stack is None:
        return
    if stack.in_progress:
        raise UserError(f"{name}: still {stack.state}; crossover deploy {config} again, once that has ended")
    if stack.state == "REVIEW_IN_PROGRESS":
        raise UserError(
            f"{name}: is REVIEW_IN_PROGRESS, the empty shell of a change set that nobody carried out; take it away by "
            f"aws cloudformation delete-stack --stack-name {name}, then deploy again"
        )
    if stack.state in ("ROLLBACK_FAILED", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED"):
        kept = f"; aws cloudformation continue-update-rollback --stack-name {name} may save it, with its data"
        raise UserError(
            f"{name}: is {stack.state}, half way; crossover destroy {config} clears it, then deploy again"
            + (kept if stack.state == "UPDATE_ROLLBACK_FAILED" else "")
        )


def check_runnable(session: Any, name: str, *, config: str, now: datetime | None = None) -> Standing:
    """The experiment's stack. Raises UserError where it is missing, half way, or its time is over."""
    stack, now = look(session, name), now or datetime.now(UTC)
    if stack is None:
        client = session.client("sts")
        account, region = client.get_caller_identity()["Account"], client.meta.region_name
        raise UserError(
            f"{name}: not deployed in account {account}, {region}; crossover deploy {config}, or set AWS_PROFILE and "
            "AWS_DEFAULT_REGION to where it stands"
        )
    if not stack.complete:
        raise UserError(
            f"{name}: is {stack.state}; crossover deploy {config} completes it, crossover destroy {config} clears it"
        )
    if stack.expires_at and stack.expires_at <= now:
        raise UserError(
            f"{name}: its time was over at {stack.expires_at:%Y-%m-%d %H:%M} UTC (lifetime.ttl_hours); "
            f"crossover deploy {config} prolongs it"
        )
    return stack
