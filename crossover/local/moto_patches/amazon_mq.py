"""AWS::AmazonMQ::Broker: a real RabbitMQ on this machine with the template's user. RebootBroker restarts it."""

import functools
from collections.abc import Callable
from typing import Any

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, MadeResource, ResourceType, WantedResource

StartBroker = Callable[[str, str, str], str]  # broker's name, user, password -> URL
Stop = Callable[[str], None]


def resource_types(start: StartBroker, stop: Stop) -> dict[str, ResourceType]:
    """Return {"AWS::AmazonMQ::Broker": the ResourceType of brokers}. `start(name, user, password)`: starts a broker's server and returns
    its URL; `stop(name)`: stops that server.
    """
    make = functools.partial(_make_broker, start=start, stop=stop)
    return {"AWS::AmazonMQ::Broker": ResourceType(make=make, name_property="BrokerName")}


def install(changes: Replacements, *, reboot: Stop) -> None:
    """Install, through `changes`, the patch of moto that calls `reboot(name)` whenever a broker is rebooted."""
    from moto.mq.models import Broker

    @changes.wraps(Broker, "reboot")
    def reboot_server(old: Any, self: Any) -> None:
        """Reboot moto's broker by moto's method `old`, then the RabbitMQ server behind it by `reboot`, whose errors pass."""
        old(self)
        reboot(self.name)


def _make_broker(wanted: WantedResource, *, start: StartBroker, stop: Stop) -> MadeResource:
    """Start a RabbitMQ server with the first user of the template's broker `wanted`, create moto's broker for it, and return both as one
    resource, whose Ref is the broker's id and whose attributes are Arn, Id, AmqpEndpoints, IpAddresses, ConsoleURLs and
    EngineVersionCurrent. `start`, `stop`: start the server and return its address, and stop it, by the broker's name.
    """
    from moto.mq.models import mq_backends

    backend = mq_backends[ACCOUNT][REGION]
    user = wanted.properties["Users"][0]
    url = start(wanted.name, user["Username"], user["Password"])
    arn, identity = backend.create_broker(**_convert_properties(wanted))
    endpoint = {"consoleURL": "", "endpoints": [url], "ipAddress": "127.0.0.1"}
    backend.brokers[identity].instances = [endpoint]

    def remove() -> None:
        """Stop the RabbitMQ server and delete moto's broker."""
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


def _convert_properties(wanted: WantedResource) -> dict[str, Any]:
    """Return the arguments of moto's create_broker, by name, for a broker as a template declares it."""
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
