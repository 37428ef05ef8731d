"""EC2: template instances tagged `crossover:role` become servers on this machine; Auto Scaling groups become programs."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION

ROLE_TAG = "crossover:role"
Started = Callable[[str, Mapping[str, str], str, str], None]  # instance id, tags, private address, user data
Resized = Callable[[str, int, str, str], None]  # group, desired capacity, user data and role of its launch template


def install(changes: Replacements, *, started: Started, stopped: Callable[[str], None], resized: Resized) -> None:
    """Install the patches of EC2 instances and Auto Scaling groups through `changes`.

    `started(instance id, tags, private address, user data as text)`: called for every instance of a template; `stopped(instance id)`:
    called when it is deleted; `resized(group, capacity, user data, role)`: called with the user data as moto has it (base64 or text)
    whenever a group's desired capacity is set, and with 0 when the group is deleted; with capacity 0 the role is "".
    """
    from moto.ec2.models.instances import Instance

    @changes.wraps(Instance, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        """Create moto's instance from a template, with the settings of its launch template but without security groups and profile; call
        `started` for it, and return it. `old`: moto's method.
        """
        properties = merge_launch_template(cloudformation_json["Properties"])
        # moto looks security groups up by name; they play no part on one machine
        properties = {
            key: value for key, value in properties.items() if key not in ("SecurityGroups", "IamInstanceProfile")
        }
        instance = old(resource_name, {**cloudformation_json, "Properties": properties}, *rest, **named)
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        started(instance.id, tags, str(instance.private_ip), decode_user_data(properties))
        return instance

    @changes.wraps(Instance, "delete")
    def delete(old: Any, self: Any, *rest: Any, **named: Any) -> Any:
        """Call `stopped` with an instance's id, then delete moto's instance. `old`: moto's method, whose result is returned."""
        stopped(self.id)
        return old(self, *rest, **named)

    announce_groups(changes, resized)


def merge_launch_template(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an instance's properties in a template; image, type and user data that they lack are taken from its launch template,
    if it names one.
    """
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


def decode_user_data(properties: Mapping[str, Any]) -> str:
    """Return the user data in an instance's properties, decoded from base64 to text; "" if it has none."""
    encoded = properties.get("UserData")
    return base64.b64decode(str(encoded)).decode(errors="replace") if encoded else ""


def announce_groups(changes: Replacements, resized: Resized) -> None:
    """Install the patches that call `resized(group, capacity, user data, role)` whenever the capacity of an Auto Scaling group is set, and
    with 0 when the group is deleted.

    moto itself starts no instances for a group any more. `changes`: records the patch and undoes it.
    """
    from moto.autoscaling.models import FakeAutoScalingGroup

    @changes.wraps(FakeAutoScalingGroup, "set_desired_capacity")
    def set_capacity(old: Any, self: Any, new_capacity: Any) -> None:
        """Set a group's desired capacity and call `resized`, without making instances in moto: moto's method, `old`, is not called.
        `new_capacity`: None for the group's minimum.
        """
        # The programs are the instances here: moto's own, made from image and security group by name, play no part.
        self.desired_capacity = int(self.min_size if new_capacity is None else new_capacity)
        resized(
            self.name,
            self.desired_capacity,
            str(self.user_data or ""),
            _find_role(self) if self.desired_capacity else "",
        )

    @changes.wraps(FakeAutoScalingGroup, "delete")
    def delete(old: Any, self: Any, *rest: Any) -> None:
        """Call `resized` with 0 for a group, and delete moto's group by moto's method `old`."""
        resized(self.name, 0, "", "")
        old(self, *rest)


def decrement_capacity(group: str) -> None:
    """Lower the desired capacity of the group named `group` in moto by one, because an instance has left it. Does nothing if there is no
    such group or its capacity is 0.

    This stands for TerminateInstanceInAutoScalingGroup with ShouldDecrementDesiredCapacity.
    """
    from moto.autoscaling.models import autoscaling_backends

    found = autoscaling_backends[ACCOUNT][REGION].autoscaling_groups.get(group)
    if found is not None and found.desired_capacity:
        found.desired_capacity -= 1


def _find_role(group: Any) -> str:
    """Return the name of the IAM role in the instance profile of a group's launch template; "" if it names no profile. `group`: moto's
    object.
    """
    from moto.iam.models import iam_backends

    version = group.ec2_launch_template.get_version(group.launch_template_version)
    given = version.data.get("IamInstanceProfile", {})
    name = given.get("Name") or given.get("Arn", "").rpartition("/")[2]
    if not name:
        return ""
    return str(iam_backends[ACCOUNT]["aws"].get_instance_profile(name).roles[0].name)
