"""Errors, stacks and resources of an AWS account. Nothing is deleted unless it provably belongs to this project."""

import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from cdk.expiry_machine import ALONE, BROKER, EXPERIMENT, EXPIRES_AT, KIND, NETWORK, PROJECT, STANDS
from crossover.errors import CrossoverError, UserError
from crossover.experiment import Experiment
from crossover.reports.usage import GROUPS
from crossover.stores import deployed_clients
from crossover.stores.keys import TIME_FORMAT

# --- account ----------------------------------------------------------------------------------------------------------

ReportLine = Callable[[str], None]


# --- credentials ------------------------------------------------------------------------------------------------------
# Errors of AWS that the user can fix, in plain words.


@contextmanager
def explain_aws_errors() -> Iterator[None]:
    """Context manager that turns botocore's errors in its block into messages for the user. Raises UserError for missing, expired or
    insufficient credentials, an unknown profile, a missing region, a region that is not enabled, and an endpoint that does not answer;
    CrossoverError for all other errors of AWS.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        NoRegionError,
        ProfileNotFound,
    )

    try:
        yield
    except NoCredentialsError:
        raise UserError("no AWS credentials; set AWS_PROFILE, or sign in with `aws sso login`") from None
    except NoRegionError:
        raise UserError("no AWS region; set AWS_DEFAULT_REGION, for example us-east-1") from None
    except ProfileNotFound as error:
        raise UserError(f"AWS: {error}; AWS_PROFILE names a profile of ~/.aws/config") from None
    except (ConnectTimeoutError, EndpointConnectionError) as error:
        raise UserError(f"AWS: {error}{_explain_unreachable_region()}") from None
    except ClientError as error:
        code = deployed_clients.get_error_code(error)
        if code in deployed_clients.EXPIRED_CODES:
            raise UserError(_explain_refused_credentials(code)) from None
        if code in deployed_clients.DENIED_CODES:
            raise UserError(f"AWS: the credentials lack a permission: {error}") from None
        raise CrossoverError(f"AWS failed or refused the call ({code}): {error}; try again") from error
    except BotoCoreError as error:
        raise CrossoverError(f"AWS: {error}") from error


def open_impatient_session() -> Any:
    """Return a boto3 session with the usual credentials and region, whose requests fail within seconds if there is no network."""
    import boto3
    import botocore.session
    from botocore.config import Config

    core = botocore.session.get_session()
    core.set_default_client_config(Config(connect_timeout=4, read_timeout=15, retries={"total_max_attempts": 2}))
    return boto3.Session(botocore_session=core)


ALWAYS_ENABLED = "us-east-1"  # in every account


def _explain_refused_credentials(code: str) -> str:
    """Return the error message for credentials that AWS refused with the error code `code`. A region that is not enabled for the account
    refuses valid credentials too: STS in us-east-1 is asked, and if it accepts them, the message blames the region, otherwise the
    credentials.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    session = boto3.Session()
    region = session.region_name or ALWAYS_ENABLED
    if region != ALWAYS_ENABLED:
        with suppress(ClientError, BotoCoreError):
            session.client("sts", region_name=ALWAYS_ENABLED).get_caller_identity()
            return (
                f"AWS: {region} does not accept the credentials ({code}), though {ALWAYS_ENABLED} does: the region may not be enabled for "
                f"the account. aws account get-region-opt-status --region-name {region} tells, aws account enable-region --region-name "
                f"{region} enables it; or choose another region by AWS_DEFAULT_REGION"
            )
    return f"AWS does not accept the credentials ({code}); sign in again"


def _explain_unreachable_region() -> str:
    """Return the end of the error message for an endpoint that does not answer. It asks about the network if botocore knows the session's
    region; otherwise it says that there is no such region, with the region of the most similar name or a list of all.
    """
    import boto3

    session = boto3.Session()
    region, known = session.region_name or "", session.get_available_regions("ec2")
    if region in known:
        return "; is there a network, and is AWS_ENDPOINT_URL unset?"
    near = difflib.get_close_matches(region, known, n=1)
    meant = f"; did you mean {near[0]}" if near else f"; regions are {', '.join(known)}"
    return f"; AWS has no region {region!r}{meant}? AWS_DEFAULT_REGION or the profile names it"


def check_partition(region: str | None) -> None:
    """Raise UserError if `region` belongs to a partition other than `aws`, such as GovCloud or China. Nothing is raised for None or an
    unknown region. Host names of services, prices and machine images are known for the partition `aws` only.
    """
    if region and (partition := _list_other_regions().get(region)):
        raise UserError(
            f"AWS: {region} is a region of the partition {partition}; expected one of the partition aws, such as us-east-1: GovCloud and "
            f"China are not supported"
        )


@functools.cache
def _list_other_regions() -> dict[str, str]:
    """Return {region: partition} for all regions outside the partition `aws`, such as GovCloud and China. Reading them from botocore takes
    seconds, so every call returns the same dictionary, which must not be changed.
    """
    import boto3

    session = boto3.Session()
    others = [name for name in session.get_available_partitions() if name != "aws"]
    return {region: name for name in others for region in session.get_available_regions("ec2", partition_name=name)}


