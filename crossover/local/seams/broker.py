"""AWS::AmazonMQ::Broker: a real RabbitMQ on this machine, with the template's user."""

from collections.abc import Callable
from typing import Any, Protocol

from crossover.local.seams.resource_types import ACCOUNT, REGION, Made, ResourceType, Wanted


class Server(Protocol):
    @property
    def url(self) -> str: ...

    def stop(self) -> None: ...


Start = Callable[[str, str, str], Server]  # broker's name, user, password


def resource_types(start: Start) -> dict[str, ResourceType]:
    return {"AWS::AmazonMQ::Broker": ResourceType(make=lambda wanted: _make(wanted, start), name_property="BrokerName")}


def _make(wanted: Wanted, start: Start) -> Made:
    from moto.mq.models import mq_backends

    backend = mq_backends[ACCOUNT][REGION]
    user = wanted.properties["Users"][0]
    server = start(wanted.name, user["Username"], user["Password"])
    arn, identity = backend.create_broker(**_arguments(wanted))
    endpoint = {"consoleURL": "", "endpoints": [server.url], "ipAddress": "127.0.0.1"}
    backend.brokers[identity].instances = [endpoint]

    def remove() -> None:
        server.stop()
        backend.delete_broker(identity)

    attributes = {
        "Arn": arn,
        "Id": identity,
        "AmqpEndpoints": [server.url],
        "IpAddresses": ["127.0.0.1"],
        "ConsoleURLs": [""],
        "EngineVersionCurrent": wanted.properties.get("EngineVersion", ""),
    }
    return Made(identity, attributes, remove)


def _arguments(wanted: Wanted) -> dict[str, Any]:
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
