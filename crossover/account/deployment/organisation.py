"""What an organisation says of its account, asked of AWS: whether its network, images, key and boundary are there, and serve."""

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from crossover.account.deployment.finding import Finding
from crossover.account.resources import ownership, stacks
from crossover.architecture.infrastructure import shared_stacks
from crossover.architecture.instances import processor
from crossover.clients import aws_calls
from crossover.costs import infrastructure
from crossover.experiment import Experiment
from crossover.validation.account_file import AccountFile

IN = "config/account.yaml: "
EVERYWHERE = "0.0.0.0/0"
ROOT_DEVICES = {
    False: "/dev/xvda",
    True: "/dev/sda1",
}  # by whether it is for GPUs: the disk that cdk/fleets.py enlarges
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
    """One finding for each thing that does not hold, else one that says what was found."""
    wrong = [*_moved(session, experiment, account)]
    if account.network.vpc and not wrong:
        wrong = [*_network(session, account)]
    for detail in wrong:
        yield Finding("own network", False, IN + detail)
    if account.network.vpc and not wrong:
        yield Finding("own network", True, f"{account.network.vpc}, in {account.network.availability_zone}")


def _moved(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[str]:
    """A network that stands cannot change its VPC under what leans on it."""
    project = experiment.project
    standing = aws_calls.parameter(session, f"/crossover/{project}/network/vpc")
    stack = stacks.look(session, f"{project}-network")
    if not standing or stack is None:
        return
    made = any(each["ResourceType"] == "AWS::EC2::VPC" for each in ownership.resources(session, stack.id))
    asked = account.network.vpc
    if asked != (None if made else standing):
        yield (
            f"network.vpc: {asked or 'none'}, but {project}-network stands in {standing}"
            f"{', which it made' if made else ''}, and a network does not move: take the project's stacks away first "
            "(crossover destroy CONFIG --shared), or choose another project"
        )


def _network(session: Any, account: AccountFile) -> Iterator[str]:
    ec2, own = session.client("ec2"), account.network
    found: list[Any] = []
    with aws_calls.Tolerating("InvalidVpcID.NotFound"):
        found = ec2.describe_vpcs(VpcIds=[own.vpc])["Vpcs"]
    if not found:
        yield f"network.vpc: {own.vpc} is not in {ec2.meta.region_name} of this account"
        return
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        if not ec2.describe_vpc_attribute(VpcId=own.vpc, Attribute=name)[name[0].upper() + name[1:]]["Value"]:
            yield f"network.vpc: {own.vpc} has {name} off, without which the broker and endpoints have no names: set it"
    for field, subnet in (("functions_subnet", own.functions_subnet), ("hosts_subnet", own.hosts_subnet)):
        yield from (f"network.{field}: {subnet} {detail}" for detail in _subnet(session, account, str(subnet), field))


def _subnet(session: Any, account: AccountFile, subnet: str, field: str) -> Iterator[str]:
    ec2, own = session.client("ec2"), account.network
    found: list[Any] = []
    with aws_calls.Tolerating("InvalidSubnetID.NotFound"):
        found = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    if not found:
        yield f"is not in {ec2.meta.region_name} of this account"
    elif found[0]["VpcId"] != own.vpc:
        yield f"is of {found[0]['VpcId']}, not of {own.vpc}"
    elif found[0]["AvailabilityZone"] != own.availability_zone:
        yield f"is in {found[0]['AvailabilityZone']}, not in {own.availability_zone}, where everything stands"
    else:
        yield from _way_out(session, account, found[0], hosts=field == "hosts_subnet")


def _way_out(session: Any, account: AccountFile, subnet: Mapping[str, Any], *, hosts: bool) -> Iterator[str]:
    """Hosts find their packages on the internet; functions need S3 and Secrets Manager alone."""
    here = [{"Name": "vpc-id", "Values": [account.network.vpc]}]
    tables = list(aws_calls.entries(session, "ec2", "describe_route_tables", "RouteTables", Filters=here))
    own = [each for each in tables for one in each["Associations"] if one.get("SubnetId") == subnet["SubnetId"]]
    main = [each for each in tables for one in each["Associations"] if one.get("Main")]
    (table, *_) = [*own, *main]
    public = subnet["MapPublicIpOnLaunch"] and hosts  # Lambda gives functions no public address
    routes = [each for each in table["Routes"] if each.get("DestinationCidrBlock") == EVERYWHERE]
    leading = [each for each in routes if each.get("State") == "active"]
    if any(public or not each.get("GatewayId", "").startswith("igw-") for each in leading):
        return
    if hosts:
        yield (
            f"has no route that leads hosts to the internet, where they find packages ({table['RouteTableId']}); expected "
            f"{EVERYWHERE} to a NAT gateway or a transit gateway, or to an internet gateway and public addresses"
        )
        return
    reached = set(_endpoints(session, here, table["RouteTableId"]))
    if lacking := {"s3", "secretsmanager"} - reached:
        yield (
            f"has no route that leads functions to {' and '.join(sorted(lacking))} ({table['RouteTableId']}); expected "
            f"{EVERYWHERE} to a NAT gateway or a transit gateway, or endpoints in the VPC"
        )


def _endpoints(session: Any, here: list[Any], table: str) -> Iterator[str]:
    """Services that are reached by endpoints of the VPC: a gateway in the table's routes, or an interface under the service's own name."""
    for each in aws_calls.entries(session, "ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=here):
        if each["State"] == "available" and (
            table in each.get("RouteTableIds", [])
            if each["VpcEndpointType"] == "Gateway"
            else each["PrivateDnsEnabled"]
        ):
            yield each["ServiceName"].rpartition(".")[2]


# --- images, key and boundary -----------------------------------------------------------------------------------------


def images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Those that the experiment's fleets would boot."""
    wanted = {
        (own, each.gpu, processor(each.instance_type))
        for each in infrastructure.of(experiment).fleets
        if (own := account.image(each.instance_type, gpu=each.gpu))
    }
    for id, gpu, expected in sorted(wanted):
        field = "gpu" if gpu else expected
        found: list[Any] = []
        with aws_calls.Tolerating("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable"):
            found = session.client("ec2").describe_images(ImageIds=[id])["Images"]
        image = found[0] if found else {"State": "not in this region, or not for this account to use"}
        wants = {"State": "available", "Architecture": ARCHITECTURES[expected], "RootDeviceName": ROOT_DEVICES[gpu]}
        wrong = [f"{key} {image.get(key)}, expected {value}" for key, value in wants.items() if image.get(key) != value]
        said = f"{IN}images.{field}: {id}: " + "; ".join(wrong if found else [image["State"]])
        yield Finding("own image", not wrong, said if wrong else f"images.{field}: {id}")


def key(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Whether roles that are not made yet may use it, by its policy's trust in the account."""
    arn, kms = str(account.kms_key), session.client("kms")
    region, owner = arn.split(":")[3:5]
    if region != kms.meta.region_name:
        yield Finding("own key", False, f"{IN}kms_key: {arn} is of {region}, not of {kms.meta.region_name}")
        return
    found: dict[str, Any] = {}
    with aws_calls.Tolerating("NotFoundException"):
        found = kms.describe_key(KeyId=arn)["KeyMetadata"]
    wants = {"KeyState": "Enabled", "KeyUsage": "ENCRYPT_DECRYPT", "KeySpec": "SYMMETRIC_DEFAULT"}
    wrong = [
        f"{name} {found[name]}, expected {value}" for name, value in wants.items() if found and found[name] != value
    ]
    if not found:
        wrong = ["there is no such key"]
    elif not wrong:
        account_id = session.client("sts").get_caller_identity()["Account"]
        if owner != account_id:
            told = f"{arn} is another account's: whether its policy lets this one's roles use it is not asked"
            yield Finding("own key", False, f"{IN}kms_key: {told}", certain=False)
            return
        statements = json.loads(kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"])["Statement"]
        trusting = [each for each in statements if _trusts(each.get("Principal"), account_id)]
        if lacking := _lacking(KEY_ACTIONS, trusting):
            wrong = [
                f"its policy lets no role of the account use it ({', '.join(lacking)}): functions could not read their own bucket; "
                f"expected a statement for the principal arn:aws:iam::{account_id}:root"
            ]
    yield Finding("own key", not wrong, f"{IN}kms_key: {arn}: {'; '.join(wrong)}" if wrong else arn)


def scaling_may_use(session: Any, arn: str) -> bool:
    """Whether the key's policy or a grant names the role by which Auto Scaling starts instances."""
    kms, role = session.client("kms"), "AWSServiceRoleForAutoScaling"
    granted = [each.get("GranteePrincipal", "") for each in kms.list_grants(KeyId=arn)["Grants"]]
    return any(role in text for text in [kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"], *granted])


def boundary(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Whether it is there, and leaves roles what they cannot do without; conditions and resources are not judged."""
    arn, iam = str(account.permissions_boundary), session.client("iam")
    found: dict[str, Any] = {}
    with aws_calls.Tolerating("NoSuchEntity"):
        found = iam.get_policy(PolicyArn=arn)["Policy"]
    if not found:
        yield Finding("permissions boundary", False, f"{IN}permissions_boundary: {arn}: there is no such policy")
        return
    version = iam.get_policy_version(PolicyArn=arn, VersionId=found["DefaultVersionId"])["PolicyVersion"]
    statements = version["Document"]["Statement"]
    needed = [*BOUND_ACTIONS, *(BOUND_IN_A_NETWORK if shared_stacks(experiment) else ())]
    needed += KEY_ACTIONS if account.kms_key else ()
    lacking = _lacking(needed, statements if isinstance(statements, list) else [statements])
    said = (
        f"{IN}permissions_boundary: {arn} allows no role {', '.join(lacking)}: runs would fail, or stacks would not end"
    )
    yield Finding("permissions boundary", not lacking, said if lacking else arn)


def _trusts(principal: Any, account_id: str) -> bool:
    """Whether a statement of a key's policy is about the account as a whole, so that policies of its roles decide."""
    named = principal.get("AWS", []) if isinstance(principal, Mapping) else principal or []
    listed = [named] if isinstance(named, str) else named
    return any(each in ("*", account_id) or str(each).endswith(f"::{account_id}:root") for each in listed)


def _lacking(actions: Iterable[str], statements: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those that no statement allows, or one denies to all without a condition."""
    listed = list(statements)
    allowing = [each for each in listed if each["Effect"] == "Allow"]
    denying = [each for each in listed if each["Effect"] == "Deny" and not each.get("Condition")]
    denying = [each for each in denying if each.get("Resource") in ("*", ["*"])]
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
