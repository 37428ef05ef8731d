"""What Redis hosts and program fleets share: Debian images, instance types, user data, the signal that a boot has ended."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from aws_cdk import CfnParameter, Fn, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from crossover.processors import processor

BOOT = Path(__file__).parent / "boot"
USER_DATA_LIMIT_BYTES = 16_384
FIRST_VERSION = "1"  # of a launch template


def debian_image(stack: Stack, instance_type: str) -> str:
    """The id of Debian 12's newest image for the processor, by the SSM parameter that Debian publishes."""
    return image(stack, f"/aws/service/debian/release/12/latest/{processor(instance_type)}")


def image(stack: Stack, path: str) -> str:
    """The image id that an SSM parameter holds, read at deployment; one template parameter per path."""
    name = "Image" + "".join(re.findall(r"\w", path.rpartition("/service/")[2])).title()
    existing = stack.node.try_find_child(name)
    if existing is None:
        existing = CfnParameter(stack, name, type="AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", default=path)
    assert isinstance(existing, CfnParameter)
    return existing.value_as_string


def standing_image(scope: Construct, image_id: str, *, generation: int) -> ec2.CfnLaunchTemplate:
    """A launch template whose first version keeps the image that was newest when it was made.

    CloudFormation reads a parameter that names the latest image anew at each update, whatever the update is for; an instance
    that refers to it is then replaced, data and all. A launch template is not replaced by another image: it gets another
    version, and its first one stays as it is. Instances that name FIRST_VERSION therefore keep their image until another
    `generation` makes another template.
    """
    named = Stack.of(scope).resolve(image_id)
    return ec2.CfnLaunchTemplate(
        scope,
        f"Image{fingerprint(str(named), str(generation))}",
        launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(image_id=image_id),
    )


def user_data(script: str, facts: Mapping[str, str]) -> str:
    """`boot/<script>` behind a header of assignments, base64. Facts hold addresses and ARNs, never secrets.

    The header's values may be known at deployment only; they are quoted for the shell, and none may hold a quote.
    """
    header = ["#!/bin/bash\n", *(part for key, value in facts.items() for part in (f"{key}='", value, "'\n"))]
    return Fn.base64(Fn.join("", [*header, (BOOT / script).read_text()]))


def fingerprint(*parts: str) -> str:
    """Short hash for logical ids of what has to be made anew when one of `parts` changes."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def metadata_options() -> ec2.CfnInstance.MetadataOptionsProperty:
    """IMDSv2 alone, not reachable from a container or proxy."""
    return ec2.CfnInstance.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
    )
