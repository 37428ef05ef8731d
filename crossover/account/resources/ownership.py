"""Whose a resource is: asked here by everything that deploys, runs, shows or destroys.

A stack is ours when its tags say so: project, kind and experiment, from which its name follows. A resource is ours when a stack of ours
names it, one that stands or one that was deleted in the last 90 days, in this account and region. A name that begins like ours, or tags
that say ours, prove nothing by themselves: such a resource is shown and left alone.

CloudFormation answers ListStackResources and DescribeStacks for deleted stacks by their id, for 90 days:
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ListStackResources.html
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from crossover.account.resources import stacks
from crossover.account.resources.stacks import StandingStack
from crossover.clients import aws_calls

STACK, VPC = "AWS::CloudFormation::Stack", "AWS::EC2::VPC"
Ids = Mapping[str, frozenset[str]]  # CloudFormation's type -> physical ids


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An entry of a listing, as CloudFormation calls it.

    `made_by`: type and id of what brought it along, where no template names it. `like`: what its name tells of its owner, by default the
    name. `witness`: tags that must be ours, of a resource whose name can be given again.
    """

    type: str
    id: str
    name: str
    made_by: tuple[str, str] | None = None
    like: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    witness: Mapping[str, str] | None = None


class Whose(Enum):
    """`HELD`: ours, goes with a stack of ours that stands. `LEFT`: ours, and no stack holds it any more. `UNPROVEN`: looks like ours."""

    HELD = "held"
    LEFT = "left"
    UNPROVEN = "unproven"
    NOT_OURS = "not ours"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """An experiment of a project, or with `experiment` None all of the project, its shared stacks too.

    `standing`: its stacks, the youngest last; `others`: names of the project's other stacks that stand.
    """

    project: str
    experiment: str | None = None
    standing: Sequence[StandingStack] = ()
    others: Sequence[str] = ()
    held: Ids = field(default_factory=dict)
    left: Ids = field(default_factory=dict)
    networks: frozenset[str] = frozenset()

    @property
    def stack(self) -> str:
        return f"{self.project}-{self.experiment}" if self.experiment else self.project

    def ids(self, type: str) -> list[str]:
        """What stands of a type."""
        return sorted(self.held.get(type, ()))

    def named(self, type: str, id: str) -> bool:
        """Whether a stack of ours names it, or did."""
        return id in self.held.get(type, ()) or id in self.left.get(type, ())

    def resembles(self, name: str) -> bool:
        """Whether a name begins like ours, and not like another stack's of the project; case does not count (buckets)."""
        name, longer = name.lower(), [each for each in self.others if each.startswith(f"{self.stack}-")]
        if any(_begins(name, each) for each in longer):
            return False
        return _begins(name, self.stack)

    def tagged(self, tags: Mapping[str, str]) -> bool:
        named = tags.get("experiment")
        return tags.get("project") == self.project and (
            named == self.experiment if self.experiment else f"{self.project}-{named}" not in self.others
        )


def _begins(name: str, stack: str) -> bool:
    return name == stack.lower() or name.startswith(f"{stack.lower()}-")


def whose(session: Any, owner: Owner, listed: Listed) -> tuple[Whose, str]:
    """The verdict, and for UNPROVEN the reason."""
    type, id = listed.made_by or (listed.type, listed.id)
    if id in owner.held.get(type, ()):
        return Whose.HELD, ""
    if id in owner.left.get(type, ()):
        if holder := holder_of(session, id):
            return Whose.UNPROVEN, f"a stack of ours named it once, now {holder} does"
        if listed.witness is not None and not owner.tagged(listed.witness):
            return Whose.UNPROVEN, "a deleted stack of ours named it, but it does not carry our tags"
        return Whose.LEFT, ""
    if owner.resembles(listed.like or listed.name):
        return Whose.UNPROVEN, "its name begins like ours, but no stack of ours names it"
    if owner.tagged(listed.tags):
        return Whose.UNPROVEN, "it carries our tags, but no stack of ours names it"
    return Whose.NOT_OURS, ""


def holder_of(session: Any, id: str) -> str:
    """The name of the stack that holds a resource now; "" where none does. Names are given again once they are free."""
    with aws_calls.Tolerating("does not exist"):
        for each in session.client("cloudformation").describe_stack_resources(PhysicalResourceId=id)["StackResources"]:
            return str(each["StackName"])
    return ""


def of(session: Any, project: str, experiment: str | None = None) -> Owner:
    """What the stacks name now. Of a whole project without the experiments that stand alone, which lean on nothing shared."""
    mine = f"{project}-{experiment}"
    ours = [each for each in _stacks(session, project) if stacks.is_ours(each, project)]
    asked = [each for each in ours if (each.name == mine if experiment else each.deleted or not each.alone)]
    standing = sorted((each for each in asked if not each.deleted), key=lambda each: each.created)
    held, left = (_named(session, [s for s in asked if s.deleted == gone]) for gone in (False, True))
    held[STACK] = frozenset(each.id for each in standing)
    networks = _named(session, [each for each in ours if each.kind == "network"])
    return Owner(
        project=project,
        experiment=experiment,
        standing=standing,
        others=[each.name for each in ours if not each.deleted and each not in asked],
        held=held,
        left=left,
        networks=networks.get(VPC, frozenset()),
    )


def _stacks(session: Any, project: str) -> Iterator[StandingStack]:
    """Of the project by their name alone, deleted ones too: which of them are ours, their tags say."""
    for each in aws_calls.entries(session, "cloudformation", "describe_stacks", "Stacks"):
        if each["StackName"].startswith(f"{project}-"):
            yield stacks.read(each)
    gone = {"StackStatusFilter": ["DELETE_COMPLETE"]}
    for each in aws_calls.entries(session, "cloudformation", "list_stacks", "StackSummaries", **gone):
        if each["StackName"].startswith(f"{project}-") and (found := stacks.describe(session, each["StackId"])):
            yield found


def _named(session: Any, found: Sequence[StandingStack]) -> dict[str, frozenset[str]]:
    ids: dict[str, set[str]] = {}
    for stack in found:
        for each in resources(session, stack.id):
            ids.setdefault(each["ResourceType"], set()).add(each["PhysicalResourceId"])
    return {type: frozenset(each) for type, each in ids.items()}


def resources(session: Any, stack: str) -> list[Mapping[str, Any]]:
    """What a stack names, by its id one that was deleted too; without what was never made."""
    named = aws_calls.entries(
        session, "cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack
    )
    return [each for each in named if each.get("PhysicalResourceId")]
