"""What Redis hosts and program fleets share: Debian images, user data, the log group of their boots."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from aws_cdk import CfnParameter, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk import organisation
from cdk.names import boot_log
from crossover.architecture.instances import image_parameter, processor

BOOT = Path(__file__).parent / "boot"
USER_DATA_LIMIT_BYTES = 16_384
FIRST_VERSION = "1"  # of a launch template
BOOT_S = 1_200  # a boot that takes longer has failed, and says so before the deployment gives up waiting


def image(stack: Stack, instance_type: str, *, gpu: bool) -> str:
    """The organisation's own image, else the newest one whose id an SSM parameter holds, read at deployment; one parameter per path."""
    if own := organisation.of(stack).image(instance_type, gpu=gpu):
        return own
    path = image_parameter(instance_type, gpu=gpu)
    name = "Image" + "".join(re.findall(r"\w", path.rpartition("/service/")[2])).title()
    existing = stack.node.try_find_child(name)
    if existing is None:
        existing = CfnParameter(stack, name, type="AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", default=path)
    assert isinstance(existing, CfnParameter)
    return existing.value_as_string


def standing_image(scope: Construct, image_id: str, *, generation: int) -> ec2.CfnLaunchTemplate:
    """A launch template whose first version keeps the image that was newest when it was made.

    CloudFormation reads a parameter that names the latest image anew at each update, whatever the update is for; an instance that refers to
    it is then replaced, data and all. A launch template is not replaced by another image: it gets another version, and its first one stays
    as it is. Instances that name FIRST_VERSION therefore keep their image until another `generation` makes another template.
    """
    named = Stack.of(scope).resolve(image_id)
    return ec2.CfnLaunchTemplate(
        scope,
        f"Image{fingerprint(str(named), str(generation))}",
        launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(image_id=image_id),
    )


def user_data(script: str, facts: Mapping[str, str]) -> str:
    """`script` (of `boot_script`, or where the template holds it) behind a header of assignments, base64. Facts hold addresses and ARNs,
    never secrets.

    The header's values may be known at deployment only; they are quoted for the shell, and none may hold a quote.
    """
    header = ["#!/bin/bash\n", *(part for key, value in facts.items() for part in (f"{key}='", value, "'\n"))]
    return Fn.base64(Fn.join("", [*header, script]))


def boot_script(name: str) -> str:
    """`boot/<name>` without its comments, which count towards the limit; a line `@other@` stands for that file's text."""
    text = re.sub(r"^ *# .*\n", "", (BOOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(r"^@([\w.]+)@\n", lambda match: boot_script(match[1]), text, flags=re.MULTILINE)


def common_facts(scope: Construct, project: str, name: str, instance_type: str) -> dict[str, str]:
    """What `boot/common.sh` reads. `name`: of the host in its log. SESSION_AGENT: the version of Session Manager's agent, and its digest
    for the processor; empty where the organisation pins none, and then none is installed.
    """
    agent = organisation.of(scope).session_agent
    return {
        "REGION": Stack.of(scope).region,
        "LOGS": boot_log(project),
        "NAME": name,
        "BOOT_S": str(BOOT_S),
        "SESSION_AGENT": agent.version or "",
        "SESSION_AGENT_SHA256": getattr(agent, processor(instance_type)) or "",
    }


def fingerprint(*parts: str) -> str:
    """Short hash for logical ids of what has to be made anew when one of `parts` changes."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
