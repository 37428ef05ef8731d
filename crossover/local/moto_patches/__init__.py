"""What is changed in moto, one module per subject, each with contract tests in tests/local/moto_patches/."""

from typing import Any, Protocol

from crossover.local.moto_patches import (
    account,
    amazon_mq,
    auto_scaling,
    definitions,
    deletion,
    ec2_instances,
    interfaces,
    interpreter,
    lambda_functions,
    objects,
    parameters,
    remembered_stacks,
    resource_types,
    secrets,
    updating,
)
from crossover.local.moto_patches.replacing import Replacements


class Cloud(Protocol):
    """What the seams ask of the cloud that they act for."""

    account: account.Account
    servers: Any
    lambdas: Any
    fleets: Any

    @property
    def function(self) -> Any: ...
    @property
    def invoke(self) -> Any: ...
    @property
    def client(self) -> Any: ...


def _types(cloud: Cloud, waits: updating.BootWaits) -> dict[str, resource_types.ResourceType]:
    return {
        **amazon_mq.resource_types(cloud.servers.start_broker, cloud.servers.stop_broker),
        **deletion.resource_types(),
        **lambda_functions.resource_types(),
        **secrets.resource_types(),
        **waits.resource_types(),
    }


def supported(cloud: Cloud) -> frozenset[str]:
    """Every resource type that a template may contain."""
    return resource_types.supported(_types(cloud, updating.BootWaits()))


def install(changes: Replacements, *, cloud: Cloud) -> None:
    """Every seam, for `cloud`; undone when `changes` is closed."""
    waits = updating.BootWaits()
    resource_types.install(changes, _types(cloud, waits))
    updating.install(changes, waits)
    account.install(changes, cloud.account)
    definitions.install(changes)
    deletion.install(changes)
    remembered_stacks.install(changes)
    objects.install(changes)
    parameters.install(changes, newest_image=lambda: cloud.account.newest_image)
    ec2_instances.install(
        changes, started=cloud.servers.start_instance, stopped=cloud.servers.stop_instance, booted=waits.booted
    )
    amazon_mq.install(changes, reboot=cloud.servers.reboot_broker)
    auto_scaling.install(changes, resized=cloud.fleets.resize)
    lambda_functions.install(
        changes,
        invoke=lambda deployed, payload, context: cloud.lambdas.invoke(
            cloud.function(deployed), payload, client_context=context
        ),
        invoke_event=lambda deployed, payload: cloud.lambdas.invoke_event(cloud.function(deployed), payload),
        forget=cloud.lambdas.forget,
    )
    interfaces.install(changes, cloud.account)
    interpreter.install(changes, invoke=cloud.invoke, client=cloud.client)
