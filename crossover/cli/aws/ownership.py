"""Whose a resource is: by its tags where it has some, else by its name, which begins with that of its stack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Owner:
    """An experiment of a project, or with `experiment` None all of the project, its shared stacks too.

    `others`: the project's other stacks, because `crossover-spirt-cifar10-run` begins with `crossover-spirt-` as well.
    """

    project: str
    experiment: str | None = None
    others: Sequence[str] = field(default=())

    @property
    def stack(self) -> str:
        return f"{self.project}-{self.experiment}" if self.experiment else self.project

    def named(self, name: str) -> bool:
        """Whether a resource of this name is the owner's; case does not count (buckets)."""
        name, stack = name.lower(), self.stack.lower()
        if name != stack and not name.startswith(f"{stack}-"):
            return False
        longer = [each.lower() for each in self.others if each.lower().startswith(f"{stack}-")]
        return self.experiment is None or not any(name == each or name.startswith(f"{each}-") for each in longer)

    def tagged(self, tags: Sequence[Mapping[str, Any]]) -> bool:
        """By tags in any of AWS's spellings: Key and Value, key and value."""
        found = {str(tag.get("Key", tag.get("key"))): tag.get("Value", tag.get("value")) for tag in tags}
        if found.get("project") != self.project:
            return False
        return self.experiment is None or found.get("experiment") == self.experiment

    def tag_filters(self) -> list[dict[str, Any]]:
        """For the tagging API."""
        mine = [{"Key": "project", "Values": [self.project]}]
        return mine + ([{"Key": "experiment", "Values": [self.experiment]}] if self.experiment else [])

    def ec2_filters(self) -> list[dict[str, Any]]:
        return [{"Name": f"tag:{each['Key']}", "Values": each["Values"]} for each in self.tag_filters()]


def of(session: Any, project: str, experiment: str | None) -> Owner:
    """With the other stacks that stand now."""
    pages = session.client("cloudformation").get_paginator("describe_stacks").paginate()
    names = [stack["StackName"] for page in pages for stack in page["Stacks"]]
    mine = f"{project}-{experiment}" if experiment else project
    return Owner(project, experiment, tuple(name for name in names if name.startswith(f"{project}-") and name != mine))
