"""What CloudFormation has beside moto: what it remembers of stacks, and the rules of updates."""

import json
import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from crossover.local.moto_patches.instances import decode_user_data, merge_launch_template
from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import (
    ACCOUNT,
    REGION,
    MadeResource,
    ResourceType,
    WantedResource,
    make_adapter,
    make_without_effect,
)

# --- what is remembered -----------------------------------------------------------------------------------------------
# What CloudFormation remembers: deleted stacks with their resources, deletions that failed, the stack that holds a resource.
#
# ListStackResources and DescribeStacks answer for a deleted stack by its id, for 90 days; moto makes the resources anew when it is asked
# for them. A deletion that fails leaves the stack, DELETE_FAILED, with the reason in its events; moto forgets the stack. A stack whose
# export another one imports stays as it is, with the reason beside its status; moto deletes it. Sources: github.com/aws/aws-cdk/issues/604
# (its words), https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ListStackResources.html ("For deleted stacks ... up to
# 90 days after the stack has been deleted"), API_DescribeStackResources.html (PhysicalResourceId), API_DeleteStack.html (answers at once).

_REMEMBERED = "crossover_resources"  # our mark on moto's deleted stack


def install(changes: Replacements) -> None:
    """Add CloudFormation's rules of updates, creation, deletion and remembered stacks to moto."""
    from moto.awslambda.models import LayerVersion

    _updates(changes)
    # Ref and PhysicalResourceId of a layer version are its ARN; moto knows none.
    changes.add(LayerVersion, "physical_resource_id", property(lambda version: version.arn))
    _creation(changes)
    _deletion(changes)
    _resources(changes)


def _creation(changes: Replacements) -> None:
    """Patch moto so that a stack under creation shows the resources that exist so far, and no outputs. moto would create a resource that
    is asked for before it exists, and so create it twice.
    """
    from moto.cloudformation.models import Stack

    def is_being_made(stack: Any) -> bool:
        """Return whether a stack's creation is in progress."""
        return stack.status in ("CREATE_PENDING", "CREATE_IN_PROGRESS")

    resources, outputs = (vars(Stack)[name].fget for name in ("stack_resources", "outputs"))
    changes.replace(
        Stack,
        "stack_resources",
        property(lambda stack: _remembered(stack) if is_being_made(stack) else resources(stack)),
    )
    changes.replace(Stack, "outputs", property(lambda stack: [] if is_being_made(stack) else outputs(stack)))


def _deletion(changes: Replacements) -> None:
    """Patch moto so that deletions of stacks can fail, and are remembered, as on AWS."""
    from moto.cloudformation.models import CloudFormationBackend, Event, Stack
    from moto.cloudformation.parsing import ResourceMap

    @changes.wraps(ResourceMap, "_delete_resource")
    def delete_resource(old: Any, self: Any, resource: Any, described: Any) -> Any:
        """Delete a resource, and record the error if that fails."""
        failures = self.__dict__.setdefault("crossover_failures", {})
        try:
            done = old(self, resource, described)
        except Exception as error:
            failures[resource.logical_resource_id] = (resource, str(getattr(error, "message", None) or error))
            raise
        failures.pop(resource.logical_resource_id, None)
        return done

    @changes.wraps(CloudFormationBackend, "delete_stack")
    def delete(old: Any, self: Any, name_or_id: str) -> Any:
        """Delete a stack, unless others use its exports."""
        stack = self.stacks.get(name_or_id)
        if stack is None:  # by name: moto asks again, by id
            return old(self, name_or_id)
        if words := _in_use(self, stack):
            stack.status_reason = words
            return None
        with _being_made(stack):
            return delete_made(old, self, stack)

    def delete_made(old: Any, self: Any, stack: Any) -> Any:
        """Delete a stack whose resources are all created. If that fails, keep it with the status DELETE_FAILED and the reasons."""
        setattr(stack, _REMEMBERED, _remembered(stack))
        try:
            return old(self, stack.stack_id)
        except Exception as error:
            self.stacks[stack.stack_id] = stack
            reason = str(getattr(error, "message", None) or error)
            stack.status, stack.status_reason = "DELETE_FAILED", reason
            for resource, why in stack.resource_map.crossover_failures.values():
                physical = getattr(resource, "physical_resource_id", "")
                given = (resource.logical_resource_id, physical, resource.cf_resource_type)
                stack.events.append(Event(stack.stack_id, stack.name, *given, "DELETE_FAILED", why, None))
            stack._add_stack_event("DELETE_FAILED", reason)

    @changes.wraps(Stack, "create_resources")
    def create(old: Any, self: Any) -> None:
        """Create a stack's resources, unless it was deleted meanwhile."""
        with _being_made(self):
            if not self.status.startswith("DELETE"):
                old(self)


