"""AWS::AmazonMQ::Broker: a real RabbitMQ on this machine with the template's user. RebootBroker restarts it."""

import functools
from collections.abc import Callable
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, MadeResource, ResourceType, WantedResource

StartBroker = Callable[[str, str, str], str]  # broker's name, user, password -> URL
Stop = Callable[[str], None]


def resource_types(start: StartBroker, stop: Stop) -> dict[str, ResourceType]:
    make = functools.partial(_make, start=start, stop=stop)
    return {"AWS::AmazonMQ::Broker": ResourceType(make=make, name_property="BrokerName")}


def install(changes: Replacements, *, reboot: Stop) -> None:
    from moto.mq.models import Broker

    @changes.wraps(Broker, "reboot")
    def rebooted(old: Any, self: Any) -> None:
        old(self)
        reboot(self.name)


def _make(wanted: WantedResource, *, start: StartBroker, stop: Stop) -> MadeResource:
    from moto.mq.models import mq_backends

    backend = mq_backends[ACCOUNT][REGION]
    user = wanted.properties["Users"][0]
    url = start(wanted.name, user["Username"], user["Password"])
    arn, identity = backend.create_broker(**_arguments(wanted))
    endpoint = {"consoleURL": "", "endpoints": [url], "ipAddress": "127.0.0.1"}
    backend.brokers[identity].instances = [endpoint]

    def remove() -> None:
        stop(wanted.name)
        backend.delete_broker(identity)

    attributes = {
        "Arn": arn,
        "Id": identity,
        "AmqpEndpoints": [url],
        "IpAddresses": ["127.0.0.1"],
        "ConsoleURLs": [""],
        "EngineVersionCurrent": wanted.properties.get("EngineVersion", ""),
    }
    return MadeResource(identity, attributes, remove)


def _arguments(wanted: WantedResource) -> dict[str, Any]:
    given = wanted.properties
    return {
        "authentication_strategy": given.get("AuthenticationStrategy", "SIMPLE"),
        "auto_minor_version_upgrade": True,
        "broker_name": wanted.name,
        "configuration": None,
        "deployment_mode": given["DeploymentMode"],
        "encryption_options": None,
        "engine_type": given["EngineType"],
        "engine_version": given.get("EngineVersion", ""),
        "host_instance_type": given["HostInstanceType"],
        "ldap_server_metadata": None,
        "logs": given.get("Logs") or {},
        "maintenance_window_start_time": None,
        "publicly_accessible": given.get("PubliclyAccessible", False),
        "security_groups": given.get("SecurityGroups", []),
        "storage_type": given.get("StorageType", "EBS"),
        "subnet_ids": given.get("SubnetIds", []),
        "tags": {},
        "users": given["Users"],
    }
