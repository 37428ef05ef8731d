"""A CloudFormation stack as it stands: whether it can be deployed over, run, and until when it lives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdk.expiry_machine import ALONE, BROKER, EXPERIMENT, EXPIRES_AT, KIND, NETWORK, PROJECT, STANDS
from crossover.clients import aws_calls
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.keys import MOMENT

OWNER = "owner"  # a tag of experiments
SHARED = (BROKER, NETWORK)  # kinds of stacks beside experiments, in the order in which they are deleted


@dataclass(frozen=True, kw_only=True)
class StandingStack:
    """`id`: its ARN, by which it is known when it is gone. `created`: when it was made; `changed`: then, or at its last update."""

    name: str
    id: str = ""
    state: str
    created: datetime
    changed: datetime
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def in_progress(self) -> bool:
        return self.state.endswith("_IN_PROGRESS") and self.state != "REVIEW_IN_PROGRESS"  # that one waits for people

    @property
    def deleted(self) -> bool:
        return self.state == "DELETE_COMPLETE"

    @property
    def complete(self) -> bool:
        return self.state in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")

    @property
    def kind(self) -> str:
        """broker, network or experiment; "" of a stack that says nothing of it."""
        return self.tags.get(KIND, "")

    @property
    def alone(self) -> bool:
        """Whether it says that it leans on no shared stack."""
        return self.tags.get(STANDS) == ALONE

    @property
    def expires_at(self) -> datetime | None:
        """None where nothing says when. Raises UserError for a tag that somebody changed to what is no moment: the expiry skips it."""
        if not (written := self.tags.get(EXPIRES_AT)):
            return None
        try:
            return datetime.strptime(written, MOMENT).replace(tzinfo=UTC)
        except ValueError:
            raise UserError(
                f"{self.name}: its tag {EXPIRES_AT} is {written!r}, expected a moment such as 2026-12-31T18:00:00Z; until it is one, "
                "nothing deletes the stack by itself: crossover deploy CONFIG writes it anew"
            ) from None


def look(session: Any, name: str) -> StandingStack | None:
    """The stack, None where there is none."""
    found = describe(session, name)
    return None if found is None or found.deleted else found


def describe(session: Any, name_or_id: str) -> StandingStack | None:
    """The stack, for 90 days after its deletion too where its id is given."""
    with aws_calls.Tolerating("does not exist"):
        return read(session.client("cloudformation").describe_stacks(StackName=name_or_id)["Stacks"][0])
    return None


def read(described: Mapping[str, Any]) -> StandingStack:
    return StandingStack(
        name=described["StackName"],
        id=described["StackId"],
        state=described["StackStatus"],
        created=described["CreationTime"],
        changed=described.get("LastUpdatedTime") or described["CreationTime"],
        tags={tag["Key"]: tag["Value"] for tag in described.get("Tags", [])},
    )


def is_ours(stack: StandingStack, project: str) -> bool:
    """By its tags, all of which must fit: project, kind and, of an experiment, its name."""
    part = stack.tags.get(EXPERIMENT) if stack.kind == EXPERIMENT else stack.kind
    known = stack.kind in (EXPERIMENT, *SHARED)
    return known and stack.tags.get(PROJECT) == project and stack.name == f"{project}-{part}"


def check_ours(session: Any, name: str, *, project: str) -> None:
    """Raises UserError where a stack of this name is not ours: it says whose its tags make it, and what to do."""
    stack = look(session, name)
    if stack is None or is_ours(stack, project):
        return
    part = name.removeprefix(f"{project}-")
    kind, experiment = (part, "shared") if part in SHARED else (EXPERIMENT, part)
    found = ", ".join(f"{key}={value}" for key, value in sorted(stack.tags.items()))
    owner = (
        f"belongs to project {stack.tags[PROJECT]!r}" if stack.tags.get(PROJECT, project) != project else "is not ours"
    )
    raise UserError(
        f"{name}: a stack of this name stands in {place(session)} and {owner}: it carries {f'the tags {found}' if found else 'no tags'}; "
        f"nothing was touched. Choose another name or project; or, if it is yours and lost its tags, give them back (CloudFormation "
        f"console: Update, Use existing template, Tags): project={project}, experiment={experiment}, stack-kind={kind}"
    )


def check_owner(session: Any, name: str, *, owner: str, command: str) -> None:
    """Raises UserError where the stack, one of this project's by its tags, is another owner's. Addresses are the same in other letter case;
    a stack that names no owner, or has what a file says that names none, is anybody's.
    """
    stack = look(session, name)
    has = stack.tags.get(OWNER, "") if stack else ""
    if has not in ("", Experiment.owner) and has.casefold() != owner.casefold():
        raise UserError(
            f"owner: {name} stands in {place(session)} and is {has}'s, this file says {owner}; nothing was touched. Choose another name "
            f"or project, or set owner to {has} where that is you; crossover {command} --take-over goes on"
        )


def place(session: Any) -> str:
    """`account 123456789012, us-east-1`."""
    client = session.client("sts")
    return f"account {client.get_caller_identity()['Account']}, {client.meta.region_name}"


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


def check_runnable(session: Any, name: str, *, project: str, config: str, now: datetime | None = None) -> StandingStack:
    """The experiment's stack. Raises UserError where it is missing, not ours, half way, or its time is over."""
    check_ours(session, name, project=project)
    stack, now = look(session, name), now or datetime.now(UTC)
    if stack is None:
        raise UserError(
            f"{name}: not deployed in {place(session)}; crossover deploy {config}, or set AWS_PROFILE and "
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