def check_credentials() -> None:
    """Raise UserError if AWS does not accept the credentials of the environment, if there are none, or if the region is outside the
    partition `aws`; CrossoverError for other errors of AWS. Calls STS, or the endpoint that AWS_ENDPOINT_URL names.
    """
    import boto3

    with explain_aws_errors():
        check_partition(boto3.Session().region_name)
        boto3.client("sts").get_caller_identity()


# --- stacks -----------------------------------------------------------------------------------------------------------
# CloudFormation stacks: whether a stack can be deployed again or run, and when it expires.

OWNER_TAG = "owner"  # a tag of experiments
SHARED_KINDS = (BROKER, NETWORK)  # kinds of stacks other than experiments, in order of deletion


@dataclass(frozen=True, kw_only=True)
class DeployedStack:
    """A CloudFormation stack, as AWS described it last.

    `name`: its name. `id`: its ARN, which still identifies the stack after its deletion. `state`: CloudFormation's status, such as
    CREATE_COMPLETE. `tags`: of the stack itself, {key: value}. `created`: time of creation. `changed`: time of the last update, or of
    creation if there was no update.
    """

    name: str
    id: str = ""
    state: str
    created: datetime
    changed: datetime
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def is_in_progress(self) -> bool:
        """True if CloudFormation is working on the stack now. False for REVIEW_IN_PROGRESS, in which it waits for a person."""
        return self.state.endswith("_IN_PROGRESS") and self.state != "REVIEW_IN_PROGRESS"  # that one waits for people

    @property
    def is_deleted(self) -> bool:
        """True if the stack has been deleted."""
        return self.state == "DELETE_COMPLETE"

    @property
    def is_complete(self) -> bool:
        """True if the last operation ended in a usable state: created, updated or imported, or an update that was rolled back."""
        return self.state in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")

    @property
    def kind(self) -> str:
        """The value of the stack's kind tag: broker, network or experiment; "" if it has no such tag."""
        return self.tags.get(KIND, "")

    @property
    def is_standalone(self) -> bool:
        """True if the stack has the tag that says that it depends on no shared stack (network or broker)."""
        return self.tags.get(STANDS) == ALONE

    @property
    def expires_at(self) -> datetime | None:
        """The time after which the clean-up deletes the stack, read from its tag; None if it has no such tag. Raises UserError if the tag
        is not a valid time.
        """
        if not (written := self.tags.get(EXPIRES_AT)):
            return None
        try:
            return datetime.strptime(written, TIME_FORMAT).replace(tzinfo=UTC)
        except ValueError:
            raise UserError(
                f"{self.name}: its tag {EXPIRES_AT} is {written!r}, expected a time such as 2026-12-31T18:00:00Z; until it is valid, "
                "nothing deletes the stack automatically; crossover deploy CONFIG writes it again"
            ) from None


def find_stack(session: Any, name: str) -> DeployedStack | None:
    """Return the stack with this name in whatever state it is, such as a failed one; None if it does not exist or was deleted. Raises
    ClientError for other errors of AWS. `session`: boto3 session.
    """
    found = describe_stack(session, name)
    return None if found is None or found.is_deleted else found


def describe_stack(session: Any, name_or_id: str) -> DeployedStack | None:
    """Return the stack with this name or id, or None if it does not exist. By its id, a deleted stack is also found, for 90 days after its
    deletion. Other errors of AWS are raised.
    """
    with deployed_clients.ToleratedErrors("does not exist"):
        return parse_stack(session.client("cloudformation").describe_stacks(StackName=name_or_id)["Stacks"][0])
    return None


def parse_stack(described: Mapping[str, Any]) -> DeployedStack:
    """Build a DeployedStack from `described`, an entry of CloudFormation's DescribeStacks."""
    return DeployedStack(
        name=described["StackName"],
        id=described["StackId"],
        state=described["StackStatus"],
        created=described["CreationTime"],
        changed=described.get("LastUpdatedTime") or described["CreationTime"],
        tags={tag["Key"]: tag["Value"] for tag in described.get("Tags", [])},
    )


def is_ours(stack: DeployedStack, project: str) -> bool:
    """Return whether the stack belongs to `project`: its tag names the project, its kind is experiment, broker or network, and its name is
    the project's name, a hyphen, and the experiment's name or the kind.
    """
    part = stack.tags.get(EXPERIMENT) if stack.kind == EXPERIMENT else stack.kind
    known = stack.kind in (EXPERIMENT, *SHARED_KINDS)
    return known and stack.tags.get(PROJECT) == project and stack.name == f"{project}-{part}"


