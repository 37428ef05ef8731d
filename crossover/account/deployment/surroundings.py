"""What an account says for free of the network and the hosts that would be made in it: images, quotas, and what its owners forbid."""

from collections.abc import Iterator
from typing import Any

from crossover.account.deployment import organisation, zones
from crossover.account.deployment.finding import Finding
from crossover.architecture.instances import image_parameter
from crossover.clients import aws_calls
from crossover.costs import infrastructure
from crossover.experiment import Experiment
from crossover.validation.account_file import AccountFile

DEBIAN, AMAZON = "136693071363", "amazon"  # who owns the images. Source: wiki.debian.org/Cloud/AmazonEC2Image
NETWORK_QUOTAS = (  # of a region, in which the network takes one each
    ("VPC quota", "L-F678F1CE", "describe_vpcs", "Vpcs"),
    ("internet gateway quota", "L-A4707A72", "describe_internet_gateways", "InternetGateways"),
)
OWN_KEY = "alias/aws/ebs"


def _public(experiment: Experiment, account: AccountFile) -> list[infrastructure.Fleet]:
    """Fleets whose image is not the organisation's own."""
    fleets = infrastructure.of(experiment).fleets
    return [each for each in fleets if not account.image(each.instance_type, gpu=each.gpu)]


def images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """Whether the region names an image for each fleet."""
    wanted = sorted({image_parameter(each.instance_type, gpu=each.gpu) for each in _public(experiment, account)})
    region = session.client("ssm").meta.region_name
    for name in wanted:
        found = aws_calls.parameter(session, name)
        lacks = f"{region} has no parameter {name}, which names the image: choose another type, or a region by AWS_DEFAULT_REGION"
        yield Finding("image", bool(found), f"{name.rpartition('/latest')[0]}: {found}" if found else lacks)


def allowed_images(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    settings = session.client("ec2").get_allowed_images_settings()
    if settings.get("State", "disabled") != "enabled":
        return
    listed = [each.get("ImageProviders", []) for each in settings.get("ImageCriteria", [])]
    if not all(listed):  # a criterion that names no provider is about something else
        return
    allowed = {provider for providers in listed for provider in providers}
    for owner in sorted({AMAZON if each.gpu else DEBIAN for each in _public(experiment, account)} - allowed):
        detail = f"the account allows images of {', '.join(sorted(allowed)) or 'nobody'} alone, not of {owner}: its owners may add it"
        # Its id may be listed, or a name that stands for it.
        yield Finding("allowed images", False, detail, certain=False)


def network_quotas(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """Where the network does not stand yet."""
    if zones.deployed(session, experiment.project):
        return
    for name, code, operation, key in NETWORK_QUOTAS:
        there = sum(1 for _ in aws_calls.entries(session, "ec2", operation, key))
        quota = session.client("service-quotas").get_service_quota(ServiceCode="vpc", QuotaCode=code)["Quota"]["Value"]
        ask = f"; aws service-quotas request-service-quota-increase --service-code vpc --quota-code {code} --desired-value {there + 1}"
        detail = f"{there} of {quota:.0f} in use, the network needs one more"
        yield Finding(name, there < quota, detail + ("" if there < quota else ask))


def public_access(session: Any, experiment: Experiment, own: str | None) -> Iterator[Finding]:
    """Either mode keeps from hosts what an internet gateway would let in; behind a NAT, as may be in a VPC of one's `own`, only the mode of
    both directions does. Source: Amazon VPC User Guide, "Block public access".
    """
    ec2 = session.client("ec2")
    mode = ec2.describe_vpc_block_public_access_options()["VpcBlockPublicAccessOptions"].get(
        "InternetGatewayBlockMode", "off"
    )
    vpc = own or aws_calls.parameter(session, f"/crossover/{experiment.project}/network/vpc")
    blocked = f"{mode}: the account keeps VPCs from the internet, where hosts find packages: its owners may exclude the network's VPC"
    stands = vpc or f"once it stands: .venv/bin/cdk deploy {experiment.project}-network -c config=..."
    holds = mode == "off" or bool(vpc and _excluded(ec2, vpc))
    certain = not (own and mode == "block-ingress")
    yield Finding("VPC block public access", holds, mode if holds else f"{blocked}, {stands}", certain=certain)


def _excluded(ec2: Any, vpc: str) -> bool:
    found = ec2.describe_vpc_block_public_access_exclusions()["VpcBlockPublicAccessExclusions"]
    standing = ("create-complete", "update-complete")
    return any(each["ResourceArn"].endswith(f"/{vpc}") and each["State"] in standing for each in found)


def volumes_key(session: Any, experiment: Experiment, account: AccountFile) -> Iterator[Finding]:
    """A key of the account's own encrypts every new volume, or that of the organisation's file does; Auto Scaling starts no instance whose
    key it may not use.
    """
    ec2 = session.client("ec2")
    if all(each.purpose == infrastructure.DATABASE for each in infrastructure.of(experiment).fleets):
        return
    key = account.kms_key or str(ec2.get_ebs_default_kms_key_id()["KmsKeyId"])
    if key.endswith(OWN_KEY) or (account.kms_key and organisation.scaling_may_use(session, key)):
        return
    detail = (
        f"{key} encrypts new volumes: a fleet's instances end at their start unless the key's policy or a grant lets "
        "AWSServiceRoleForAutoScaling use it (kms:CreateGrant)"
    )
    yield Finding(
        "EBS key" if account.kms_key else "default EBS key", False, detail, certain=False
    )  # a policy may say so in many ways
