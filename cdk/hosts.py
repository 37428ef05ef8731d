"""The parts that Redis hosts and program fleets share: Debian images, user data, the log group of their boots."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from aws_cdk import CfnParameter, Fn, Stack, Token
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk import organisation
from cdk.names import boot_log
from crossover.workflow.architecture import image_parameter, processor

BOOT = Path(__file__).parent / "boot"
USER_DATA_LIMIT_BYTES = 16_384
FIRST_VERSION = "1"  # of a launch template
BOOT_S = 1_200  # a boot that takes longer has failed, and says so before the deployment gives up waiting


def choose_image(stack: Stack, instance_type: str, *, gpu: bool) -> str:
    """Return the id of the machine image for `instance_type`: that of the account file if it names one; otherwise a token that is resolved
    at deployment to the newest public image, Debian's or, if `gpu`, AWS's Deep Learning image with NVIDIA drivers.

    The token is a template parameter, which is added to `stack` unless it has one for the same image.
    """
    if own := organisation.account_of(stack).image(instance_type, gpu=gpu):
        return own
    path = image_parameter(instance_type, gpu=gpu)
    name = "Image" + "".join(re.findall(r"\w", path.rpartition("/service/")[2])).title()
    existing = stack.node.try_find_child(name)
    if existing is None:
        existing = CfnParameter(stack, name, type="AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>", default=path)
    assert isinstance(existing, CfnParameter)
    return existing.value_as_string


def pin_image(scope: Construct, image_id: str, *, generation: int) -> ec2.CfnLaunchTemplate:
    """Build and return a launch template whose first version keeps the image that is newest at the first deployment, so that later updates
    of the stack do not replace its hosts.

    CloudFormation resolves a parameter for the newest image again at each update, and would replace an instance that refers to it, with its
    data. A launch template only gets another version; instances that name FIRST_VERSION keep their image until another `generation` makes
    another template.
    """
    named = Stack.of(scope).resolve(image_id)
    return ec2.CfnLaunchTemplate(
        scope,
        f"Image{fingerprint(str(named), str(generation))}",
        launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
            image_id=image_id,
            # Instances say the same of themselves; scanners read each template alone.
            metadata_options=ec2.CfnLaunchTemplate.MetadataOptionsProperty(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
        ),
    )


def user_data(script: str, facts: Mapping[str, str]) -> str:
    """Return an instance's user data, base64: `script` after a header of shell assignments. `script`: from `boot_script`, or a reference
    to where the template holds it.

    `facts`: {variable: value}, such as addresses and ARNs, never secrets. Values may be tokens that are known only at deployment. Raises
    ValueError if another value contains a single quote. The limit of 16 KB is not checked.
    """
    for key, value in facts.items():
        if not Token.is_unresolved(value) and "'" in value:
            raise ValueError(f"{key}: {value!r} contains a single quote, which would end the shell's")
    header = ["#!/bin/bash\n", *(part for key, value in facts.items() for part in (f"{key}='", value, "'\n"))]
    return Fn.base64(Fn.join("", [*header, script]))


def boot_script(name: str) -> str:
    """Return the text of the shell script `boot/<name>` without lines that are comments, which count towards the size limit of user data.
    A line `@other@` is replaced by the text of the file `boot/other`, read in the same way.
    """
    text = re.sub(r"^ *# .*\n", "", (BOOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(r"^@([\w.]+)@\n", lambda match: boot_script(match[1]), text, flags=re.MULTILINE)


def common_facts(scope: Construct, project: str, name: str, instance_type: str) -> dict[str, str]:
    """Return the shell variables that `boot/common.sh` reads, for a host of `project`. `name`: the host's name in the log.

    SESSION_AGENT is the version of the session manager's agent to install, and SESSION_AGENT_SHA256 its digest for the processor; both are
    empty if the account file pins none, and no agent is installed then. `instance_type`: decides on the processor.
    """
    agent = organisation.account_of(scope).session_agent
    return {
        "REGION": Stack.of(scope).region,
        "LOGS": boot_log(project),
        "NAME": name,
        "BOOT_S": str(BOOT_S),
        "SESSION_AGENT": agent.version or "",
        "SESSION_AGENT_SHA256": getattr(agent, processor(instance_type)) or "",
    }


def fingerprint(*parts: str) -> str:
    """Return a hash of `parts`, 8 hexadecimal digits. As part of a logical id, it makes CloudFormation replace a resource if a part
    changes.
    """
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