def check_ours(session: Any, name: str, *, project: str) -> None:
    """Raise UserError if a stack called `name` exists in the account of `session` and does not belong to `project`.

    The message shows the stack's tags and says what to do.
    """
    stack = find_stack(session, name)
    if stack is None or is_ours(stack, project):
        return
    part = name.removeprefix(f"{project}-")
    kind, experiment = (part, "shared") if part in SHARED_KINDS else (EXPERIMENT, part)
    found = ", ".join(f"{key}={value}" for key, value in sorted(stack.tags.items()))
    owner = (
        f"belongs to project {stack.tags[PROJECT]!r}" if stack.tags.get(PROJECT, project) != project else "is not ours"
    )
    raise UserError(
        f"{name}: this stack exists in {describe_place(session)} and {owner}: it has {f'the tags {found}' if found else 'no tags'}; "
        f"nothing was touched. Choose another name or project; or, if it is yours and lost its tags, restore them (CloudFormation "
        f"console: Update, Use existing template, Tags): project={project}, experiment={experiment}, stack-kind={kind}"
    )


def check_owner(session: Any, name: str, *, owner: str, command: str) -> None:
    """Raise UserError if the stack `name`, in the account of `session`, has an owner tag that names another person than `owner`.

    Letter case is ignored. Nothing is raised if the stack does not exist, or if its tag is missing or has the default owner. The caller has
    checked that the stack is this project's. `command`: the whole command, which the message repeats with --take-over.
    """
    stack = find_stack(session, name)
    has = stack.tags.get(OWNER_TAG, "") if stack else ""
    if has not in ("", Experiment.owner) and has.casefold() != owner.casefold():
        raise UserError(
            f"owner: {name} in {describe_place(session)} belongs to {has}, this file says {owner}; nothing was touched. Choose another "
            f"name or project, or set owner to {has} if that is you; {command} --take-over continues anyway"
        )


def describe_place(session: Any) -> str:
    """Return the account and region of the session as text: `account 123456789012, us-east-1`. Asks STS for the account."""
    client = session.client("sts")
    return f"account {client.get_caller_identity()['Account']}, {client.meta.region_name}"


def check_deployable(session: Any, name: str, *, config: Path | str) -> None:
    """Raise UserError if the stack `name`, in the account of `session`, is in a state that a deployment cannot continue from: an operation
    is in progress, a change set was never executed, or a rollback or deletion failed. Nothing is raised if there is no such stack.

    `config`: the configuration's path, shown in the message.
    """
    stack = find_stack(session, name)
    if stack is None:
        return
    if stack.is_in_progress:
        raise UserError(f"{name}: still {stack.state}; crossover deploy {config} again, once that has ended")
    if stack.state == "REVIEW_IN_PROGRESS":
        raise UserError(
            f"{name}: is REVIEW_IN_PROGRESS, the empty stack of a change set that was never executed; delete it with "
            f"aws cloudformation delete-stack --stack-name {name}, then deploy again"
        )
    if stack.state in ("ROLLBACK_FAILED", "DELETE_FAILED", "UPDATE_ROLLBACK_FAILED"):
        kept = f"; aws cloudformation continue-update-rollback --stack-name {name} may save it, with its data"
        raise UserError(
            f"{name}: is {stack.state}, half way; crossover destroy {config} clears it, then deploy again"
            + (kept if stack.state == "UPDATE_ROLLBACK_FAILED" else "")
        )


def check_runnable(session: Any, name: str, *, project: str, config: str, now: datetime | None = None) -> DeployedStack:
    """Return the experiment's stack, called `name`, in the account of `session`.

    Raises UserError if the stack is missing, belongs to another project than `project`, is incomplete, or has expired at the time `now`, by
    default the present. `config`: the configuration's path, shown in the message.
    """
    check_ours(session, name, project=project)
    stack, now = find_stack(session, name), now or datetime.now(UTC)
    if stack is None:
        raise UserError(
            f"{name}: not deployed in {describe_place(session)}; crossover deploy {config}, or set AWS_PROFILE and "
            "AWS_DEFAULT_REGION to where it is deployed"
        )
    if not stack.is_complete:
        raise UserError(
            f"{name}: is {stack.state}; crossover deploy {config} completes it, crossover destroy {config} clears it"
        )
    if stack.expires_at and stack.expires_at <= now:
        raise UserError(
            f"{name}: it expired at {stack.expires_at:%Y-%m-%d %H:%M} UTC (lifetime.ttl_hours); "
            f"crossover deploy {config} extends its time to live"
        )
    return stack


# --- ownership --------------------------------------------------------------------------------------------------------
# Who owns a resource. All code that deploys, runs, shows or destroys asks here.
#
# A stack is ours if its tags say so: project, kind and experiment, from which its name follows. A resource is ours if a stack of ours names
# it: an existing one, or one that was deleted in the last 90 days, in this account and region. A similar name or our tags alone prove
# nothing: such a resource is shown and never deleted.
#
# CloudFormation answers ListStackResources and DescribeStacks for deleted stacks by their id, for 90 days:
# https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ListStackResources.html

STACK, VPC = "AWS::CloudFormation::Stack", "AWS::EC2::VPC"
Ids = Mapping[str, frozenset[str]]  # CloudFormation's type -> physical ids


