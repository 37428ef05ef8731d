"""The account's limits, which moto does not know: quotas, Lambda's concurrency, the broker types on offer, the newest image."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import REGION

CONCURRENCY = 1_000
QUOTAS: Mapping[tuple[str, str], float] = {
    ("ec2", "L-1216C47A"): 256.0,
    ("ec2", "L-34B43A08"): 256.0,
    ("ec2", "L-DB2E81BA"): 64.0,
    ("ec2", "L-3819A6DF"): 64.0,
    ("vpc", "L-F678F1CE"): 500.0,
    ("vpc", "L-A4707A72"): 500.0,
}
SETTINGS: Mapping[str, dict[str, Any]] = {
    "describe_vpc_block_public_access_options": {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": "off"}},
    "describe_vpc_block_public_access_exclusions": {"VpcBlockPublicAccessExclusions": []},
    "get_allowed_images_settings": {"State": "disabled"},
    "get_ebs_default_kms_key_id": {"KmsKeyId": "alias/aws/ebs"},
}
ZONES = tuple(f"{REGION}{letter}" for letter in "abcdef")
BROKER_TYPES = ("mq.m7g.medium", "mq.m7g.large", "mq.m5.large")


class Account:
    """The limits and offers that an account's APIs report; by default those of an established account."""

    def __init__(self) -> None:
        """Start with the defaults of a usual AWS account."""
        self.concurrency = CONCURRENCY
        self.quotas = dict(QUOTAS)
        self.broker_types = list(BROKER_TYPES)
        self.broker_versions = ["3.13", "4.2"]
        self.not_offered: set[tuple[str, str]] = set()  # (zone, instance type or service)
        self.interfaces_are_awaited = True  # CloudFormation may describe network interfaces (interfaces.py)
        self.settings: dict[str, dict[str, Any]] = dict(SETTINGS)  # of EC2 in this region, by the call that asks
        self.newest_image = ""  # what AWS's public parameters name; "" for the one that moto has


def install(changes: Replacements, account: Account) -> None:
    """Add routes and methods of the account to moto, in the format of AWS's APIs."""
    from moto.awslambda import urls as lambda_urls
    from moto.ec2.models.instance_types import InstanceTypeOfferingBackend
    from moto.ec2.models.vpcs import VPCBackend
    from moto.mq import urls as mq_urls
    from moto.servicequotas.models import ServiceQuotasBackend
    from moto.ssm.models import SimpleSystemManagerBackend

    def settings(request: Any, full_url: str, headers: Any) -> tuple[int, dict[str, str], str]:
        """Answer Lambda's GetAccountSettings with the account's concurrency."""
        limit = {
            "TotalCodeSize": 80_530_636_800,
            "CodeSizeUnzipped": 262_144_000,
            "CodeSizeZipped": 52_428_800,
            "ConcurrentExecutions": account.concurrency,
            "UnreservedConcurrentExecutions": account.concurrency,
        }
        return 200, {}, json.dumps({"AccountLimit": limit, "AccountUsage": {"TotalCodeSize": 0, "FunctionCount": 0}})

    def options(request: Any, full_url: str, headers: Any) -> tuple[int, dict[str, str], str]:
        """Answer Amazon MQ's DescribeBrokerInstanceOptions with what the account offers."""
        offered = [
            {
                "hostInstanceType": kind,
                "engineType": "RABBITMQ",
                "storageType": "EBS",
                "supportedDeploymentModes": ["SINGLE_INSTANCE"],
                "supportedEngineVersions": account.broker_versions,
                "availabilityZones": [{"name": zone} for zone in ZONES if (zone, kind) not in account.not_offered],
            }
            for kind in account.broker_types
        ]
        return 200, {}, json.dumps({"brokerInstanceOptions": offered, "maxResults": 100})

    _settings(changes, account)

    @changes.wraps(SimpleSystemManagerBackend, "get_parameter")
    def get(old: Any, self: Any, name: str) -> Any:
        """Return an SSM parameter; a public parameter of AWS names the account's newest image, if one is set."""
        found = old(self, name)
        if found is not None and name.startswith("/aws/service/") and account.newest_image:
            found = copy.copy(found)
            found.value = account.newest_image
        return found

    @changes.wraps(ServiceQuotasBackend, "get_service_quota")
    def quota(old: Any, self: Any, service_code: str, quota_code: str) -> Any:
        """Return the account's value of a quota, or moto's if the account sets none."""
        value = account.quotas.get((service_code, quota_code))
        if value is None:
            return old(self, service_code, quota_code)
        return {"ServiceCode": service_code, "QuotaCode": quota_code, "Value": value, "Adjustable": True}

    changes.replace(lambda_urls, "url_paths", {**lambda_urls.url_paths, "{0}/2016-08-19/account-settings/?$": settings})
    changes.replace(mq_urls, "url_paths", {**mq_urls.url_paths, "{0}/v1/broker-instance-options$": options})

    @changes.wraps(InstanceTypeOfferingBackend, "describe_instance_type_offerings")
    def offerings(old: Any, self: Any, *rest: Any, **named: Any) -> Any:
        """Return the instance types on offer, without those that the account does not offer."""
        found = old(self, *rest, **named)
        return [each for each in found if (each["Location"], each["InstanceType"]) not in account.not_offered]

    @changes.wraps(VPCBackend, "describe_vpc_endpoint_services")
    def services(old: Any, self: Any, *rest: Any, **named: Any) -> Any:
        """Return VPC endpoint services, without zones in which the account does not offer them."""
        found = old(self, *rest, **named)

        def offered(service: Any) -> Any:
            """Return the service without the zones in which the account does not offer it."""
            name = service["ServiceName"].rpartition(".")[2]
            zones = [zone for zone in service["AvailabilityZones"] if (zone, name) not in account.not_offered]
            return {**service, "AvailabilityZones": zones}

        return {**found, "servicesDetails": [offered(each) for each in found["servicesDetails"]]}


def _settings(changes: Replacements, account: Account) -> None:
    """Add calls that moto does not have."""
    from moto.core.responses import ActionResult
    from moto.ec2.responses import EC2Response

    for name in SETTINGS:
        changes.add(EC2Response, name, lambda self, name=name: ActionResult(account.settings[name]))
