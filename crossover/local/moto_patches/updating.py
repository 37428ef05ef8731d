"""Updating a stack, by CloudFormation's rules where moto has others: which instances are replaced, and what waits for whom.

An instance whose image, launch template or subnet changes is replaced. One whose user data change is stopped and started: they do not run
again. A wait condition counts what its handle is sent, and only a boot sends anything. A parameter that names another parameter (SSM) is
read anew at each update. Sources: the pages of AWS::EC2::Instance, AWS::CloudFormation::WaitCondition and "CloudFormation-supplied
parameter types" in the CloudFormation user guide.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import (
    ACCOUNT,
    REGION,
    MadeResource,
    ResourceType,
    WantedResource,
    without_effect,
)

REPLACING = (
    "AvailabilityZone",
    "BlockDeviceMappings",
    "ImageId",
    "KeyName",
    "LaunchTemplate",
    "PrivateIpAddress",
    "SubnetId",
)
PROPERTIES = "as_deployed"  # our mark on moto's instance: the properties that it was made with
_INSTANCE = "AWS::EC2::Instance"


class BootWaits:
    """`booted(user data)` is told of every first boot; conditions that are made wait for the boots that name their handle."""

    def __init__(self) -> None:
        self._boots: list[str] = []
        self._made = threading.local()

    def booted(self, user_data: str) -> None:
        self._boots.append(user_data)

    def resource_types(self) -> dict[str, ResourceType]:
        return {"AWS::CloudFormation::WaitCondition": ResourceType(make=self._condition)}

    def _condition(self, wanted: WantedResource) -> MadeResource:
        self._new().append(wanted)
        return without_effect(wanted)

    def begin(self) -> None:
        self._made.conditions = []

    def _new(self) -> list[WantedResource]:
        if not hasattr(self._made, "conditions"):
            self.begin()
        found: list[WantedResource] = self._made.conditions
        return found

    def check(self) -> None:
        """At the end of a stack's creation or update. Raises ValidationError in CloudFormation's words."""
        from moto.cloudformation.exceptions import ValidationError

        for wanted in self._new():
            handle, count = str(wanted.properties["Handle"]), int(wanted.properties.get("Count", 1))
            received = sum(handle in text for text in self._boots)
            if received < count:
                words = f"WaitCondition timed out. Received {received} conditions when expecting {count}"
                raise ValidationError(wanted.logical_id, f"{wanted.logical_id}: {words}")


def install(changes: Replacements, waits: BootWaits) -> None:
    from moto.cloudformation import models, parsing
    from moto.cloudformation.exceptions import ValidationError

    @changes.wraps(parsing.ResourceMap, "create")
    def create(old: Any, self: Any, template: Any) -> Any:
        waits.begin()
        ready = old(self, template)
        waits.check()
        return ready

    @changes.wraps(parsing.ResourceMap, "update")
    def update(old: Any, self: Any, template: Any, parameters: Any = None) -> None:
        waits.begin()
        self.before = self._resource_json_map
        old(self, template, parameters)
        waits.check()

    @changes.wraps(parsing.ResourceMap, "build_resource_diff")
    def difference(old: Any, self: Any, other_template: Any, parameters: Any = None) -> dict[str, list[str]]:
        found: dict[str, list[str]] = old(self, other_template, parameters)
        _add_affected(found["Modify"], self, other_template)
        return found

    @changes.wraps(parsing, "parse_and_update_resource")
    def update_one(old: Any, logical_id: str, resource_json: Any, resources_map: Any, *rest: Any, **named: Any) -> Any:
        there = resources_map[logical_id]
        if resource_json["Type"] == _INSTANCE:
            return _updated_instance(there, logical_id, resource_json, resources_map)
        if isinstance(there, MadeResource):
            return there  # they describe what one machine has no counterpart for
        before = resources_map.before[logical_id]
        if before != resource_json and _but_for_tags(before) == _but_for_tags(resource_json):
            return there  # with its old tags
        if updated := old(logical_id, resource_json, resources_map, *rest, **named):
            return updated
        kind = resource_json["Type"]
        raise ValidationError(logical_id, f"{logical_id}: the local cloud cannot update an {kind} in place")

    @changes.wraps(models.CloudFormationBackend, "_resolve_update_parameters")
    def resolved(old: Any, self: Any, instance: Any, incoming_params: list[dict[str, Any]]) -> dict[str, str]:
        """A parameter that stood at its default keeps that value, too; moto knows only those that were given."""
        declared = instance.template_dict.get("Parameters", {})
        kept = {name: each["Default"] for name, each in declared.items() if "Default" in each} | instance.parameters
        filled = [
            {"ParameterKey": each["ParameterKey"], "ParameterValue": kept.get(each["ParameterKey"], "")}
            if each.get("UsePreviousValue")
            else each
            for each in incoming_params
        ]
        found: dict[str, str] = old(self, instance, filled)
        return found


def _add_affected(modified: list[str], stack: Any, template: Mapping[str, Any]) -> None:
    """Adds what refers to an instance that is updated, or to a parameter whose value has changed; instances come first."""
    declared = template.get("Parameters", {})
    changed = {name for name in declared if _read_anew(stack, name, declared[name])}

    def affected(by: set[str]) -> list[str]:
        there, resources = stack._resource_json_map, template["Resources"]
        return [
            name
            for name in resources
            if name in there and name not in modified and by.intersection(_references(resources[name]))
        ]

    modified += affected(changed)
    kinds = template["Resources"]
    instances = {name for name in modified if kinds[name]["Type"] == _INSTANCE}
    modified += affected(instances)
    modified.sort(key=lambda name: name not in instances)


def _read_anew(stack: Any, name: str, parameter: Mapping[str, Any]) -> bool:
    path = stack.input_parameters.get(name, parameter.get("Default"))
    if not str(parameter["Type"]).startswith("AWS::SSM::Parameter::") or name not in stack.resolved_parameters:
        return False
    return bool(stack.parse_ssm_parameter(path, parameter["Type"]) != stack.resolved_parameters[name])


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "Ref" in value:
            yield value["Ref"]
        if "Fn::GetAtt" in value:
            yield value["Fn::GetAtt"][0]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _references(each)


def _updated_instance(there: Any, logical_id: str, resource_json: Any, resources_map: Any) -> Any:
    from moto.cloudformation import parsing

    _, resource, _ = parsing.parse_resource_and_generate_name(logical_id, resource_json, resources_map)
    was, wanted = getattr(there, PROPERTIES, {}), resource["Properties"]
    if all(was.get(each) == wanted.get(each) for each in REPLACING):
        setattr(there, PROPERTIES, dict(wanted))
        return there
    made = parsing.parse_and_create_resource(logical_id, resource_json, resources_map, ACCOUNT, REGION)
    there.delete(ACCOUNT, REGION)
    return made


def _but_for_tags(resource: Mapping[str, Any]) -> dict[str, Any]:
    return {**resource, "Properties": {**resource.get("Properties", {}), "Tags": None}}
