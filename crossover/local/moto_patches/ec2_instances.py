"""EC2: instances of templates are announced, so that those tagged `crossover:role` become servers on this machine."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION
from crossover.local.moto_patches.updating import PROPERTIES

ROLE_TAG = "crossover:role"
Started = Callable[[str, Mapping[str, str], str, str], None]  # instance id, tags, private address, user data


def install(
    changes: Replacements, *, started: Started, stopped: Callable[[str], None], booted: Callable[[str], None]
) -> None:
    """`started` is told of every instance of a template, `stopped(instance id)` of its end; `booted(user data)` of a boot that is done."""
    from moto.ec2.models.instances import Instance

    @changes.wraps(Instance, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        properties = _with_launch_template(cloudformation_json["Properties"])
        # moto looks security groups up by name; they play no part on one machine
        properties = {
            key: value for key, value in properties.items() if key not in ("SecurityGroups", "IamInstanceProfile")
        }
        instance = old(resource_name, {**cloudformation_json, "Properties": properties}, *rest, **named)
        setattr(instance, PROPERTIES, dict(cloudformation_json["Properties"]))
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        user_data = _user_data(properties.get("UserData"))
        started(instance.id, tags, str(instance.private_ip), user_data)
        booted(user_data)
        return instance

    @changes.wraps(Instance, "delete")
    def delete(old: Any, self: Any, *rest: Any, **named: Any) -> Any:
        stopped(self.id)
        return old(self, *rest, **named)


def _with_launch_template(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The instance's own properties over those of its launch template."""
    from moto.ec2.models import ec2_backends

    reference = properties.get("LaunchTemplate")
    if not reference:
        return dict(properties)
    backend = ec2_backends[ACCOUNT][REGION]
    if "LaunchTemplateId" in reference:
        template = backend.get_launch_template(reference["LaunchTemplateId"])
    else:
        template = backend.get_launch_template_by_name(reference["LaunchTemplateName"])
    data = template.get_version(reference.get("Version", "$Latest")).data
    inherited = {key: data[key] for key in ("ImageId", "InstanceType", "UserData") if data.get(key)}
    return {**inherited, **properties}


def _user_data(encoded: Any) -> str:
    return base64.b64decode(str(encoded)).decode(errors="replace") if encoded else ""
