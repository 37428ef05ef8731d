"""Lambda's network interfaces: one for all functions of the same subnet and groups, taken away by Lambda under a function's role.

The last function that leaves lets the interface go, as long as its role is there. Where the role went first the interface stays, and with
it the subnet. Lambda takes its time (20 minutes); here it has none. CloudFormation waits for the interfaces of a function that it deletes
if it may describe them; with `Account.interfaces_are_awaited` False it may not, and deletes the role at once. Sources: "Giving Lambda
functions access to resources in an Amazon VPC" in the Lambda developer guide; awslabs/aws-support-tools issue 174.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION
from tests.moto_patches.account import Account

DESCRIPTION = "AWS Lambda VPC ENI"
_Place = tuple[str, ...]  # subnet and groups


@dataclass
class _Shared:
    """A network interface that functions of the same subnet and groups share, and the names of those functions."""

    interface: str
    users: set[str] = field(default_factory=set)


def install(changes: Replacements, account: Account) -> None:
    """Give functions in a VPC shared network interfaces in moto, which keep their subnets from being deleted, as on AWS."""
    from moto.awslambda.models import LambdaFunction
    from moto.ec2.exceptions import DependencyViolationError
    from moto.ec2.models.subnets import SubnetBackend

    shared: dict[_Place, _Shared] = {}

    def enter(function: Any) -> None:
        """Record that a function uses the network interfaces of its subnets; create those that do not exist."""
        for place in _places(function._vpc_config):
            if place not in shared:
                shared[place] = _Shared(_interface(place))
            shared[place].users.add(function.function_name)

    def leave(function: Any, *, lets_go: bool) -> None:
        """Record that a function no longer uses its network interfaces. Forget those without users, and delete them if `lets_go`."""
        for place, used in list(shared.items()):
            if function.function_name in used.users:
                used.users.discard(function.function_name)
                if not used.users:
                    del shared[place]
                    if lets_go:
                        _backend().enis.pop(used.interface, None)

    @changes.wraps(LambdaFunction, "create_from_cloudformation_json")
    def create(old: Any, cls: Any, *rest: Any, **named: Any) -> Any:
        """Create a function, with its network interfaces."""
        made = old(*rest, **named)
        enter(made)
        return made

    @changes.wraps(LambdaFunction, "update_configuration")
    def configure(old: Any, self: Any, updates: Mapping[str, Any]) -> Any:
        """Change a function's configuration, and its network interfaces with it."""
        if "VpcConfig" in updates:
            leave(self, lets_go=_stands(self.role))
        answer = old(self, updates)
        enter(self)
        return answer

    @changes.wraps(LambdaFunction, "delete")
    def delete(old: Any, self: Any, *rest: Any) -> None:
        """Delete a function, and network interfaces that no other function uses."""
        leave(self, lets_go=account.interfaces_are_awaited)
        old(self, *rest)

    @changes.wraps(SubnetBackend, "delete_subnet")
    def delete_subnet(old: Any, self: Any, subnet_id: str) -> Any:
        """Delete a subnet. Raises DependencyViolationError if a Lambda network interface is in it."""
        held = [each.id for each in self.enis.values() if each.subnet.id == subnet_id and _of_lambda(each)]
        if held:
            raise DependencyViolationError(
                f"The subnet '{subnet_id}' has dependencies and cannot be deleted: {', '.join(held)}"
            )
        return old(self, subnet_id)


def _of_lambda(interface: Any) -> bool:
    """Return True if Lambda made the network interface."""
    return str(interface.description or "").startswith(DESCRIPTION)


def _places(configuration: Mapping[str, Any] | None) -> list[_Place]:
    """Return the places (subnet and groups) of a function's VPC configuration."""
    given = configuration or {}
    groups = tuple(sorted(given.get("SecurityGroupIds") or ()))
    subnets = {name for zone in _backend().subnets.values() for name in zone}
    return [(subnet, *groups) for subnet in given.get("SubnetIds") or () if subnet in subnets]


def _interface(place: _Place) -> str:
    """Create a network interface of Lambda at a place, and return its id."""
    backend = _backend()
    made = backend.create_network_interface(
        backend.get_subnet(place[0]), "", group_ids=list(place[1:]), description=f"{DESCRIPTION}-shared"
    )
    return str(made.id)


def _stands(role: str) -> bool:
    """Return True if the role exists."""
    from moto.iam.models import iam_backends

    return role.rpartition("/")[2] in {each.name for each in iam_backends[ACCOUNT]["aws"].roles.values()}


def _backend() -> Any:
    """Return moto's EC2 backend of the region."""
    from moto.ec2.models import ec2_backends

    return ec2_backends[ACCOUNT][REGION]
