"""Auto Scaling: a group's capacity becomes programs on this machine."""

from collections.abc import Callable
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION

Resized = Callable[[str, int, str, str], None]  # group, desired capacity, user data and role of its launch template


def install(changes: Replacements, *, resized: Resized) -> None:
    """`resized` is told whenever a group's desired capacity is set, and of 0 when the group is deleted."""
    from moto.autoscaling.models import FakeAutoScalingGroup

    @changes.wraps(FakeAutoScalingGroup, "set_desired_capacity")
    def set_capacity(old: Any, self: Any, new_capacity: Any) -> None:
        # The programs are the instances here: moto's own, made from image and security group by name, play no part.
        self.desired_capacity = int(self.min_size if new_capacity is None else new_capacity)
        resized(
            self.name, self.desired_capacity, str(self.user_data or ""), _role(self) if self.desired_capacity else ""
        )

    @changes.wraps(FakeAutoScalingGroup, "delete")
    def delete(old: Any, self: Any, *rest: Any) -> None:
        resized(self.name, 0, "", "")
        old(self, *rest)


def decrement(group: str) -> None:
    """An instance has left with its place: TerminateInstanceInAutoScalingGroup with ShouldDecrementDesiredCapacity."""
    from moto.autoscaling.models import autoscaling_backends

    found = autoscaling_backends[ACCOUNT][REGION].autoscaling_groups.get(group)
    if found is not None and found.desired_capacity:
        found.desired_capacity -= 1


def _role(group: Any) -> str:
    """The role's name of the instance profile that the launch template gives to its instances; empty where there is none."""
    from moto.iam.models import iam_backends

    version = group.ec2_launch_template.get_version(group.launch_template_version)
    given = version.data.get("IamInstanceProfile", {})
    name = given.get("Name") or given.get("Arn", "").rpartition("/")[2]
    if not name:
        return ""
    return str(iam_backends[ACCOUNT]["aws"].get_instance_profile(name).roles[0].name)
