"""A CloudFormation stack as it stands: whether it can be deployed over, run, and until when it lives."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from crossover.errors import UserError

EXPIRES_AT = "expires-at"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """`changed`: creation or last update."""

    name: str
    state: str
    changed: datetime
    tags: dict[str, str] = field(default_factory=dict)

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
        changed=found.get("LastUpdatedTime") or found["CreationTime"],
        tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
    )


def check_deployable(session: Any, name: str, *, project: str) -> None:
    """Raises UserError where a deployment would fail or touch what is not ours."""
    stack = look(session, name)
    if stack is None:
        return
    if stack.tags.get("project") not in (project, None):
        raise UserError(
            f"{name}: a stack of this name belongs to project {stack.tags['project']!r}; choose another name or project"
        )
    if stack.tags and "project" not in stack.tags:
        raise UserError(f"{name}: a stack of this name exists and is not Crossover's; choose another name or project")
    if stack.state.endswith("_IN_PROGRESS"):
        raise UserError(f"{name}: is {stack.state}; wait until that has ended (crossover status), then deploy again")
    if stack.state in ("ROLLBACK_FAILED", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED"):
        raise UserError(f"{name}: is {stack.state}, half way; crossover destroy clears it, then deploy again")


def check_runnable(session: Any, name: str, *, config: str, now: datetime | None = None) -> Standing:
    """The experiment's stack. Raises UserError where it is missing, half way, or its time is over."""
    stack, now = look(session, name), now or datetime.now(UTC)
    if stack is None:
        raise UserError(f"{name}: not deployed in this account and region; crossover deploy {config}")
    if not stack.complete:
        raise UserError(
            f"{name}: is {stack.state}; crossover deploy {config} completes it, crossover destroy clears it"
        )
    if stack.expires_at and stack.expires_at <= now:
        raise UserError(
            f"{name}: its time was over at {stack.expires_at:%Y-%m-%d %H:%M} UTC (lifetime.ttl_hours); "
            f"crossover deploy {config} prolongs it"
        )
    return stack
