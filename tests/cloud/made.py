"""Stacks that tests make by hand, ours and other people's, and the way to clear an account of all but the neighbours' things."""

import functools
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from crossover.local.cloud import LocalCloud
from crossover.running.account import DeployedStack
from tests.cloud import neighbours

TOPIC: Mapping[str, Any] = {"Topic": {"Type": "AWS::SNS::Topic"}}


def stack(session: Any, name: str, resources: Mapping[str, Any] = TOPIC, **tags: str) -> str:
    """Its id. Underscores in names of tags become hyphens."""
    given = [{"Key": key.replace("_", "-"), "Value": value} for key, value in tags.items()]
    body = json.dumps({"Resources": resources})
    made = session.client("cloudformation").create_stack(StackName=name, TemplateBody=body, Tags=given)
    return str(made["StackId"])


def ours(session: Any, project: str, part: str, resources: Mapping[str, Any] = TOPIC, **more: str) -> str:
    """With the tags that a deployment gives it."""
    return stack(session, f"{project}-{part}", resources, **tags(project, part), **more)


def tags(project: str, part: str) -> dict[str, str]:
    """Return the tags of a stack of the project, by its part: "network", "broker", or an experiment's name."""
    shared = part in ("network", "broker")
    return {
        "project": project,
        "experiment": "shared" if shared else part,
        "stack-kind": part if shared else "experiment",
    }


def stack_tags(session: Any, name: str) -> dict[str, str]:
    """Of a stack that stands; none where there is none."""
    listed = session.client("cloudformation").describe_stacks()["Stacks"]
    return {tag["Key"]: tag["Value"] for each in listed if each["StackName"] == name for tag in each["Tags"]}


def standing(name: str, state: str, *, created: datetime | None = None) -> DeployedStack:
    """A stack of ours in a state that the cloud on one machine never reaches."""
    moment, (project, _, part) = created or datetime.now(UTC), name.partition("-")
    return DeployedStack(name=name, state=state, created=moment, changed=moment, tags=tags(project, part))


def one_session(cloud: LocalCloud) -> Any:
    """A session whose clients are made once: reading their models takes longer than a command's calls."""
    session = cloud.session()
    session.client = functools.cache(session.client)
    return session


def stacks(cloud: LocalCloud) -> set[str]:
    """That stand in our region, without the neighbours'."""
    return set(cloud.stacks()) - neighbours.STACKS


def clear(cloud: LocalCloud) -> None:
    """Destroy all stacks, newest first, except other people's."""
    for name in reversed(cloud.stacks()):
        if name not in neighbours.STACKS:
            cloud.destroy(name)