def _in_use(backend: Any, stack: Any) -> str:
    """Return why the stack cannot be deleted, because others import its exports; "" if it can."""
    for export in stack.exports:
        imported = json.dumps({"Fn::ImportValue": export.name})
        others = [each.name for each in backend.stacks.values() if imported in json.dumps(each.template_dict)]
        if others:
            return f"Export {export.name} cannot be deleted as it is in use by {' and '.join(others)}"
    return ""


def _being_made(stack: Any) -> Any:
    """Return the lock that is held while a stack is created, so that a deletion meanwhile waits and removes all of it."""
    return stack.__dict__.setdefault("crossover_being_made", threading.RLock())


def _remembered(stack: Any) -> list[Any]:
    """Return every resource that a stack has ever had, including those that a failed deletion removed."""
    made = stack.resource_map._parsed_resources
    found = {each.logical_resource_id: each for each in getattr(stack, _REMEMBERED, [])}
    for name in stack.resource_map.resources:
        if (each := made.get(name)) is not None and not isinstance(each, str):
            found[name] = SimpleNamespace(
                logical_resource_id=name,
                physical_resource_id=getattr(each, "physical_resource_id", ""),
                cf_resource_type=stack.resource_map._resource_json_map[name]["Type"],
            )
    return list(found.values())


def _resources(changes: Replacements) -> None:
    """Patch moto so that it lists the resources of deleted stacks, and finds stacks by a physical id, as on AWS."""
    from moto.cloudformation.exceptions import ValidationError
    from moto.cloudformation.models import CloudFormationBackend
    from moto.cloudformation.responses import CloudFormationResponse, StackResourceDTO
    from moto.core.responses import ActionResult

    @changes.wraps(CloudFormationBackend, "list_stack_resources")
    def listed(old: Any, self: Any, name_or_id: str) -> Any:
        """Return a stack with its resources, as remembered if it was deleted."""
        stack = self.get_stack(name_or_id)
        return (stack, _remembered(stack)) if stack.status.startswith("DELETE") else old(self, name_or_id)

    @changes.wraps(CloudFormationResponse, "describe_stack_resources")
    def described(old: Any, self: Any) -> Any:
        """Answer DescribeStackResources, also for a physical id without a stack's name."""
        physical = self._get_param("PhysicalResourceId")
        if self._get_param("StackName") or not physical:
            return old(self)
        for stack in self.cloudformation_backend.stacks.values():
            held = _remembered(stack)
            if any(each.physical_resource_id == physical for each in held):
                return ActionResult({"StackResources": [StackResourceDTO(stack, each) for each in held]})
        raise ValidationError(message=f"Stack for {physical} does not exist")


# --- updates ----------------------------------------------------------------------------------------------------------
# Updating a stack, by CloudFormation's rules where moto has others: which instances are replaced, and what waits for whom.
#
# An instance whose image, launch template or subnet changes is replaced. One whose user data change is stopped and started: they do not
# run again. A wait condition counts what its handle is sent, and only a boot sends anything. A parameter that names another parameter
# (SSM) is read anew at each update. Sources: the pages of AWS::EC2::Instance, AWS::CloudFormation::WaitCondition and
# "CloudFormation-supplied parameter types" in the CloudFormation user guide.

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
_INSTANCE, _CONDITION = "AWS::EC2::Instance", "AWS::CloudFormation::WaitCondition"


class BootWaits:
    """Wait conditions of stacks, which wait for the first boots of instances. `booted(user_data)` is called at every first boot."""

    def __init__(self) -> None:
        """Start without any boots."""
        self._boots: list[str] = []
        self._made = threading.local()

    def booted(self, user_data: str) -> None:
        """Record the user data of an instance that boots."""
        self._boots.append(user_data)

    def make_condition(self, wanted: WantedResource) -> MadeResource:
        """Create a wait condition, to be checked at the end of the stack's creation."""
        self._new().append(wanted)
        return make_without_effect(wanted)

    def begin(self) -> None:
        """Start without any wait conditions."""
        self._made.conditions = []

    def _new(self) -> list[WantedResource]:
        """Return the wait conditions created so far in this thread."""
        if not hasattr(self._made, "conditions"):
            self.begin()
        found: list[WantedResource] = self._made.conditions
        return found

    def check(self) -> None:
        """Raise ValidationError, in CloudFormation's words, if a wait condition of the stack would not be met."""
        from moto.cloudformation.exceptions import ValidationError

        for wanted in self._new():
            handle, count = str(wanted.properties["Handle"]), int(wanted.properties.get("Count", 1))
            received = sum(handle in text for text in self._boots)
            if received < count:
                words = f"WaitCondition timed out. Received {received} conditions when expecting {count}"
                raise ValidationError(wanted.logical_id, f"{wanted.logical_id}: {words}")