@dataclass(frozen=True, kw_only=True)
class ListedResource:
    """A resource of the AWS account as one listing returned it. `type`, `id`: its type and physical id, as CloudFormation names them.

    `made_by`: type and id of the resource that created this one, None if a template names it. `like`: name to compare with the names of the
    owner's stacks; if it is "", `name` is compared. `tags`: tags that the listing returned. `witness`: the resource's current tags, read
    only for a resource of a deleted stack whose name can be used again: if they are not the owner's, somebody else uses the name now. None
    if they were not read.
    """

    type: str
    id: str
    name: str
    made_by: tuple[str, str] | None = None
    like: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    witness: Mapping[str, str] | None = None


class Ownership(Enum):
    """A verdict on who owns a resource.

    `HELD`: this project; part of one of its existing stacks. `LEFT`: this project; left behind by a deleted stack, and part of no other.
    `UNPROVEN`: name or tags look like this project's, but no stack proves it. `NOT_OURS`: somebody else.
    """

    HELD = "held"
    LEFT = "left"
    UNPROVEN = "unproven"
    NOT_OURS = "not ours"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of AWS resources: one experiment of a project, or, if `experiment` is None, the whole project with its shared stacks.

    `standing`: the owner's existing stacks, the youngest last; `others`: names of the project's other existing stacks. `held`: ids of the
    resources in the owner's existing stacks, by CloudFormation type; `left`: the same for its deleted stacks. `networks`: ids of the VPCs
    in the project's network stacks, deleted ones included.
    """

    project: str
    experiment: str | None = None
    standing: Sequence[DeployedStack] = ()
    others: Sequence[str] = ()
    held: Ids = field(default_factory=dict)
    left: Ids = field(default_factory=dict)
    networks: frozenset[str] = frozenset()

    @property
    def stack(self) -> str:
        """The name of the experiment's stack; for a whole project its name, with which the names of all its stacks begin."""
        return f"{self.project}-{self.experiment}" if self.experiment else self.project

    def list_ids(self, type: str) -> list[str]:
        """Return the ids of the resources of one CloudFormation type in the owner's existing stacks, sorted."""
        return sorted(self.held.get(type, ()))

    def has_resource(self, type: str, id: str) -> bool:
        """Return whether a resource with this CloudFormation type and id is in an existing or a deleted stack of the owner."""
        return id in self.held.get(type, ()) or id in self.left.get(type, ())

    def has_similar_name(self, name: str) -> bool:
        """Return whether `name` equals the name of the owner's stack or begins with it and a hyphen, unless it belongs in this way to the
        longer name of another stack in `others`. Letter case is ignored, since bucket names are lower case.
        """
        name, longer = name.lower(), [each for each in self.others if each.startswith(f"{self.stack}-")]
        if any(_has_stack_prefix(name, each) for each in longer):
            return False
        return _has_stack_prefix(name, self.stack)

    def matches_tags(self, tags: Mapping[str, str]) -> bool:
        """Return whether the tags name the owner's project and experiment. If the owner is a whole project, any experiment is accepted
        except those of the stacks in `others`.
        """
        named = tags.get("experiment")
        return tags.get("project") == self.project and (
            named == self.experiment if self.experiment else f"{self.project}-{named}" not in self.others
        )


def _has_stack_prefix(name: str, stack: str) -> bool:
    """Return whether `name`, which is in lower case, equals the stack's name in lower case, or begins with it and a hyphen."""
    return name == stack.lower() or name.startswith(f"{stack.lower()}-")


def judge_owner(session: Any, owner: Owner, listed: ListedResource) -> tuple[Ownership, str]:
    """Return a verdict on whether `owner` owns the resource `listed` and, if the verdict is UNPROVEN, a sentence with the reason, else "".

    `session`: asks CloudFormation which stack contains the resource now, if a deleted stack contained it.
    """
    type, id = listed.made_by or (listed.type, listed.id)
    if id in owner.held.get(type, ()):
        return Ownership.HELD, ""
    if id in owner.left.get(type, ()):
        if holder := find_holding_stack(session, id):
            return Ownership.UNPROVEN, f"a stack of ours named it once, now {holder} does"
        if listed.witness is not None and not owner.matches_tags(listed.witness):
            return Ownership.UNPROVEN, "a deleted stack of ours named it, but it does not carry our tags"
        return Ownership.LEFT, ""
    if owner.has_similar_name(listed.like or listed.name):
        return Ownership.UNPROVEN, "its name begins like ours, but no stack of ours names it"
    if owner.matches_tags(listed.tags):
        return Ownership.UNPROVEN, "it carries our tags, but no stack of ours names it"
    return Ownership.NOT_OURS, ""


def find_holding_stack(session: Any, id: str) -> str:
    """Return the name of the stack that contains a resource with the physical id `id` now, "" if no stack does. Errors of AWS other than
    `does not exist` are raised. A stack may have reused the name of a deleted stack's resource.
    """
    with deployed_clients.ToleratedErrors("does not exist"):
        for each in session.client("cloudformation").describe_stack_resources(PhysicalResourceId=id)["StackResources"]:
            return str(each["StackName"])
    return ""


