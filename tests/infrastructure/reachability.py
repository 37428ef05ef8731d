"""Can a function reach what its step declares? Everything that has to be in the templates for it, looked up piece by piece.

Each piece that is found is remembered as evidence: where in which template it stands. The test takes every piece away, one by one, and
expects this check to notice.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tests.infrastructure.assemblies import Json, flat, listed, step_of

Pointer = tuple[str | int, ...]  # (stack, "Resources", logical id, "Properties", ...)
Templates = dict[str, Json]

NETWORK, BROKER = "crossover-network", "crossover-broker"


class Check:
    """`missing` names what a function of `experiment` lacks to reach the declared services; `evidence` is what was found."""

    def __init__(self, templates: Templates, *, experiment: str, step: str, uses: frozenset[str]) -> None:
        self._templates, self._experiment = templates, experiment
        self.evidence: list[Pointer] = []
        self.missing: list[str] = []
        self._id, function = self._only("function", experiment, "AWS::Lambda::Function", lambda p: step_of(p) == step)
        self._function = function
        self._role = function["Role"]["Fn::GetAtt"][0]
        self._variables = function["Environment"]["Variables"]
        self._bucket = flat(self._variables.get("CROSSOVER_BUCKET"))[1:-1]
        self._in_vpc = "VpcConfig" in function
        if uses & {"tensors", "bus"}:
            self._vpc()
        self._objects()
        if "tensors" in uses:
            self._tensors()
        if "bus" in uses:
            self._bus()

    # --- looking things up --------------------------------------------------------------------------------------------

    def _of(self, stack: str, kind: str) -> Iterator[tuple[str, Json]]:
        for name, resource in self._templates[stack]["Resources"].items():
            if resource["Type"] == kind:
                yield name, resource.get("Properties", {})

    def _only(self, what: str, stack: str, kind: str, matches: Callable[[Json], bool]) -> tuple[str, Json]:
        """The one resource that `matches`; noted as evidence, or as missing."""
        found = [(name, p) for name, p in self._of(stack, kind) if matches(p)]
        if len(found) != 1:
            self.missing.append(f"{what}: {len(found)} in {stack}")
            return "", {}
        name, properties = found[0]
        if kind != "AWS::Lambda::Function":
            self.evidence.append((stack, "Resources", name))
        return name, properties

    def _published(self, value: Any) -> str:
        """What a reference of the experiment's template means in the stack that published it."""
        if not value:
            return ""
        stack = self._experiment
        while isinstance(value, dict) and "Ref" in value:
            parameter = self._templates[stack].get("Parameters", {}).get(value["Ref"])
            if parameter is None:
                return f"{stack}/{value['Ref']}"
            path = parameter["Default"]
            for other in (NETWORK, BROKER):
                for name, properties in self._of(other, "AWS::SSM::Parameter"):
                    if properties["Name"] == path:
                        self.evidence.append((other, "Resources", name))
                        stack, value = other, properties["Value"]
                        break
                else:
                    continue
                break
            else:
                self.missing.append(f"nobody publishes {path}")
                return ""
        return f"{stack}/{value['Fn::GetAtt'][0]}" if isinstance(value, dict) and "Fn::GetAtt" in value else flat(value)

    def _may(self, action: str, resource: str, *, role: str = "", stack: str = "") -> None:
        stack, role = stack or self._experiment, role or self._role
        policies = self._templates[stack]["Resources"][role]["Properties"].get("Policies", [])
        for p, policy in enumerate(policies):
            for s, statement in enumerate(policy["PolicyDocument"]["Statement"]):
                actions, resources = listed(statement["Action"]), [flat(r) for r in listed(statement["Resource"])]
                if action in actions and resource in resources:
                    base: Pointer = (
                        stack,
                        "Resources",
                        role,
                        "Properties",
                        "Policies",
                        p,
                        "PolicyDocument",
                        "Statement",
                        s,
                    )
                    for key, place in (("Action", actions.index(action)), ("Resource", resources.index(resource))):
                        alone = not isinstance(statement[key], list)
                        self.evidence.append(base if alone else (*base, key, place))
                    return
        self.missing.append(f"{action} on {resource}")

    def _goes_out(self, group: str, target: str, port: int) -> None:
        """A pair of rules: out of `group`, into `target`; both given as `stack/logical id`."""
        ours, theirs = group.partition("/")[2], target.partition("/")[2]

        def out(p: Json) -> bool:
            return (
                flat(p["GroupId"]) == f"<{ours}.GroupId>"
                and flat(p.get("DestinationSecurityGroupId")) == f"<{theirs}.GroupId>"
                and p["FromPort"] <= port <= p["ToPort"]
            )

        def into(p: Json) -> bool:
            return (
                flat(p["GroupId"]) == f"<{theirs}.GroupId>"
                and flat(p.get("SourceSecurityGroupId")) == f"<{ours}.GroupId>"
                and p["FromPort"] <= port <= p["ToPort"]
            )

        self._only(f"rule out of {ours} to {theirs}:{port}", NETWORK, "AWS::EC2::SecurityGroupEgress", out)
        self._only(f"rule into {theirs} from {ours}:{port}", NETWORK, "AWS::EC2::SecurityGroupIngress", into)

    def _same_network(self, first: str, second: str) -> None:
        """Subnets of one VPC have routes to each other."""
        vpcs = [
            flat(
                self._templates.get(stack, {"Resources": {}})["Resources"]
                .get(name, {})
                .get("Properties", {})
                .get("VpcId")
            )
            for stack, _, name in (each.partition("/") for each in (first, second))
        ]
        if vpcs[0] != vpcs[1] or vpcs[0] == "None":
            self.missing.append(f"a route from {first} to {second}")

    # --- what each service takes --------------------------------------------------------------------------------------

    def _vpc(self) -> None:
        where = (self._experiment, "Resources", self._id, "Properties", "VpcConfig")
        config = self._function.get("VpcConfig") or {}
        if not config:
            self.missing.append("the function is not in the VPC")
        else:
            self.evidence.append(where)
        self._subnet = self._published((config.get("SubnetIds") or [None])[0])
        self._group = self._published((config.get("SecurityGroupIds") or [None])[0])
        for action in ("Create", "Describe", "Delete"):
            self._may(f"ec2:{action}NetworkInterface{'s' if action == 'Describe' else ''}", "*")

    def _objects(self) -> None:
        for action, key in (
            ("GetObject", "runs"),
            ("PutObject", "runs"),
            ("DeleteObject", "runs"),
            ("GetObject", "data"),
        ):
            self._may(f"s3:{action}", f"<{self._bucket}.Arn>/{key}/*")
        self._may("s3:ListBucket", f"<{self._bucket}.Arn>")
        self._fact("CROSSOVER_BUCKET")
        if self._in_vpc:
            subnet = self._subnet.partition("/")[2]
            _, association = self._only(
                "route table of the functions",
                NETWORK,
                "AWS::EC2::SubnetRouteTableAssociation",
                lambda p: flat(p["SubnetId"]) == f"<{subnet}>",
            )
            table = flat(association.get("RouteTableId"))
            self._only(
                "gateway endpoint of S3",
                NETWORK,
                "AWS::EC2::VPCEndpoint",
                lambda p: flat(p["ServiceName"]).endswith(".s3") and table in map(flat, p.get("RouteTableIds", [])),
            )
            self._anywhere(443)

    def _anywhere(self, port: int) -> None:
        name = self._group.partition("/")[2]
        rules = self._templates[NETWORK]["Resources"].get(name, {}).get("Properties", {}).get("SecurityGroupEgress", [])
        for place, rule in enumerate(rules):
            if rule["CidrIp"] == "0.0.0.0/0" and rule.get("FromPort") == port:
                self.evidence.append((NETWORK, "Resources", name, "Properties", "SecurityGroupEgress", place))
                return
        self.missing.append(f"HTTPS out of {name}")

    def _fact(self, name: str) -> str:
        where = (self._experiment, "Resources", self._id, "Properties", "Environment", "Variables", name)
        if name in self._variables:
            self.evidence.append(where)
        else:
            self.missing.append(f"{name} in the environment")
        return flat(self._variables.get(name))

    def _secret(self, variable: str) -> None:
        self._may("secretsmanager:GetSecretValue", self._fact(variable))
        subnet = self._subnet.partition("/")[2]
        _, endpoint = self._only(
            "interface endpoint of Secrets Manager",
            NETWORK,
            "AWS::EC2::VPCEndpoint",
            lambda p: (
                flat(p["ServiceName"]).endswith(".secretsmanager")
                and p.get("PrivateDnsEnabled") is True
                and f"<{subnet}>" in map(flat, p.get("SubnetIds", []))
            ),
        )
        for group in endpoint.get("SecurityGroupIds", []):
            self._goes_out(self._group, f"{NETWORK}/{group['Fn::GetAtt'][0]}", 443)

    def _tensors(self) -> None:
        self._secret("CROSSOVER_REDIS_SECRET")
        self._fact("CROSSOVER_REDIS_CERTIFICATES")
        self._may("s3:GetObject", f"<{self._bucket}.Arn>/hosts/redis/*")
        urls = self._fact("CROSSOVER_REDIS")
        hosts = dict(self._of(self._experiment, "AWS::EC2::Instance"))
        for name in hosts:
            if f"<{name}.PrivateIp>:6379" not in urls:
                self.missing.append(f"the address of {name}")
            self.evidence.append((self._experiment, "Resources", name, "Properties", "SecurityGroupIds", 0))
        groups = {self._published((host.get("SecurityGroupIds") or [None])[0]) for host in hosts.values()}
        subnets = {self._published(host["SubnetId"]) for host in hosts.values()}
        if len(groups) != 1 or "" in groups or not hosts:
            self.missing.append("the hosts' group")
        for group in groups - {""}:
            self._goes_out(self._group, group, 6379)
        for subnet in subnets:
            self._same_network(self._subnet, subnet)

    def _bus(self) -> None:
        self._secret("CROSSOVER_BROKER_SECRET")
        self._fact("CROSSOVER_BROKER")
        self._published(self._variables.get("CROSSOVER_BROKER"))
        self._published(self._variables.get("CROSSOVER_BROKER_SECRET"))
        _, broker = self._only("broker", BROKER, "AWS::AmazonMQ::Broker", lambda p: bool(p.get("SecurityGroups")))
        for reference in broker.get("SecurityGroups", []):
            self._goes_out(self._group, self._as_broker(reference), 5671)
        for reference in broker.get("SubnetIds", []):
            self._same_network(self._subnet, self._as_broker(reference))

    def _as_broker(self, reference: Any) -> str:
        mine, self._experiment = self._experiment, BROKER
        try:
            return self._published(reference)
        finally:
            self._experiment = mine


def without(templates: Templates, pointer: Pointer) -> Templates:
    """Copies of the templates without what stands at `pointer`."""
    stack, *path = pointer
    assert isinstance(stack, str)

    def cut(node: Any, path: list[str | int]) -> Any:
        head, *rest = path
        if isinstance(node, dict):
            return {k: cut(v, rest) if k == head else v for k, v in node.items() if rest or k != head}
        return [cut(v, rest) if i == head else v for i, v in enumerate(node) if rest or i != head]

    return {**templates, stack: cut(templates[stack], path)}
