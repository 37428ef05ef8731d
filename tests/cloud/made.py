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
    """Create a stack, and return its id. `tags`: its tags; underscores in their names become hyphens."""
    given = [{"Key": key.replace("_", "-"), "Value": value} for key, value in tags.items()]
    body = json.dumps({"Resources": resources})
    made = session.client("cloudformation").create_stack(StackName=name, TemplateBody=body, Tags=given)
    return str(made["StackId"])


def ours(session: Any, project: str, part: str, resources: Mapping[str, Any] = TOPIC, **more: str) -> str:
    """Create a stack with the tags that a deployment of the project would give it, and return its id."""
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
    """Return the tags of an existing stack; {} if there is none."""
    listed = session.client("cloudformation").describe_stacks()["Stacks"]
    return {tag["Key"]: tag["Value"] for each in listed if each["StackName"] == name for tag in each["Tags"]}


def standing(name: str, state: str, *, created: datetime | None = None) -> DeployedStack:
    """Return the description of a project's stack in a state that the local cloud never reaches."""
    moment, (project, _, part) = created or datetime.now(UTC), name.partition("-")
    return DeployedStack(name=name, state=state, created=moment, changed=moment, tags=tags(project, part))


def one_session(cloud: LocalCloud) -> Any:
    """Return a session that creates each client only once, because creating one is slow."""
    session = cloud.session()
    session.client = functools.cache(session.client)
    return session


def stacks(cloud: LocalCloud) -> set[str]:
    """Return the names of the existing stacks in our region, without other people's."""
    return set(cloud.stacks()) - neighbours.STACKS


def clear(cloud: LocalCloud) -> None:
    """Destroy all stacks, newest first, except other people's."""
    for name in reversed(cloud.stacks()):
        if name not in neighbours.STACKS:
            cloud.destroy(name)
