"""What an organisation says of its account, asked of AWS: whether its network, images, key and boundary are there, and serve."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from crossover.account.deployment.finding import Finding
from crossover.account.resources import ownership, stacks
from crossover.architecture.infrastructure import shared_stacks
from crossover.architecture.instances import processor
from crossover.clients import aws_calls
from crossover.costs import infrastructure
from crossover.experiment import Experiment
from crossover.validation.account_file import AccountFile, OwnNetwork

IN = "config/account.yaml: "
EVERYWHERE = "0.0.0.0/0"
ROOT_DEVICES = {False: "/dev/xvda", True: "/dev/sda1"}  # the disk that cdk/fleets.py enlarges; of GPUs: True
ARCHITECTURES = {"arm64": "arm64", "amd64": "x86_64"}
KEY_ACTIONS = ("kms:Decrypt", "kms:GenerateDataKey")
# Without these of its roles no run ends, and no stack does.
BOUND_ACTIONS = (
    "cloudformation:DeleteStack",
    "lambda:InvokeFunction",
    "logs:PutLogEvents",
    "s3:GetObject",
    "s3:PutObject",
    "states:StartExecution",
    "sns:Publish",
)
BOUND_IN_A_NETWORK = ("ec2:CreateNetworkInterface", "secretsmanager:GetSecretValue")


# --- the network ------------------------------------------------------------------------------------------------------


def network(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    wrong = [*_moved(session, experiment, account)]
    if account.network.vpc and not wrong:
        wrong = [*_network(session.client("ec2"), account.network)]
    if account.network.vpc or wrong:
        yield from _told("own network", wrong, fine=f"{account.network.vpc}, in {account.network.availability_zone}")


def _told(name: str, wrong: Iterable[str], *, fine: str) -> Iterator[Finding]:
    """A finding for each thing that does not hold, else one that says what was found."""
    yield from [Finding(name, False, IN + detail) for detail in wrong] or [Finding(name, True, fine)]


def _asked(client: Any, operation: str, key: str, *absent: str, **given: Any) -> Any:
    """What AWS answers; None where the answer is one of the refusals `absent`."""
    with aws_calls.Tolerating(*absent):
        return getattr(client, operation)(**given)[key]
    return None


def _moved(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[str]:
    """A network that stands cannot change its VPC under what leans on it."""
    project, asked = experiment.project, account.network.vpc
    standing = aws_calls.parameter(session, f"/crossover/{project}/network/vpc")
    stack = stacks.look(session, f"{project}-network")
    if not standing or stack is None:
        return
    made = any(each["ResourceType"] == "AWS::EC2::VPC" for each in ownership.resources(session, stack.id))
    if asked != (None if made else standing):
        yield (
            f"network.vpc: {asked or 'none'}, but {project}-network stands in {standing}"
            f"{', which it made' if made else ''}, and a network does not move: take the project's stacks away first "
            "(crossover destroy CONFIG --shared), or choose another project"
        )


def _network(ec2: Any, own: OwnNetwork) -> Iterator[str]:
    if not _asked(ec2, "describe_vpcs", "Vpcs", "InvalidVpcID.NotFound", VpcIds=[own.vpc]):
        yield f"network.vpc: {own.vpc} is not in {ec2.meta.region_name} of this account"
        return
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        if not ec2.describe_vpc_attribute(VpcId=own.vpc, Attribute=name)[name[0].upper() + name[1:]]["Value"]:
            yield f"network.vpc: {own.vpc} has {name} off, without which the broker and endpoints have no names: set it"
    for field in ("functions_subnet", "hosts_subnet"):
        subnet = getattr(own, field)
        yield from (f"network.{field}: {subnet} {detail}" for detail in _subnet(ec2, own, subnet, field))


def _subnet(ec2: Any, own: OwnNetwork, subnet: str, field: str) -> Iterator[str]:
    found = _asked(ec2, "describe_subnets", "Subnets", "InvalidSubnetID.NotFound", SubnetIds=[subnet])
    if not found:
        yield f"is not in {ec2.meta.region_name} of this account"
    elif found[0]["VpcId"] != own.vpc:
        yield f"is of {found[0]['VpcId']}, not of {own.vpc}"
    elif found[0]["AvailabilityZone"] != own.availability_zone:
        yield f"is in {found[0]['AvailabilityZone']}, not in {own.availability_zone}, where everything stands"
    else:
        yield from _way_out(ec2, own, found[0], hosts=field == "hosts_subnet")


def _way_out(ec2: Any, own: OwnNetwork, subnet: Mapping[str, Any], *, hosts: bool) -> Iterator[str]:
    """Hosts find their packages on the internet; functions need S3 and Secrets Manager alone."""
    here = {"Filters": [{"Name": "vpc-id", "Values": [own.vpc]}]}
    joined = [
        (not one.get("SubnetId"), each["RouteTableId"], each["Routes"])
        for page in ec2.get_paginator("describe_route_tables").paginate(**here)
        for each in page["RouteTables"]
        for one in each["Associations"]
        if one.get("Main") or one.get("SubnetId") == subnet["SubnetId"]
    ]
    _, table, routes = min(joined, key=lambda each: each[0])  # the subnet's own, else the main one
    public = subnet["MapPublicIpOnLaunch"] and hosts  # Lambda gives functions no public address
    if any(
        each.get("DestinationCidrBlock") == EVERYWHERE
        and each.get("State") == "active"
        and (public or not each.get("GatewayId", "").startswith("igw-"))
        for each in routes
    ):
        return
    wanted = f"({table}); expected {EVERYWHERE} to a NAT gateway or a transit gateway, or"
    if hosts:
        yield (
            "has no route that leads hosts to the internet, where they find packages "
            f"{wanted} to an internet gateway and public addresses"
        )
    elif lacking := {"s3", "secretsmanager"} - set(_endpoints(ec2, here, table)):
        yield f"has no route that leads functions to {' and '.join(sorted(lacking))} {wanted} endpoints in the VPC"


def _endpoints(ec2: Any, here: Mapping[str, Any], table: str) -> Iterator[str]:
    """Services that are reached by endpoints of the VPC: a gateway in the table's routes, or an interface under the service's own name."""
    for page in ec2.get_paginator("describe_vpc_endpoints").paginate(**here):
        for each in page["VpcEndpoints"]:
            reached = table in each.get("RouteTableIds", []) or each["PrivateDnsEnabled"]
            if reached and each["State"] == "available":
                yield each["ServiceName"].rpartition(".")[2]


# --- images, key and boundary -----------------------------------------------------------------------------------------


def images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Those that the experiment's fleets would boot."""
    wanted = {
        (own, each.gpu, processor(each.instance_type))
        for each in infrastructure.of(experiment).fleets
        if (own := account.image(each.instance_type, gpu=each.gpu))
    }
    absent = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")
    for id, gpu, kind in sorted(wanted):
        found = _asked(session.client("ec2"), "describe_images", "Images", *absent, ImageIds=[id])
        wants = {"State": "available", "Architecture": ARCHITECTURES[kind], "RootDeviceName": ROOT_DEVICES[gpu]}
        field = f"images.{'gpu' if gpu else kind}: {id}"
        wrong = _unlike(found[0], wants) if found else ["not in this region, or not for this account to use"]
        yield from _told("own image", [f"{field}: {each}" for each in wrong], fine=field)


