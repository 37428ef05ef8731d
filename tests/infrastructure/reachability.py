"""What has to be in the templates so that somebody reaches a service, looked up piece by piece.

Each piece that is found is remembered as evidence: where in which template it stands. The tests take every piece away, one by one, and
expect the same look-up to miss it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.infrastructure.assemblies import Json, flat, listed

Pointer = tuple[str | int, ...]  # (stack, "Resources", logical id, "Properties", ...)
Templates = dict[str, Json]

NETWORK, BROKER = "crossover-network", "crossover-broker"


@dataclass
class Search:
    """A search for what must be in the templates so that a service can be reached. `missing`: what was not found; `evidence`: what was
    found; `stack`: name of the experiment's stack.
    """

    templates: Templates
    stack: str
    evidence: list[Pointer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def of(self, stack: str, kind: str) -> Iterator[tuple[str, Json]]:
        """Yield (logical id, properties) of each resource of a type in a stack."""
        for name, resource in self.templates.get(stack, {"Resources": {}})["Resources"].items():
            if resource["Type"] == kind:
                yield name, resource.get("Properties", {})

    def properties(self, whole: str) -> Json:
        """Return the properties of the resource `stack/logical id`; {} if it does not exist."""
        stack, _, name = whole.partition("/")
        resource = self.templates.get(stack, {"Resources": {}})["Resources"].get(name, {})
        found: Json = resource.get("Properties", {})
        return found

    def only(
        self, what: str, stack: str, kind: str, matches: Callable[[Json], bool], *, removable: bool = True
    ) -> tuple[str, Json]:
        """Return (logical id, properties) of the one resource that `matches`. Records it as evidence; if there is not exactly one, as
        missing.
        """
        found = [(name, properties) for name, properties in self.of(stack, kind) if matches(properties)]
        if len(found) != 1:
            self.missing.append(f"{what}: {len(found)} in {stack}")
            return "", {}
        name, properties = found[0]
        if removable:
            self.evidence.append((stack, "Resources", name))
        return name, properties

    def published(self, value: Any, stack: str = "") -> str:
        """Return what a reference in a stack's template points to in the stack that exports it: `stack/logical id`, or text."""
        stack = stack or self.stack
        if not value:
            return ""
        while isinstance(value, dict) and "Ref" in value:
            parameter = self.templates[stack].get("Parameters", {}).get(value["Ref"])
            if parameter is None:
                return f"{stack}/{value['Ref']}"
            path = parameter["Default"]
            found = [
                (other, name, properties)
                for other in (NETWORK, BROKER)
                for name, properties in self.of(other, "AWS::SSM::Parameter")
                if properties["Name"] == path
            ]
            if len(found) != 1:
                self.missing.append(f"nobody publishes {path}")
                return ""
            ((stack, name, properties),) = found
            self.evidence.append((stack, "Resources", name))
            value = properties["Value"]
        if isinstance(value, dict) and "Fn::GetAtt" in value:
            return f"{stack}/{value['Fn::GetAtt'][0]}"
        return flat(value)

    def may(self, role: str, action: str, resource: str) -> None:
        """Check that a role of the experiment's stack allows `action` on exactly `resource`."""
        policies = self.properties(f"{self.stack}/{role}").get("Policies", [])
        for p, policy in enumerate(policies):
            for s, statement in enumerate(policy["PolicyDocument"]["Statement"]):
                actions, resources = listed(statement["Action"]), [flat(each) for each in listed(statement["Resource"])]
                if statement["Effect"] != "Allow" or action not in actions or resource not in resources:
                    continue
                base: Pointer = (self.stack, "Resources", role, "Properties", "Policies", p)
                base = (*base, "PolicyDocument", "Statement", s)
                for key, place in (("Action", actions.index(action)), ("Resource", resources.index(resource))):
                    alone = not isinstance(statement[key], list)
                    self.evidence.append(base if alone else (*base, key, place))
                return
        self.missing.append(f"{role}: {action} on {resource}")

    # --- the network --------------------------------------------------------------------------------------------------

    def pair(self, group: str, target: str, port: int) -> None:
        """Check that two rules let traffic to the port pass: out of `group`, and into `target`, both given as `stack/logical id`."""
        (stack, _, ours), (_, _, theirs) = group.partition("/"), target.partition("/")

        def rule(mine: str, other: str, direction: str) -> Callable[[Json], bool]:
            """Return a function that tells whether a security group's rule lets traffic to the port pass between the two groups in that
            direction.
            """
            return lambda p: (
                flat(p["GroupId"]) == f"<{mine}.GroupId>"
                and flat(p.get(f"{direction}SecurityGroupId")) == f"<{other}.GroupId>"
                and p["IpProtocol"] == "tcp"
                and p["FromPort"] <= port <= p["ToPort"]
            )

        egress, ingress = "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress"
        self.only(f"rule out of {ours} to {theirs}:{port}", stack, egress, rule(ours, theirs, "Destination"))
        self.only(f"rule into {theirs} from {ours}:{port}", stack, ingress, rule(theirs, ours, "Source"))

    def anywhere(self, group: str, port: int) -> None:
        """Check that a rule lets traffic to the port pass out of `group` to every address."""
        _, _, name = group.partition("/")
        for place, rule in enumerate(self.properties(group).get("SecurityGroupEgress", [])):
            if rule["CidrIp"] == "0.0.0.0/0" and rule.get("FromPort") == port:
                self.evidence.append((NETWORK, "Resources", name, "Properties", "SecurityGroupEgress", place))
                return
        self.missing.append(f"port {port} out of {name}")

    def table(self, subnet: str) -> str:
        """Return the reference to the subnet's route table."""
        _, _, name = subnet.partition("/")
        _, association = self.only(
            f"route table of {name}",
            NETWORK,
            "AWS::EC2::SubnetRouteTableAssociation",
            lambda p: flat(p["SubnetId"]) == f"<{name}>",
        )
        return flat(association.get("RouteTableId"))

    def internet(self, group: str, subnet: str, *, ports: tuple[int, ...] = (443,)) -> None:
        """Check that instances of the group reach the internet: a public address, a route to the internet gateway, and rules
        for the ports.
        """
        _, _, name = subnet.partition("/")
        if self.properties(subnet).get("MapPublicIpOnLaunch") is True:
            self.evidence.append((NETWORK, "Resources", name, "Properties", "MapPublicIpOnLaunch"))
        else:
            self.missing.append(f"public addresses in {name}")
        table, vpc = self.table(subnet), flat(self.properties(subnet).get("VpcId"))
        _, route = self.only(
            f"way out of {name}",
            NETWORK,
            "AWS::EC2::Route",
            lambda p: flat(p["RouteTableId"]) == table and p["DestinationCidrBlock"] == "0.0.0.0/0",
        )
        gateway = flat(route.get("GatewayId"))
        self.only(
            "internet gateway at the VPC",
            NETWORK,
            "AWS::EC2::VPCGatewayAttachment",
            lambda p: flat(p.get("InternetGatewayId")) == gateway and flat(p["VpcId"]) == vpc,
        )
        self.only(
            "internet gateway",
            NETWORK,
            "AWS::EC2::InternetGateway",
            lambda p: any(
                f"<{each}>" == gateway for each, q in self.of(NETWORK, "AWS::EC2::InternetGateway") if q is p
            ),
        )
        for port in ports:
            self.anywhere(group, port)

    def same_network(self, first: str, second: str) -> None:
        """Check that two subnets belong to the same VPC, and so have routes to each other."""
        vpcs = {flat(self.properties(each).get("VpcId")) for each in (first, second)}
        if len(vpcs) != 1 or "None" in vpcs:
            self.missing.append(f"a route from {first} to {second}")


def without(templates: Templates, pointer: Pointer) -> Templates:
    """Return a copy of the templates without the element at `pointer`."""
    stack, *path = pointer
    assert isinstance(stack, str)

    def cut(node: Any, path: list[str | int]) -> Any:
        """Return a copy of the nested data without the element at the path."""
        head, *rest = path
        if isinstance(node, dict):
            return {k: cut(v, rest) if k == head else v for k, v in node.items() if rest or k != head}
        return [cut(v, rest) if i == head else v for i, v in enumerate(node) if rest or i != head]

    return {**templates, stack: cut(templates[stack], path)}