def _updates(changes: Replacements) -> None:
    """Patch moto so that updates of stacks follow CloudFormation's rules."""
    from moto.cloudformation import models, parsing
    from moto.cloudformation.exceptions import ValidationError
    from moto.ec2.models.instances import Instance

    waits = BootWaits()
    condition = make_adapter(_CONDITION, ResourceType(make=waits.make_condition))

    @changes.wraps(parsing, "resource_class_from_type")
    def class_of(old: Any, resource_type: str) -> Any:
        """Return the class for a type of resource; wait conditions have one of their own."""
        return condition if resource_type == _CONDITION else old(resource_type)

    @changes.wraps(Instance, "create_from_cloudformation_json")
    def boot(old: Any, cls: Any, resource_name: str, cloudformation_json: Any, *rest: Any, **named: Any) -> Any:
        """Create an EC2 instance, and record its properties and its boot."""
        properties = dict(cloudformation_json["Properties"])
        instance = old(resource_name, cloudformation_json, *rest, **named)
        setattr(instance, PROPERTIES, properties)
        waits.booted(decode_user_data(merge_launch_template(properties)))
        return instance

    @changes.wraps(parsing.ResourceMap, "create")
    def create(old: Any, self: Any, template: Any) -> Any:
        """Create a stack's resources, then check its wait conditions."""
        waits.begin()
        ready = old(self, template)
        waits.check()
        return ready

    @changes.wraps(parsing.ResourceMap, "update")
    def update(old: Any, self: Any, template: Any, parameters: Any = None) -> None:
        """Update a stack's resources, then check its wait conditions."""
        waits.begin()
        self.before = self._resource_json_map
        old(self, template, parameters)
        waits.check()

    @changes.wraps(parsing.ResourceMap, "build_resource_diff")
    def difference(old: Any, self: Any, other_template: Any, parameters: Any = None) -> dict[str, list[str]]:
        """Return the logical ids to add, modify and remove; resources that refer to a replaced one are modified too."""
        found: dict[str, list[str]] = old(self, other_template, parameters)
        _add_affected(found["Modify"], self, other_template)
        return found

    @changes.wraps(parsing, "parse_and_update_resource")
    def update_one(old: Any, logical_id: str, resource_json: Any, resources_map: Any, *rest: Any, **named: Any) -> Any:
        """Update one resource, or keep it if AWS would do so. Raises ValidationError if moto cannot update it in place."""
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
        """Return the stack's parameters by name; a parameter that had its default value keeps that value."""
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
    """Add to `modified` the resources that refer to an updated instance or to a changed parameter; instances come first."""
    declared = template.get("Parameters", {})
    changed = {name for name in declared if _read_anew(stack, name, declared[name])}

    def affected(by: set[str]) -> list[str]:
        """Return the resources, not modified yet, that refer to one of the given resources."""
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
    """Return whether an SSM parameter of the stack has another value than at the last deployment."""
    path = stack.input_parameters.get(name, parameter.get("Default"))
    if not str(parameter["Type"]).startswith("AWS::SSM::Parameter::") or name not in stack.resolved_parameters:
        return False
    return bool(stack.parse_ssm_parameter(path, parameter["Type"]) != stack.resolved_parameters[name])


def _references(value: Any) -> Iterator[str]:
    """Yield the logical ids to which a template's value refers, at any depth."""
    if isinstance(value, dict):
        if "Ref" in value:
            yield value["Ref"]
        if "Fn::GetAtt" in value:
            yield value["Fn::GetAtt"][0]
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _references(each)


def _updated_instance(there: Any, logical_id: str, resource_json: Any, resources_map: Any) -> Any:
    """Return the instance with its new properties: the same one, or a new one that replaces it if AWS would replace it."""
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
    """Return a copy of a resource without its tags."""
    return {**resource, "Properties": {**resource.get("Properties", {}), "Tags": None}}