def load_owner(session: Any, project: str, experiment: str | None = None) -> Owner:
    """Return the owner with the ids of all resources in its stacks, read from the account of `session`: one `experiment`, or the whole
    project if that is None. Deleted stacks are found for 90 days.

    For a whole project, stacks that still exist and depend on no shared stack are left out of the owner's and listed in `others`; for one
    experiment, `others` are all other existing stacks of the project.
    """
    mine = f"{project}-{experiment}"
    ours = [each for each in _list_project_stacks(session, project) if is_ours(each, project)]
    asked = [each for each in ours if (each.name == mine if experiment else each.is_deleted or not each.is_standalone)]
    standing = sorted((each for each in asked if not each.is_deleted), key=lambda each: each.created)
    held, left = (_list_resource_ids(session, [s for s in asked if s.is_deleted == gone]) for gone in (False, True))
    held[STACK] = frozenset(each.id for each in standing)
    networks = _list_resource_ids(session, [each for each in ours if each.kind == "network"])
    return Owner(
        project=project,
        experiment=experiment,
        standing=standing,
        others=[each.name for each in ours if not each.is_deleted and each not in asked],
        held=held,
        left=left,
        networks=networks.get(VPC, frozenset()),
    )


def _list_project_stacks(session: Any, project: str) -> Iterator[DeployedStack]:
    """Yield each stack of the account whose name begins with `project` and a hyphen: the existing ones, then those deleted in the last 90
    days. Such a stack may still belong to another project: the caller must check its tags. Raises ClientError if AWS refuses a request.
    """
    for each in deployed_clients.list_items(session, "cloudformation", "describe_stacks", "Stacks"):
        if each["StackName"].startswith(f"{project}-"):
            yield parse_stack(each)
    gone = {"StackStatusFilter": ["DELETE_COMPLETE"]}
    for each in deployed_clients.list_items(session, "cloudformation", "list_stacks", "StackSummaries", **gone):
        if each["StackName"].startswith(f"{project}-") and (found := describe_stack(session, each["StackId"])):
            yield found


def _list_resource_ids(session: Any, found: Sequence[DeployedStack]) -> dict[str, frozenset[str]]:
    """Return the physical ids of all resources of the stacks `found`, deleted ones included, by CloudFormation type; {} without stacks.
    Raises ClientError as `list_stack_resources` does.
    """
    ids: dict[str, set[str]] = {}
    for stack in found:
        for each in list_stack_resources(session, stack.id):
            ids.setdefault(each["ResourceType"], set()).add(each["PhysicalResourceId"])
    return {type: frozenset(each) for type, each in ids.items()}


def list_stack_resources(session: Any, stack: str) -> list[Mapping[str, Any]]:
    """Return a stack's resources, deleted ones included, as CloudFormation's ListStackResources describes them ("PhysicalResourceId",
    "ResourceType", "ResourceStatus"), except those that were never created. `session`: boto3 session; `stack`: the stack's name, or its id,
    which also finds a deleted stack. Raises ClientError if there is no such stack.
    """
    named = deployed_clients.list_items(
        session, "cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack
    )
    return [each for each in named if each.get("PhysicalResourceId")]


# --- listings ---------------------------------------------------------------------------------------------------------
# All resources in the account and region, type by type, whoever owns them.
#
# Every type that a template creates, directly or not, is listed through its own API: the tagging API misses some resources and still lists
# deleted ones. `judge_owner` decides on each entry.

Lister = Callable[
    [Any, Owner], Iterable[ListedResource]
]  # (boto3 session, owner); with the owner, a lister may skip entries of others
FUNCTION, FLEET, INSTANCE = "AWS::Lambda::Function", "AWS::AutoScaling::AutoScalingGroup", "AWS::EC2::Instance"
LAYER = "AWS::Lambda::LayerVersion"
INTERFACE_DESCRIPTION = "AWS Lambda VPC ENI"  # how Lambda describes its interfaces
LIVE_STATES = ["pending", "running", "stopping", "stopped", "shutting-down"]