def _unlike(found: Mapping[str, Any], wanted: Mapping[str, str]) -> list[str]:
    return [f"{key} {found.get(key)}, expected {value}" for key, value in wanted.items() if found.get(key) != value]


def key(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Whether roles that are not made yet may use it, by its policy's trust in the account."""
    arn, here = str(account.kms_key), session.client("sts").get_caller_identity()["Account"]
    if arn.split(":")[4] != here:
        told = f"{IN}kms_key: {arn} is another account's: whether its policy lets this one's roles use it is not asked"
        yield Finding("own key", False, told, certain=False)
    else:
        wrong = _of_key(session.client("kms"), arn, here)
        yield from _told("own key", [f"kms_key: {arn}: {each}" for each in wrong], fine=arn)


def _of_key(kms: Any, arn: str, here: str) -> list[str]:
    if arn.split(":")[3] != kms.meta.region_name:
        return [f"is of {arn.split(':')[3]}, not of {kms.meta.region_name}"]
    found = _asked(kms, "describe_key", "KeyMetadata", "NotFoundException", KeyId=arn)
    if not found:
        return ["there is no such key"]
    usable = {"KeyState": "Enabled", "KeyUsage": "ENCRYPT_DECRYPT", "KeySpec": "SYMMETRIC_DEFAULT"}
    if wrong := _unlike(found, usable):
        return wrong
    statements = _statements(json.loads(kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"]))
    trusting = [each for each in statements if _trusts(each.get("Principal"), here)]
    lacking = _lacking(KEY_ACTIONS, trusting)
    words = (
        f"its policy lets no role of the account use it ({', '.join(lacking)}): functions could not read their own bucket; "
        f"expected a statement for the principal arn:aws:iam::{here}:root"
    )
    return [words] if lacking else []


def scaling_may_use(session: Any, arn: str) -> bool:
    """Whether the key's policy or a grant names the role by which Auto Scaling starts instances."""
    kms, role = session.client("kms"), "AWSServiceRoleForAutoScaling"
    granted = [each.get("GranteePrincipal", "") for each in kms.list_grants(KeyId=arn)["Grants"]]
    return any(role in text for text in [kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"], *granted])


def boundary(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Whether it is there, and leaves roles what they cannot do without; conditions and resources are not judged."""
    arn, iam = str(account.permissions_boundary), session.client("iam")
    found, lacking = _asked(iam, "get_policy", "Policy", "NoSuchEntity", PolicyArn=arn), list[str]()
    if found:
        version = iam.get_policy_version(PolicyArn=arn, VersionId=found["DefaultVersionId"])["PolicyVersion"]
        needed = BOUND_ACTIONS + (BOUND_IN_A_NETWORK if shared_stacks(experiment) else ())
        lacking = _lacking(needed + (KEY_ACTIONS if account.kms_key else ()), _statements(version["Document"]))
    without = f"allows no role {', '.join(lacking)}: runs would fail, or stacks would not end"
    wrong = [f"permissions_boundary: {arn}: {without if found else 'there is no such policy'}"]
    yield from _told("permissions boundary", wrong if lacking or not found else [], fine=arn)


def _statements(policy: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = policy["Statement"]
    return found if isinstance(found, list) else [found]


def _trusts(principal: Any, account_id: str) -> bool:
    """Whether a statement of a key's policy is about the account as a whole, so that policies of its roles decide."""
    named = principal.get("AWS", []) if isinstance(principal, Mapping) else principal or []
    listed = [named] if isinstance(named, str) else named
    return any(each in ("*", account_id) or str(each).endswith(f"::{account_id}:root") for each in listed)


def _lacking(actions: Iterable[str], statements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those that no statement allows, or one denies everywhere without a condition."""
    allowing = [each for each in statements if each["Effect"] == "Allow"]
    denying = [
        each
        for each in statements
        if each["Effect"] == "Deny" and not each.get("Condition") and each.get("Resource") in ("*", ["*"])
    ]
    return [
        action
        for action in actions
        if not any(_covers(each, action) for each in allowing) or any(_covers(each, action) for each in denying)
    ]


def _covers(statement: Mapping[str, Any], action: str) -> bool:
    named = statement.get("Action", statement.get("NotAction", []))
    patterns = [named] if isinstance(named, str) else named
    matched = any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)
    return matched if "Action" in statement else not matched
