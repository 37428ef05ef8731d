"""The patches of moto for a run on this machine, one module per topic, each with contract tests in tests/local/moto_patches/.

Patches that only tests of an account need, such as its quotas and the rules of updates, are in tests/moto_patches/.
"""

from typing import Any, Protocol

from crossover.local.moto_patches import (
    amazon_mq,
    deletion,
    instances,
    lambda_functions,
    objects,
    parameters,
    resource_types,
    secrets,
    sessions,
    step_functions,
)
from crossover.local.moto_patches.replacing import Replacements


class Cloud(Protocol):
    """The parts of the local cloud that the patches use. Protocol; LocalCloud implements it. `servers`: its databases and brokers;
    `lambdas`: runs its functions; `fleets`: runs the programs of its Auto Scaling groups.
    """

    servers: Any
    lambdas: Any
    fleets: Any

    @property
    def function(self) -> Any:
        """The method `function(deployed)`, which returns the Function for one of moto's function objects."""

    @property
    def invoke(self) -> Any:
        """The method `invoke(name, payload, client_context=None)`, which invokes a Lambda function, given by name or ARN, and returns its
        answer. It raises TooLarge, TooManyRequests, or moto's error if there is no such function.
        """

    @property
    def client(self) -> Any:
        """The method `client(service)`, which returns the shared boto3 client of a service."""


def _collect_types(cloud: Cloud) -> dict[str, resource_types.ResourceType]:
    """Return, by name, the CloudFormation resource types that `cloud` creates itself, because moto lacks them or creates them otherwise:
    brokers, secrets, aliases of functions, and the CDK's custom resources. A new dictionary at each call.
    """
    return {
        **amazon_mq.resource_types(cloud.servers.start_broker, cloud.servers.stop_broker),
        **deletion.resource_types(),
        **lambda_functions.resource_types(),
        **secrets.resource_types(),
    }


def list_supported_types(cloud: Cloud) -> frozenset[str]:
    """Return the names of all CloudFormation resource types that a template may contain on `cloud`: moto's, those of `_collect_types`, and
    those that are accepted but without effect.
    """
    return resource_types.list_supported_types(_collect_types(cloud))


def install(changes: Replacements, *, cloud: Cloud) -> None:
    """Install all patches of moto for `cloud`. Closing `changes` undoes them."""
    sessions.install(changes)
    resource_types.install(changes, _collect_types(cloud))
    deletion.install(changes)
    objects.install(changes)
    parameters.install(changes)
    instances.install(
        changes,
        started=cloud.servers.start_instance,
        stopped=cloud.servers.stop_instance,
        resized=cloud.fleets.resize,
    )
    amazon_mq.install(changes, reboot=cloud.servers.reboot_broker)
    lambda_functions.install(
        changes,
        invoke=lambda deployed, payload, context: cloud.lambdas.invoke(
            cloud.function(deployed), payload, client_context=context
        ),
        invoke_event=lambda deployed, payload: cloud.lambdas.invoke_event(cloud.function(deployed), payload),
        kill_idle=cloud.lambdas.kill_idle,
    )
    step_functions.install(changes, invoke=cloud.invoke, client=cloud.client)
