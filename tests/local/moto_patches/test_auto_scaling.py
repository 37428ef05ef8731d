"""Auto Scaling as it runs locally: setting a group's capacity tells the fleets, deleting it ends them."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover.local.cloud import LocalCloud
from crossover.local.moto_patches import instances
from tests.local.parts import write_assembly

TEMPLATE = {
    "Resources": {
        "Template": {
            "Type": "AWS::EC2::LaunchTemplate",
            "Properties": {
                "LaunchTemplateData": {
                    "ImageId": "ami-12c6146b",
                    "InstanceType": "t2.large",
                    "IamInstanceProfile": {"Arn": {"Fn::GetAtt": ["Profile", "Arn"]}},
                    "UserData": {"Fn::Base64": "#!/bin/bash\nexit 0\n"},
                }
            },
        },
        "Role": {
            "Type": "AWS::IAM::Role",
            "Properties": {"RoleName": "peer", "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
        },
        "Profile": {"Type": "AWS::IAM::InstanceProfile", "Properties": {"Roles": [{"Ref": "Role"}]}},
        "Group": {
            "Type": "AWS::AutoScaling::AutoScalingGroup",
            "Properties": {
                "AutoScalingGroupName": "crossover-fleet",
                "MinSize": "0",
                "MaxSize": "3",
                "AvailabilityZones": ["us-east-1a"],
                "LaunchTemplate": {
                    "LaunchTemplateId": {"Ref": "Template"},
                    "Version": {"Fn::GetAtt": ["Template", "LatestVersionNumber"]},
                },
            },
        },
    }
}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[tuple[LocalCloud, list[tuple[str, int, str, str]]]]:
    """Yield a cloud with one auto scaling group, and the list of the calls that resize its fleet: name, capacity, user data and role."""
    told: list[tuple[str, int, str, str]] = []
    with LocalCloud(tmp_path / "cloud") as running:
        running.fleets.resize = lambda *what: told.append(what)  # type: ignore[method-assign]
        from crossover.local import moto_patches

        with moto_patches.replacing.Replacements() as changes:
            instances.announce_groups(changes, running.fleets.resize)
            running.deploy(write_assembly(tmp_path / "assembly", {"peers": json.loads(json.dumps(TEMPLATE))}, {}))
            yield running, told


@pytest.mark.slow
def test_the_fleet_is_told_of_its_capacity_and_user_data(
    cloud: tuple[LocalCloud, list[tuple[str, int, str, str]]],
) -> None:
    """Deploy an empty group, set its capacity, lower it and destroy it: the fleet is resized each time a capacity is set or the group
    deleted, with user data and role.
    """
    running, told = cloud
    assert {capacity for _, capacity, *_ in told} == {0}  # deployed empty
    groups = running.client("autoscaling")
    groups.set_desired_capacity(AutoScalingGroupName="crossover-fleet", DesiredCapacity=2)
    name, capacity, user_data, role = told[-1]
    assert (name, capacity, role) == ("crossover-fleet", 2, "peer")
    assert base64.b64decode(user_data).startswith(b"#!/bin/bash\nexit 0")

    instances.decrement_capacity("crossover-fleet")
    (group,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["crossover-fleet"])["AutoScalingGroups"]
    assert group["DesiredCapacity"] == 1
    running.destroy()
    assert told[-1][:2] == ("crossover-fleet", 0)
