"""Checks of what an organisation already has, as config/account.yaml names it (VPC, images, key, boundary), and of availability zones."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from textwrap import shorten
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from crossover.experiment import BROKER_VERSION, Experiment
from crossover.reports import bill
from crossover.running import account as ownership
from crossover.running import account as stacks
from crossover.stores import deployed_clients
from crossover.training.gradients import build_baselines
from crossover.validation.account_file import AccountFile, OwnNetwork
from crossover.workflow.architecture import image_parameter, processor
from crossover.workflow.infrastructure import shared_stacks

# --- finding ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """The result of one check of the account or the machine. `name`: of the check; `holds`: whether the requirement is met; `detail`: what
    was found, or how to fix it. `certain`: False if the result is inferred because no API reports it; `asked`: False if AWS refused the
    question or gave an unknown answer; `holds` is then True and `certain` False.
    """

    name: str
    holds: bool
    detail: str
    certain: bool = True
    asked: bool = True

    @property
    def word(self) -> str:
        """The result in one word: ok, missing, or unasked if it could not be checked."""
        return ("ok" if self.holds else "missing") if self.asked else "unasked"


def make_unasked_finding(name: str, error: Exception) -> Finding:
    """Return a finding that the check `name` could not be made because the call to AWS failed with `error`. It counts as met. Raises
    `error` again if AWS does not accept the credentials.
    """
    if isinstance(error, ClientError):
        code = deployed_clients.get_error_code(error) or str(
            error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        )
        if code in deployed_clients.EXPIRED_CODES:
            raise error
        how = f"{error.operation_name} was {'denied' if code in deployed_clients.DENIED_CODES else 'not answered'}"
    else:
        code, how = type(error).__name__, f"the answer is not as documented: {shorten(str(error), 100)}"
    return Finding(name, True, f"could not be checked ({code}): {how}", certain=False, asked=False)


# Errors of a question: AWS refuses it, does not answer, or the answer lacks documented fields.
UNANSWERED_ERRORS = (ClientError, BotoCoreError, ResponseParserError, LookupError)


# --- zones ------------------------------------------------------------------------------------------------------------
# Which availability zone offers everything: instance types, the broker's type and version, the interface endpoint's service.
#
# Everything is in one zone, the network's. Before there is a network, the first zone that offers everything is chosen; afterwards the zone
# is fixed, and another one in the file is refused.

ENDPOINT_SERVICE = "secretsmanager"


@dataclass(frozen=True)
class Need:
    """Instance type or endpoint that an availability zone must offer. `name`: what, in words; `zones`: the zones that offer it; `field`:
    the setting that requires it; `offered`: a sentence on the alternatives, or "".
    """

    name: str
    field: str
    zones: frozenset[str]
    offered: str = ""  # the alternatives, in words


@dataclass(frozen=True)
class Choice:
    """The choice of an availability zone. `zone`: the chosen one, "" if no usable zone offers everything. `needs`: all that a zone must
    offer; `lacking`: names of the needs that it does not offer, for each zone of the region. `standing`: zone of the project's existing
    network, "" if there is none.
    """

    zone: str
    needs: tuple[Need, ...]
    lacking: dict[str, list[str]]  # by zone of the region
    standing: str

    @property
    def detail(self) -> str:
        """A sentence on what the chosen zone offers, and on what each other zone lacks."""
        others = "; ".join(f"{zone} lacks {', '.join(names)}" for zone, names in self.lacking.items() if names)
        offers = f"{self.zone} offers {', '.join(need.name for need in self.needs) or 'all that is needed'}"
        return offers + (f"; {others}" if others else "")


def needs_network(experiment: Experiment) -> bool:
    """Return whether the experiment or one of its baselines needs a VPC, because it uses shared stacks. Functions and a bucket alone do
    not.
    """
    return any(shared_stacks(each) for each in (experiment, *build_baselines(experiment)))


def choose_zone(session: Any, experiment: Experiment) -> Choice:
    """Choose the availability zone for the experiment and its baselines: that of the existing network, else the configured one, else the
    first that offers everything. The choice has no zone if the preferred one lacks something. Changes nothing on AWS.
    """
    wanted, ec2 = tuple(list_needs(session, experiment)), session.client("ec2")
    listed = ec2.describe_availability_zones(
        Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}, {"Name": "state", "Values": ["available"]}]
    )["AvailabilityZones"]
    lacking = {
        zone: [need.name for need in wanted if zone not in need.zones]
        for zone in sorted(each["ZoneName"] for each in listed)
    }
    standing, asked = find_network_zone(session, experiment.project), experiment.network.availability_zone
    able = [zone for zone, names in lacking.items() if not names]
    chosen = standing or asked or next(iter(able), "")
    return Choice(chosen if chosen in able else "", wanted, lacking, standing)


def find_network_zone(session: Any, project: str) -> str:
    """Return the availability zone of the project's deployed network, "" if there is none."""
    return deployed_clients.read_parameter(session, f"/crossover/{project}/network/zone")


