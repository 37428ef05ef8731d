"""What CloudFormation remembers: deleted stacks with their resources, deletions that failed, the stack that holds a resource.

ListStackResources and DescribeStacks answer for a deleted stack by its id, for 90 days; moto makes the resources anew when it is asked for
them. A deletion that fails leaves the stack, DELETE_FAILED, with the reason in its events; moto forgets the stack. A stack whose export
another one imports stays as it is, with the reason beside its status; moto deletes it. Sources:
github.com/aws/aws-cdk/issues/604 (its words),
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_ListStackResources.html ("For deleted stacks ... up to 90 days after
the stack has been deleted"), API_DescribeStackResources.html (PhysicalResourceId), API_DeleteStack.html (answers at once).
"""

import json
import threading
from types import SimpleNamespace
from typing import Any

from crossover.local.moto_patches.replacing import Replacements

_REMEMBERED = "crossover_resources"  # our mark on moto's deleted stack


def install(changes: Replacements) -> None:
    from moto.awslambda.models import LayerVersion

    # Ref and PhysicalResourceId of a layer version are its ARN; moto knows none.
    changes.add(LayerVersion, "physical_resource_id", property(lambda version: version.arn))
    _deletion(changes)
    _resources(changes)


def _deletion(changes: Replacements) -> None:
    from moto.cloudformation.models import CloudFormationBackend, Event, Stack
    from moto.cloudformation.parsing import ResourceMap

    @changes.wraps(ResourceMap, "_delete_resource")
    def delete_resource(old: Any, self: Any, resource: Any, described: Any) -> Any:
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
        stack = self.stacks.get(name_or_id)
        if stack is None:  # by name: moto asks again, by id
            return old(self, name_or_id)
        if words := _in_use(self, stack):
            stack.status_reason = words
            return None
        with _being_made(stack):
            return delete_made(old, self, stack)

    def delete_made(old: Any, self: Any, stack: Any) -> Any:
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
        with _being_made(self):
            if not self.status.startswith("DELETE"):
                old(self)


def _in_use(backend: Any, stack: Any) -> str:
    """Why nobody may delete the stack; "" where nobody imports what it exports."""
    for export in stack.exports:
        imported = json.dumps({"Fn::ImportValue": export.name})
        others = [each.name for each in backend.stacks.values() if imported in json.dumps(each.template_dict)]
        if others:
            return f"Export {export.name} cannot be deleted as it is in use by {' and '.join(others)}"
    return ""


def _being_made(stack: Any) -> Any:
    """Held while it is made: a deletion that comes meanwhile, as after Ctrl-C, waits, and takes all of it. CloudFormation would cancel."""
    return stack.__dict__.setdefault("crossover_being_made", threading.RLock())


def _remembered(stack: Any) -> list[Any]:
    """Every resource that was ever made of the stack, also those that an earlier, failed deletion took away."""
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
    from moto.cloudformation.exceptions import ValidationError
    from moto.cloudformation.models import CloudFormationBackend
    from moto.cloudformation.responses import CloudFormationResponse, StackResourceDTO
    from moto.core.responses import ActionResult

    @changes.wraps(CloudFormationBackend, "list_stack_resources")
    def listed(old: Any, self: Any, name_or_id: str) -> Any:
        stack = self.get_stack(name_or_id)
        return (stack, _remembered(stack)) if stack.status.startswith("DELETE") else old(self, name_or_id)

    @changes.wraps(CloudFormationResponse, "describe_stack_resources")
    def described(old: Any, self: Any) -> Any:
        physical = self._get_param("PhysicalResourceId")
        if self._get_param("StackName") or not physical:
            return old(self)
        for stack in self.cloudformation_backend.stacks.values():
            held = _remembered(stack)
            if any(each.physical_resource_id == physical for each in held):
                return ActionResult({"StackResources": [StackResourceDTO(stack, each) for each in held]})
        raise ValidationError(message=f"Stack for {physical} does not exist")