def tags_to_dict(tags: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a list of AWS tags as {key: value}. Services spell the fields differently: `Key` and `Value`, or `key` and `value`."""
    return {str(tag.get("Key", tag.get("key"))): str(tag.get("Value", tag.get("value"))) for tag in tags}


def _make_listing(
    type: str, service: str, operation: str, key: str, *, id: str, name: str = "", **arguments: Any
) -> Lister:
    """Return a function that yields the account's resources of the CloudFormation type `type`, read by one operation of AWS, page by page.

    `service`, `operation`: boto3's names of the operation; `key`: field of its answer that contains the list of resources; `id`, `name`:
    fields of a resource with its id and its name, by default the id; `arguments`: passed to the operation.
    """

    def entries(session: Any, owner: Owner) -> Iterator[ListedResource]:
        """Yield all resources of the type in the account, whoever owns them, except those that are deleted or whose deletion is scheduled.
        Pages are requested as they are needed; raises ClientError for one that AWS refuses. `owner`: not used; all listings take it.
        """
        for entry in deployed_clients.list_items(session, service, operation, key, **arguments):
            tags = tags_to_dict(entry.get("Tags") or [])
            if entry.get("State") != "deleted" and not entry.get("DeletedDate"):
                yield ListedResource(type=type, id=entry[id], name=entry[name or id], tags=tags)

    return entries


def _list_stacks(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all CloudFormation stacks of the account that are not deleted. `owner`: not used; all listings take it. Raises ClientError if
    AWS refuses a request.
    """
    for entry in deployed_clients.list_items(session, "cloudformation", "describe_stacks", "Stacks"):
        if entry["StackStatus"] != "DELETE_COMPLETE":
            tags = tags_to_dict(entry.get("Tags", []))
            yield ListedResource(type=STACK, id=entry["StackId"], name=entry["StackName"], tags=tags)


def _list_all_instances(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all EC2 instances of the account that are not terminated. Those of an Auto Scaling group, whose tag only Auto Scaling can set,
    are attributed to the group. `owner`: not used; all listings take it.
    """
    for each in _list_matching_instances(session, {"instance-state-name": LIVE_STATES}):
        tags = tags_to_dict(each.get("Tags", []))
        fleet = tags.get("aws:autoscaling:groupName")
        made_by = (FLEET, fleet) if fleet else None
        yield ListedResource(type=INSTANCE, id=each["InstanceId"], name=each["InstanceId"], made_by=made_by, tags=tags)


def list_instances(session: Any, owner: Owner, *, states: Sequence[str]) -> Iterator[Any]:
    """Yield the EC2 instances that are in the owner's existing stacks and in one of `states`, as EC2 describes them to `session`.

    EC2 is not called if the stacks have no instances: an empty filter would match everybody's instances.
    """
    if ids := owner.list_ids(INSTANCE):
        yield from _list_matching_instances(session, {"instance-id": ids, "instance-state-name": states})


def _list_matching_instances(session: Any, wanted: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """Yield the EC2 instances that match all filters. `wanted`: accepted values by name of the filter. Raises ClientError if AWS refuses a
    request.
    """
    filters = [{"Name": name, "Values": list(values)} for name, values in wanted.items()]
    for reservation in deployed_clients.list_items(
        session, "ec2", "describe_instances", "Reservations", Filters=filters
    ):
        yield from reservation["Instances"]


def _list_volumes(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all EBS volumes of the account, each attributed to the instance that it is attached to, if any. `owner`: not used; all listings
    take it. Raises ClientError if AWS refuses a request.
    """
    for each in deployed_clients.list_items(session, "ec2", "describe_volumes", "Volumes"):
        by = next((one["InstanceId"] for one in each.get("Attachments", []) if one.get("InstanceId")), None)
        made_by = (INSTANCE, by) if by else None
        tags = tags_to_dict(each.get("Tags", []))
        yield ListedResource(
            type="AWS::EC2::Volume", id=each["VolumeId"], name=each["VolumeId"], made_by=made_by, tags=tags
        )


def _list_addresses(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all Elastic IP addresses of the account. `owner`: not used; all listings take it."""
    for each in session.client("ec2").describe_addresses()["Addresses"]:
        tags = tags_to_dict(each.get("Tags", []))
        yield ListedResource(type="AWS::EC2::EIP", id=each["PublicIp"], name=each["PublicIp"], tags=tags)


def _list_interfaces(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all network interfaces of the account. Those that Lambda created in a VPC of the owner's project are attributed to their
    function: Lambda does not tag them, and they outlive the function. Raises ClientError if AWS refuses a request.
    """
    for each in deployed_clients.list_items(session, "ec2", "describe_network_interfaces", "NetworkInterfaces"):
        tags, words, made_by = tags_to_dict(each.get("TagSet", [])), str(each.get("Description", "")), None
        if words.startswith(f"{INTERFACE_DESCRIPTION}-"):
            name = words.removeprefix(f"{INTERFACE_DESCRIPTION}-")
            function = name[:-37] if name[-37:-36] == "-" and name.count("-") >= 5 else name  # Lambda adds a UUID
            known = each["VpcId"] in owner.networks
            made_by = (FUNCTION, function) if known else None
        else:
            function = ""
        id = each["NetworkInterfaceId"]
        yield ListedResource(
            type="AWS::EC2::NetworkInterface", id=id, name=id, made_by=made_by, like=function, tags=tags
        )


def _list_log_groups(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all log groups of the account, with the function's name as the name to compare. A function that still writes a line after its
    stack was deleted can create its log group again under the same name. `owner`: not used; all listings take it. Raises ClientError if AWS
    refuses a request.
    """
    for each in deployed_clients.list_items(session, "logs", "describe_log_groups", "logGroups"):
        name = each["logGroupName"]
        yield ListedResource(type="AWS::Logs::LogGroup", id=name, name=name, like=name.removeprefix(GROUPS))


def _list_layers(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield every version of the Lambda layers that are in a stack of the owner or have a similar name. Each version is a resource of its
    own, as in CloudFormation. Raises ClientError if AWS refuses a request.
    """
    mine = {arn.rpartition(":")[0] for ids in (owner.held, owner.left) for arn in ids.get(LAYER, ())}
    for each in deployed_clients.list_items(session, "lambda", "list_layers", "Layers"):
        if each["LayerArn"] in mine or owner.has_similar_name(each["LayerName"]):
            for version in deployed_clients.list_items(
                session, "lambda", "list_layer_versions", "LayerVersions", LayerName=each["LayerName"]
            ):
                name = f"{each['LayerName']}:{version['Version']}"
                yield ListedResource(type=LAYER, id=version["LayerVersionArn"], name=name)


def _list_schedules(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all EventBridge schedules of the account in the region of `session`. The id has the form `group/name`, without the group for
    the default one, as CloudFormation names them. `owner`: not used; all listings take it. Raises ClientError if AWS refuses a request.
    """
    for each in deployed_clients.list_items(session, "scheduler", "list_schedules", "Schedules"):
        group = "" if each["GroupName"] == "default" else f"{each['GroupName']}/"
        yield ListedResource(type="AWS::Scheduler::Schedule", id=group + each["Name"], name=each["Name"])


def _list_queues(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all SQS queues of the account in the region of `session`. The id is the queue's URL, as in CloudFormation, the name its last
    part. `owner`: not used; all listings take it. Raises ClientError if AWS refuses a request.
    """
    for url in deployed_clients.list_items(session, "sqs", "list_queues", "QueueUrls"):
        yield ListedResource(type="AWS::SQS::Queue", id=url, name=url.rpartition("/")[2])


def _list_parameters(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all SSM parameters below the path of the owner's project or experiment. They compare as if they had the name of the owner's
    stack, so that all of them look like the owner's. Raises ClientError if AWS refuses a request.
    """
    path = f"/crossover/{owner.project}/" + (f"{owner.experiment}/" if owner.experiment else "")
    for each in deployed_clients.list_items(
        session, "ssm", "get_parameters_by_path", "Parameters", Path=path, Recursive=True
    ):
        yield ListedResource(type="AWS::SSM::Parameter", id=each["Name"], name=each["Name"], like=owner.stack)


def _list_budgets(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield all budgets of the account, whoever owns them. `owner`: not used; all listings take it. Raises ClientError if AWS refuses a
    request.
    """
    account = session.client("sts").get_caller_identity()["Account"]
    for each in deployed_clients.list_items(session, "budgets", "describe_budgets", "Budgets", AccountId=account):
        yield ListedResource(type="AWS::Budgets::Budget", id=each["BudgetName"], name=each["BudgetName"])


def _list_tagged(session: Any, owner: Owner) -> Iterator[ListedResource]:
    """Yield the resources with the owner's tags of those services for which this module has no listing. They are shown and never removed.
    Resources of services with a listing are skipped, because the tagging API still lists deleted ones. Raises ClientError if AWS refuses a
    request.
    """
    covered = ("ec2", "lambda", "logs", "secretsmanager", "ssm", "states", "s3", "cloudformation", "mq", "iam")
    mine = [{"Key": "project", "Values": [owner.project]}]
    mine += [{"Key": "experiment", "Values": [owner.experiment]}] if owner.experiment else []
    for each in deployed_clients.list_items(
        session, "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=mine
    ):
        arn = each["ResourceARN"]
        if arn.split(":")[2] not in (*covered, "scheduler", "autoscaling", "budgets", "sqs", "cloudwatch"):
            yield ListedResource(type="", id=arn, name=arn, tags=tags_to_dict(each["Tags"]))


def _read_bucket_tags(session: Any, name: str) -> dict[str, str]:
    """Return the tags of an S3 bucket, {} if it has none."""
    with deployed_clients.ToleratedErrors("NoSuchTagSet"):
        return tags_to_dict(session.client("s3").get_bucket_tagging(Bucket=name)["TagSet"])
    return {}


def _describe_fleet(session: Any, name: str) -> dict[str, Any]:
    """Return Auto Scaling's description of the group `name`, {} if there is no such group."""
    found = session.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    return next(iter(found["AutoScalingGroups"]), {})


@dataclass(frozen=True)
class ResourceKind:
    """A kind of AWS resource. `entries`: function that lists the resources of this kind; `billable`: whether such a resource costs money
    just by existing; `tags`: function (session, id) that reads a resource's tags, set for kinds whose names can be used again.
    """

    entries: Lister
    billable: bool = False
    tags: Callable[[Any, str], dict[str, str]] | None = None


def _make_ec2_listing(type: str, operation: str, key: str, id: str) -> Lister:
    """Return a function that yields the account's resources of the type AWS::EC2::`type`. `operation`: boto3's name of the call; `key`:
    field of its answer that contains the resources; `id`: field of a resource with its id.
    """
    return _make_listing(f"AWS::EC2::{type}", "ec2", operation, key, id=id)


KINDS: dict[str, ResourceKind] = {
    "stack": ResourceKind(_list_stacks),
    "instance": ResourceKind(_list_all_instances, billable=True),
    "auto scaling group": ResourceKind(
        _make_listing(
            FLEET, "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", id="AutoScalingGroupName"
        ),
        True,
        lambda session, name: tags_to_dict(_describe_fleet(session, name).get("Tags", [])),
    ),
    "volume": ResourceKind(_list_volumes, billable=True),
    "address": ResourceKind(_list_addresses, billable=True),
    "endpoint": ResourceKind(
        _make_ec2_listing("VPCEndpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"), billable=True
    ),
    "broker": ResourceKind(
        _make_listing(
            "AWS::AmazonMQ::Broker", "mq", "list_brokers", "BrokerSummaries", id="BrokerId", name="BrokerName"
        ),
        billable=True,
    ),
    "secret": ResourceKind(
        _make_listing(
            "AWS::SecretsManager::Secret", "secretsmanager", "list_secrets", "SecretList", id="ARN", name="Name"
        ),
        billable=True,
    ),
    "bucket": ResourceKind(
        _make_listing("AWS::S3::Bucket", "s3", "list_buckets", "Buckets", id="Name"), True, _read_bucket_tags
    ),
    "log group": ResourceKind(_list_log_groups, billable=True),
    "function": ResourceKind(
        _make_listing(FUNCTION, "lambda", "list_functions", "Functions", id="FunctionName"),
        False,
        lambda session, name: dict(session.client("lambda").get_function(FunctionName=name).get("Tags", {})),
    ),
    "layer": ResourceKind(_list_layers),
    "state machine": ResourceKind(
        _make_listing(
            "AWS::StepFunctions::StateMachine",
            "stepfunctions",
            "list_state_machines",
            "stateMachines",
            id="stateMachineArn",
            name="name",
        ),
        False,
        lambda session, arn: tags_to_dict(
            session.client("stepfunctions").list_tags_for_resource(resourceArn=arn)["tags"]
        ),
    ),
    "schedule": ResourceKind(_list_schedules),
    "queue": ResourceKind(_list_queues),
    "alarm": ResourceKind(
        _make_listing("AWS::CloudWatch::Alarm", "cloudwatch", "describe_alarms", "MetricAlarms", id="AlarmName"),
        billable=True,
    ),
    "parameter": ResourceKind(
        _list_parameters,
        False,
        lambda session, name: tags_to_dict(
            session.client("ssm").list_tags_for_resource(ResourceType="Parameter", ResourceId=name)["TagList"]
        ),
    ),
    "role": ResourceKind(_make_listing("AWS::IAM::Role", "iam", "list_roles", "Roles", id="RoleName")),
    "instance profile": ResourceKind(
        _make_listing(
            "AWS::IAM::InstanceProfile", "iam", "list_instance_profiles", "InstanceProfiles", id="InstanceProfileName"
        )
    ),
    "launch template": ResourceKind(
        _make_listing(
            "AWS::EC2::LaunchTemplate",
            "ec2",
            "describe_launch_templates",
            "LaunchTemplates",
            id="LaunchTemplateId",
            name="LaunchTemplateName",
        )
    ),
    "network interface": ResourceKind(_list_interfaces),
    "security group": ResourceKind(
        _make_ec2_listing("SecurityGroup", "describe_security_groups", "SecurityGroups", "GroupId")
    ),
    "internet gateway": ResourceKind(
        _make_ec2_listing("InternetGateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId")
    ),
    "network": ResourceKind(_make_ec2_listing("VPC", "describe_vpcs", "Vpcs", "VpcId")),
    "budget": ResourceKind(_list_budgets),
    "tagged resource": ResourceKind(_list_tagged, billable=True),
}


# --- inventory --------------------------------------------------------------------------------------------------------
# The resources of an experiment or a project on AWS: every entry of every listing that is ours or looks like it.


@dataclass(frozen=True)
class FoundResource:
    """A resource in the account that is this project's or looks like it. `kind`: a key of KINDS; `id`: id that the resource's own API
    accepts; `name`: its name for people; `whose`: verdict on the owner; `why`: reason if the owner is not proven.
    """

    kind: str
    id: str
    name: str
    whose: Ownership
    why: str = ""

    @property
    def billable(self) -> bool:
        """True if the resource costs money just by existing."""
        return KINDS[self.kind].billable

    def __str__(self) -> str:
        """Return kind and name, as messages show them: `bucket crossover-spirt-data`."""
        return f"{self.kind} {self.name}"


def find_resources(session: Any, owner: Owner, kinds: Iterable[str] = ()) -> list[FoundResource]:
    """Return all resources in the account of `session` that are the owner's or look like it, sorted by kind in the order of `kinds`, then
    by name.

    `kinds`: keys of KINDS to search; all if it is empty. Errors of AWS are raised, so that an API that does not answer is not mistaken for
    an empty one.
    """
    found: list[FoundResource] = []
    for kind in kinds or KINDS:
        entries = {each.id: each for each in KINDS[kind].entries(session, owner)}
        for entry in sorted(entries.values(), key=lambda each: each.name):
            if (tags := KINDS[kind].tags) and entry.id in owner.left.get(entry.type, ()):
                entry = replace(entry, witness=tags(session, entry.id))
            whose, why = judge_owner(session, owner, entry)
            if whose is not Ownership.NOT_OURS:
                found.append(FoundResource(kind, entry.id, entry.name, whose, why))
    return found