def check_zones(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding for each thing that the availability zone must offer, whether the region offers it at all, and one on the zone
    itself. Yields nothing if the experiment needs no network.
    """
    if not needs_network(experiment):
        return
    found, region = choose_zone(session, experiment), session.client("ec2").meta.region_name
    for need in found.needs:
        offered = ", ".join(sorted(need.zones))
        instead = f"; {need.offered}" if need.offered else ""
        wrong = (
            f"not offered in {region}{instead}: choose another {need.field}, or another region by AWS_DEFAULT_REGION"
        )
        yield Finding(need.name, bool(need.zones), f"offered in {offered}" if offered else wrong)
    yield Finding("availability zone", *_judge_zone(experiment, found))


def _judge_zone(experiment: Experiment, found: Choice) -> tuple[bool, str]:
    """Return whether the choice `found` has a usable zone, and a sentence that says what the zone offers, or why it is not usable and how
    to fix it.
    """
    asked, project, standing = experiment.network.availability_zone, experiment.project, found.standing
    if standing and asked not in (None, standing):
        return False, (
            f"network.availability_zone: {asked!r}, but {project}-network is in {standing}, and a network does not move: "
            "leave the field out, or take the project's stacks away first (crossover destroy CONFIG --shared)"
        )
    if found.zone:
        return True, found.detail
    if standing:
        lacks = ", ".join(found.lacking.get(standing, []))
        return False, (
            f"{project}-network is in {standing}, which lacks {lacks}: choose what is offered there, or take the project's "
            "stacks away first (crossover destroy CONFIG --shared)"
        )
    able = [zone for zone, names in found.lacking.items() if not names]
    if asked:
        lacks = ", ".join(found.lacking[asked]) if asked in found.lacking else ""
        return False, (
            f"network.availability_zone: {asked} "
            + (f"lacks {lacks}" if lacks else "is no zone of this region")
            + (f"; it may be {', '.join(able)}" if able else "; no zone of this region offers everything")
        )
    each = "; ".join(f"{zone} lacks {', '.join(names)}" for zone, names in found.lacking.items())
    return (
        False,
        f"no zone of this region offers everything: {each}; choose other types, or a region by AWS_DEFAULT_REGION",
    )


def list_needs(session: Any, experiment: Experiment) -> Iterator[Need]:
    """Yield what the experiment, its baselines and the shared stacks need from an availability zone: each instance type, the broker, the
    interface endpoint.

    `session`: asks AWS which zones offer them.
    """
    experiments = [experiment, *build_baselines(experiment)]
    wanted = [bill.infrastructure_of(each) for each in experiments]
    types = {fleet.instance_type: fleet.setting for each in wanted for fleet in each.fleets}
    yield from _list_instance_needs(session, types)
    for kind in {each.broker_instance_type for each in wanted if each.broker_instance_type}:
        yield _make_broker_need(session, kind)
    if any(shared_stacks(each) for each in experiments):
        yield _make_endpoint_need(session)


def _list_instance_needs(session: Any, types: dict[str, str]) -> Iterator[Need]:
    """Yield a need for each instance type, with the zones that offer it. `types`: {instance type: setting that requires it}."""
    listing = ("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings")
    for kind, field in sorted(types.items()):
        narrowed = [{"Name": "instance-type", "Values": [kind]}]
        offers = deployed_clients.list_items(session, *listing, LocationType="availability-zone", Filters=narrowed)
        yield Need(kind, field, frozenset(each["Location"] for each in offers))


def _make_broker_need(session: Any, kind: str) -> Need:
    """Return the need for a RabbitMQ broker of the instance type `kind` with the version that the stacks use, with the zones that offer
    both together.
    """
    version, options = BROKER_VERSION, list(_list_broker_options(session))
    fitting = [
        each for each in options if each["HostInstanceType"] == kind and version in each["SupportedEngineVersions"]
    ]
    zones = frozenset(zone["Name"] for each in fitting for zone in each["AvailabilityZones"])
    able = sorted({each["HostInstanceType"] for each in options if version in each["SupportedEngineVersions"]})
    versions = sorted(
        {v for each in options if each["HostInstanceType"] == kind for v in each["SupportedEngineVersions"]}
    )
    instead = [f"RabbitMQ {version} is offered on {', '.join(able) or 'nothing'}"]
    if versions and version not in versions:
        instead.append(f"{kind} has RabbitMQ {', '.join(versions)}")
    return Need(f"{kind} with RabbitMQ {version}", "network.broker_instance_type", zones, "; ".join(instead))


def _list_broker_options(session: Any) -> Iterable[dict[str, Any]]:
    """Yield the instance types, versions and zones that Amazon MQ offers for RabbitMQ, as the entries of DescribeBrokerInstanceOptions."""
    client = session.client("mq")
    token: dict[str, str] = {}
    while True:
        page = client.describe_broker_instance_options(EngineType="RABBITMQ", **token)
        yield from page["BrokerInstanceOptions"]
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


def _make_endpoint_need(session: Any) -> Need:
    """Return the need for an interface endpoint of Secrets Manager, with the zones that offer it."""
    client, zones = session.client("ec2"), set[str]()
    with deployed_clients.ToleratedErrors("InvalidServiceName"):
        names = [f"com.amazonaws.{client.meta.region_name}.{ENDPOINT_SERVICE}"]
        for each in client.describe_vpc_endpoint_services(ServiceNames=names)["ServiceDetails"]:
            zones.update(each["AvailabilityZones"])
    return Need(f"an endpoint of {ENDPOINT_SERVICE}", "region", frozenset(zones))


# --- organisation -----------------------------------------------------------------------------------------------------
# The organisation's network, images, key and boundary: whether they exist on AWS and can be used.

ACCOUNT_FILE_PREFIX = "config/account.yaml: "
ANY_ADDRESS = "0.0.0.0/0"
ROOT_DEVICES = {False: "/dev/xvda", True: "/dev/sda1"}  # the disk that cdk/fleets.py enlarges; of GPUs: True
ARCHITECTURES = {"arm64": "arm64", "amd64": "x86_64"}
KEY_ACTIONS = ("kms:Decrypt", "kms:GenerateDataKey")
# Without these actions of our roles no run can end and no stack can be deleted.
REQUIRED_ACTIONS = (
    "cloudformation:DeleteStack",
    "lambda:InvokeFunction",
    "logs:PutLogEvents",
    "s3:GetObject",
    "s3:PutObject",
    "states:StartExecution",
    "sns:Publish",
)
REQUIRED_IN_A_NETWORK = ("ec2:CreateNetworkInterface", "secretsmanager:GetSecretValue")


# --- the network ------------------------------------------------------------------------------------------------------


def check_network(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield findings on the organisation's own VPC and its subnets, if `account` names them, and a failed one if `account` names another
    VPC than that of the project's existing network, which cannot be moved.

    `session`: makes the AWS clients; `experiment`: names the project.
    """
    wrong = [*_find_moved_network(session, experiment, account)]
    if account.network.vpc and not wrong:
        wrong = [*_find_vpc_faults(session.client("ec2"), account.network)]
    if account.network.vpc or wrong:
        yield from _make_findings(
            "own network", wrong, fine=f"{account.network.vpc}, in {account.network.availability_zone}"
        )


def _make_findings(name: str, wrong: Iterable[str], *, fine: str) -> Iterator[Finding]:
    """Yield a failed finding called `name` for each error text in `wrong`; if there is none, one successful finding with the
    detail `fine`.
    """
    yield from [Finding(name, False, ACCOUNT_FILE_PREFIX + detail) for detail in wrong] or [Finding(name, True, fine)]


def _ask_or_none(client: Any, operation: str, key: str, *absent: str, **given: Any) -> Any:
    """Call an operation of AWS and return the field `key` of its answer; None if AWS refuses with one of the error codes `absent`.
    `client`: a boto3 client; `given`: arguments of the operation.
    """
    with deployed_clients.ToleratedErrors(*absent):
        return getattr(client, operation)(**given)[key]
    return None


def _find_moved_network(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[str]:
    """Yield one error text if the project's deployed network is not in the VPC that `account` asks for: the one that it names, or, if it
    names none, one that the network made itself. A network cannot change its VPC while other stacks depend on it. Yield nothing if no
    network is deployed. `session`: makes the AWS clients; `experiment`: names the project.
    """
    project, asked = experiment.project, account.network.vpc
    standing = deployed_clients.read_parameter(session, f"/crossover/{project}/network/vpc")
    stack = stacks.find_stack(session, f"{project}-network")
    if not standing or stack is None:
        return
    made = any(each["ResourceType"] == "AWS::EC2::VPC" for each in ownership.list_stack_resources(session, stack.id))
    if asked != (None if made else standing):
        yield (
            f"network.vpc: {asked or 'none'}, but {project}-network is in {standing}"
            f"{', which it made' if made else ''}, and a network does not move: take the project's stacks away first "
            "(crossover destroy CONFIG --shared), or choose another project"
        )


def _find_vpc_faults(ec2: Any, own: OwnNetwork) -> Iterator[str]:
    """Yield an error text for each requirement that the organisation's VPC or one of its subnets does not meet. `own`: VPC, subnets and
    zone from the account file.
    """
    if not _ask_or_none(ec2, "describe_vpcs", "Vpcs", "InvalidVpcID.NotFound", VpcIds=[own.vpc]):
        yield f"network.vpc: {own.vpc} is not in {ec2.meta.region_name} of this account"
        return
    for name in ("enableDnsSupport", "enableDnsHostnames"):
        if not ec2.describe_vpc_attribute(VpcId=own.vpc, Attribute=name)[name[0].upper() + name[1:]]["Value"]:
            yield f"network.vpc: {own.vpc} has {name} off, without which the broker and endpoints have no names: set it"
    for field in ("functions_subnet", "hosts_subnet"):
        subnet = getattr(own, field)
        yield from (f"network.{field}: {subnet} {detail}" for detail in _find_subnet_faults(ec2, own, subnet, field))


def _find_subnet_faults(ec2: Any, own: OwnNetwork, subnet: str, field: str) -> Iterator[str]:
    """Yield the first requirement that the subnet with the id `subnet` does not meet, of existence, VPC and availability zone, as an error
    text; if it meets these, an error text for each fault of its routes. `own`: VPC and zone from the account file; `field`: the subnet's
    field there, functions_subnet or hosts_subnet.
    """
    found = _ask_or_none(ec2, "describe_subnets", "Subnets", "InvalidSubnetID.NotFound", SubnetIds=[subnet])
    if not found:
        yield f"is not in {ec2.meta.region_name} of this account"
    elif found[0]["VpcId"] != own.vpc:
        yield f"is of {found[0]['VpcId']}, not of {own.vpc}"
    elif found[0]["AvailabilityZone"] != own.availability_zone:
        yield f"is in {found[0]['AvailabilityZone']}, not in {own.availability_zone}, the zone of everything else"
    else:
        yield from _find_route_faults(ec2, own, found[0], hosts=field == "hosts_subnet")


def _find_route_faults(ec2: Any, own: OwnNetwork, subnet: Mapping[str, Any], *, hosts: bool) -> Iterator[str]:
    """Yield an error text if the subnet's route table does not lead where it must. `subnet`: EC2's description; `hosts`: whether database
    hosts and fleets use it. Hosts need the internet for their packages; functions need only S3 and Secrets Manager, which endpoints in the
    VPC can provide.
    """
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
        each.get("DestinationCidrBlock") == ANY_ADDRESS
        and each.get("State") == "active"
        and (public or not each.get("GatewayId", "").startswith("igw-"))
        for each in routes
    ):
        return
    wanted = f"({table}); expected {ANY_ADDRESS} to a NAT gateway or a transit gateway, or"
    if hosts:
        yield (
            "has no route that leads hosts to the internet, where they find packages "
            f"{wanted} to an internet gateway and public addresses"
        )
    elif lacking := {"s3", "secretsmanager"} - set(_list_endpoints(ec2, here, table)):
        yield f"has no route that leads functions to {' and '.join(sorted(lacking))} {wanted} endpoints in the VPC"


def _list_endpoints(ec2: Any, here: Mapping[str, Any], table: str) -> Iterator[str]:
    """Yield the names of the services, such as s3, that endpoints of the VPC make reachable: by a gateway in the route table with the id
    `table`, or by an interface with private DNS. `here`: the filter argument for the VPC.
    """
    for page in ec2.get_paginator("describe_vpc_endpoints").paginate(**here):
        for each in page["VpcEndpoints"]:
            reached = table in each.get("RouteTableIds", []) or each["PrivateDnsEnabled"]
            if reached and each["State"] == "available":
                yield each["ServiceName"].rpartition(".")[2]


# --- images, key and boundary -----------------------------------------------------------------------------------------


def check_own_images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield a finding for each machine image that `account` names and the experiment's fleets would boot: whether it exists, is available,
    has the processor's architecture, and names its root device as the launch templates do. An image with several faults gets one for each.

    `session`: makes the AWS clients.
    """
    wanted = {
        (own, each.gpu, processor(each.instance_type))
        for each in bill.infrastructure_of(experiment).fleets
        if (own := account.image(each.instance_type, gpu=each.gpu))
    }
    absent = ("InvalidAMIID.NotFound", "InvalidAMIID.Malformed", "InvalidAMIID.Unavailable")
    for id, gpu, kind in sorted(wanted):
        found = _ask_or_none(session.client("ec2"), "describe_images", "Images", *absent, ImageIds=[id])
        wants = {"State": "available", "Architecture": ARCHITECTURES[kind], "RootDeviceName": ROOT_DEVICES[gpu]}
        field = f"images.{'gpu' if gpu else kind}: {id}"
        wrong = _list_mismatches(found[0], wants) if found else ["not in this region, or not for this account to use"]
        yield from _make_findings("own image", [f"{field}: {each}" for each in wrong], fine=field)


def _list_mismatches(found: Mapping[str, Any], wanted: Mapping[str, str]) -> list[str]:
    """Return a text for each field of `found` that differs from its value in `wanted`: `State pending, expected available`."""
    return [f"{key} {found.get(key)}, expected {value}" for key, value in wanted.items() if found.get(key) != value]


def check_key(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield a finding on whether the roles of this AWS account may use the KMS key that `account` names: one that holds, or a failed one
    for each fault. A key of another account gives a failed finding that is not certain.

    The key's policy must trust the account as a whole, since the roles of the experiment do not exist yet. `session`: makes the AWS
    clients; `experiment`: not used; all checks take it.
    """
    arn, here = str(account.kms_key), session.client("sts").get_caller_identity()["Account"]
    if arn.split(":")[4] != here:
        told = f"{ACCOUNT_FILE_PREFIX}kms_key: {arn} is another account's: whether this account's roles may use it was not checked"
        yield Finding("own key", False, told, certain=False)
    else:
        wrong = _find_key_faults(session.client("kms"), arn, here)
        yield from _make_findings("own key", [f"kms_key: {arn}: {each}" for each in wrong], fine=arn)


def _find_key_faults(kms: Any, arn: str, here: str) -> list[str]:
    """Return an error text for each requirement that the KMS key `arn` of this account does not meet; empty if the key is usable and its
    policy lets the account's roles use it. `kms`: a KMS client; `here`: the account's id.
    """
    if arn.split(":")[3] != kms.meta.region_name:
        return [f"is of {arn.split(':')[3]}, not of {kms.meta.region_name}"]
    found = _ask_or_none(kms, "describe_key", "KeyMetadata", "NotFoundException", KeyId=arn)
    if not found:
        return ["there is no such key"]
    usable = {"KeyState": "Enabled", "KeyUsage": "ENCRYPT_DECRYPT", "KeySpec": "SYMMETRIC_DEFAULT"}
    if wrong := _list_mismatches(found, usable):
        return wrong
    statements = _list_statements(json.loads(kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"]))
    trusting = [each for each in statements if _trusts_account(each.get("Principal"), here)]
    lacking = _list_missing_actions(KEY_ACTIONS, trusting)
    words = (
        f"its policy lets no role of the account use it ({', '.join(lacking)}): functions could not read their own bucket; "
        f"expected a statement for the principal arn:aws:iam::{here}:root"
    )
    return [words] if lacking else []


def can_scaling_use_key(session: Any, arn: str) -> bool:
    """Return whether the policy or a grant of the KMS key `arn` names the role with which Auto Scaling starts instances."""
    kms, role = session.client("kms"), "AWSServiceRoleForAutoScaling"
    pages = kms.get_paginator("list_grants").paginate(KeyId=arn)
    granted = [each.get("GranteePrincipal", "") for page in pages for each in page["Grants"]]
    return any(role in text for text in [kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"], *granted])


def check_boundary(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield one finding: whether the permissions boundary that `account` names exists and allows the actions that the experiment's roles
    need. A failed finding says that there is no such policy, or which actions are missing.

    Conditions and resources of its Allow statements are not evaluated; a Deny statement counts only if it has no condition and is for all
    resources. `session`: makes the AWS clients; `account`: must name a boundary. Errors of AWS are raised, except that the policy does not
    exist.
    """
    arn, iam = str(account.permissions_boundary), session.client("iam")
    found, lacking = _ask_or_none(iam, "get_policy", "Policy", "NoSuchEntity", PolicyArn=arn), list[str]()
    if found:
        version = iam.get_policy_version(PolicyArn=arn, VersionId=found["DefaultVersionId"])["PolicyVersion"]
        needed = REQUIRED_ACTIONS + (REQUIRED_IN_A_NETWORK if shared_stacks(experiment) else ())
        lacking = _list_missing_actions(
            needed + (KEY_ACTIONS if account.kms_key else ()), _list_statements(version["Document"])
        )
    without = f"allows no role {', '.join(lacking)}: runs would fail, or stacks would not end"
    wrong = [f"permissions_boundary: {arn}: {without if found else 'there is no such policy'}"]
    yield from _make_findings("permissions boundary", wrong if lacking or not found else [], fine=arn)


def _list_statements(policy: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the statements of an IAM policy as a list. In a policy, a single statement need not be in a list."""
    found = policy["Statement"]
    return found if isinstance(found, list) else [found]


def _trusts_account(principal: Any, account_id: str) -> bool:
    """Return whether `principal`, of a key policy's statement, is the account as a whole or everybody, so that the policies of the
    account's roles decide.
    """
    named = principal.get("AWS", []) if isinstance(principal, Mapping) else principal or []
    listed = [named] if isinstance(named, str) else named
    return any(each in ("*", account_id) or str(each).endswith(f"::{account_id}:root") for each in listed)


def _list_missing_actions(actions: Iterable[str], statements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return those of `actions` that no Allow statement covers, or that a Deny statement for all resources without a condition covers.
    `statements`: of an IAM policy.
    """
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
    """Return whether the Action or NotAction patterns of an IAM statement apply to `action`, in any case and with * and ? as wildcards."""
    named = statement.get("Action", statement.get("NotAction", []))
    patterns = [named] if isinstance(named, str) else named
    matched = any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)
    return matched if "Action" in statement else not matched


# --- surroundings -----------------------------------------------------------------------------------------------------
# Checks of an account for the network and its hosts, at no cost: images, quotas, and rules of the account's owners.

DEBIAN, AMAZON = "136693071363", "amazon"  # who owns the images. Source: wiki.debian.org/Cloud/AmazonEC2Image
NETWORK_QUOTAS = (  # of a region; the network needs one of each
    ("VPC quota", "L-F678F1CE", "describe_vpcs", "Vpcs"),
    ("internet gateway quota", "L-A4707A72", "describe_internet_gateways", "InternetGateways"),
)
AWS_EBS_KEY = "alias/aws/ebs"


def _list_public_image_fleets(experiment: Experiment, account: AccountFile) -> list[bill.Fleet]:
    """Return the experiment's fleets that boot a public machine image, because `account` names no image of the organisation for them."""
    fleets = bill.infrastructure_of(experiment).fleets
    return [each for each in fleets if not account.image(each.instance_type, gpu=each.gpu)]


def check_public_images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield a finding for each public machine image that the experiment's fleets boot: whether it exists in the region of `session`. Fleets
    for which `account` names an image of the organisation are skipped.
    """
    wanted = sorted(
        {image_parameter(each.instance_type, gpu=each.gpu) for each in _list_public_image_fleets(experiment, account)}
    )
    region = session.client("ssm").meta.region_name
    for name in wanted:
        found = deployed_clients.read_parameter(session, name)
        lacks = f"{region} has no parameter {name}, which names the image: choose another type, or a region by AWS_DEFAULT_REGION"
        yield Finding("image", bool(found), f"{name.rpartition('/latest')[0]}: {found}" if found else lacks)


def check_allowed_images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield a failed, not certain finding for each owner of public images that the experiment's fleets boot if the settings of the AWS
    account of `session` ("allowed images") do not allow this owner.

    `account`: names images of the organisation, which are not checked.
    """
    settings = session.client("ec2").get_allowed_images_settings()
    if settings.get("State", "disabled") != "enabled":
        return
    listed = [each.get("ImageProviders", []) for each in settings.get("ImageCriteria", [])]
    if not all(listed):  # a criterion that names no provider is about something else
        return
    allowed = {provider for providers in listed for provider in providers}
    for owner in sorted(
        {AMAZON if each.gpu else DEBIAN for each in _list_public_image_fleets(experiment, account)} - allowed
    ):
        detail = f"the account allows images of {', '.join(sorted(allowed)) or 'nobody'} only, not of {owner}: its owners can add it"
        # The account may list the owner's id or its alias.
        yield Finding("allowed images", False, detail, certain=False)


def check_network_quotas(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Yield a finding for the quotas of VPCs and of internet gateways in the region: whether one more fits. Yields nothing if the project's
    network exists already.
    """
    if find_network_zone(session, experiment.project):
        return
    for name, code, operation, key in NETWORK_QUOTAS:
        there = sum(1 for _ in deployed_clients.list_items(session, "ec2", operation, key))
        quota = session.client("service-quotas").get_service_quota(ServiceCode="vpc", QuotaCode=code)["Quota"]["Value"]
        ask = f"; aws service-quotas request-service-quota-increase --service-code vpc --quota-code {code} --desired-value {there + 1}"
        detail = f"{there} of {quota:.0f} in use, the network needs one more"
        yield Finding(name, there < quota, detail + ("" if there < quota else ask))


def check_public_access(session: Any, experiment: Experiment, own: str | None) -> Iterator[Finding]:
    """Yield a finding on whether the setting "block public access" of the AWS account of `session` keeps the hosts of the experiment's
    network from the internet.

    Both modes of the setting block hosts behind an internet gateway; behind a NAT gateway, which the organisation's VPC `own` may have,
    only the mode for both directions does. `experiment`: names the project, whose network's VPC may be excluded from the setting. Source:
    Amazon VPC User Guide, "Block public access".
    """
    ec2 = session.client("ec2")
    mode = ec2.describe_vpc_block_public_access_options()["VpcBlockPublicAccessOptions"].get(
        "InternetGatewayBlockMode", "off"
    )
    vpc = own or deployed_clients.read_parameter(session, f"/crossover/{experiment.project}/network/vpc")
    blocked = f"{mode}: the account keeps VPCs from the internet, where hosts find packages: its owners can exclude the network's VPC"
    stands = vpc or f"after it is created: .venv/bin/cdk deploy {experiment.project}-network -c config=..."
    holds = mode == "off" or bool(vpc and _is_excluded(ec2, vpc))
    certain = not (own and mode == "block-ingress")
    yield Finding("VPC block public access", holds, mode if holds else f"{blocked}, {stands}", certain=certain)


def _is_excluded(ec2: Any, vpc: str) -> bool:
    """Return whether the VPC with the id `vpc` is excluded from the account's setting "block public access"."""
    found = ec2.describe_vpc_block_public_access_exclusions()["VpcBlockPublicAccessExclusions"]
    standing = ("create-complete", "update-complete")
    return any(each["ResourceArn"].endswith(f"/{vpc}") and each["State"] in standing for each in found)


def check_volumes_key(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Yield a failed, not certain finding if new volumes of the experiment's fleets are encrypted with a key that Auto Scaling may not use:
    it could not start an instance then. Yields nothing otherwise.

    The key is the one that `account` names, else the default of the AWS account of `session`.
    """
    ec2 = session.client("ec2")
    if all(each.purpose == bill.DATABASE for each in bill.infrastructure_of(experiment).fleets):
        return
    key = account.kms_key or str(ec2.get_ebs_default_kms_key_id()["KmsKeyId"])
    if key.endswith(AWS_EBS_KEY) or (account.kms_key and can_scaling_use_key(session, key)):
        return
    detail = (
        f"{key} encrypts new volumes: a fleet's instances terminate at launch unless the key's policy or a grant lets "
        "AWSServiceRoleForAutoScaling use it (kms:CreateGrant)"
    )
    yield Finding(
        "EBS key" if account.kms_key else "default EBS key", False, detail, certain=False
    )  # a policy can allow it in ways that are not recognised here
