"""One Lambda function per step. Its memory, layers, network and permissions follow from what the step declares."""

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from aws_cdk import Duration, RemovalPolicy, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk import grants, organisation
from cdk.broker import Broker
from cdk.layers import ARCHITECTURE, RUNTIME, Layers
from cdk.nag import acknowledge
from cdk.names import arn, resource_name
from cdk.network import SharedNetwork
from cdk.packaging import Package, Packages
from cdk.redis_hosts import RedisHosts
from cdk.storage import Buckets
from crossover.experiment import Functions
from crossover.user_code import Dependencies
from crossover.workflow import Step, Uses
from crossover.workflow.architecture import Architecture, steps


class LambdaFunctions(Construct):
    """One Lambda function for each step of the architecture's trees. `by_step`: the function, or its alias, that Step Functions invokes, by
    the step's name; `names`: the functions' full names, by step; `facts`: values that the experiment's stack publishes as parameters.

    Functions of steps that use `databases` or `broker` get access to them and run inside the network; the others stay outside of it.

    `settings`: memory, timeout and packaging. `computing`: names of the steps whose functions get torch. `user_code`: files of the user's
    own modules; they are put into functions that compute, and with `user_steps` (the architecture is the user's too) into all. `identity`:
    the environment variables by which a function knows its experiment.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        architecture: Architecture,
        settings: Functions,
        computing: Collection[str],
        identity: Mapping[str, str],
        layers: Layers,
        network: SharedNetwork,
        storage: Buckets,
        databases: RedisHosts | None = None,
        broker: Broker | None = None,
        user_code: Dependencies | None = None,
        user_steps: bool = False,
    ) -> None:
        """Package and build the Lambda function of each step. `computing`: names of the steps whose functions get torch; `identity`:
        environment variables of all functions; `user_steps`: whether the steps are the user's own. Raises ConfigError if a function's name
        would be too long, Unreachable if a step needs a package that its function lacks.
        """
        super().__init__(scope, id)
        self._settings, self._identity, self._network, self._storage = settings, identity, network, storage
        self._services: dict[Uses, RedisHosts | Broker | None] = {"tensors": databases, "bus": broker}
        # Those that steps may start, by their names: they are made later, of these functions.
        self._machines = {name: resource_name(self, name) for name in architecture.machines}
        self.names = {step.name: resource_name(self, step.name) for step in steps(architecture)}
        self.facts = {"functions": " ".join(self.names.values())}
        self.by_step: dict[str, lambda_.IFunction] = {}
        with tempfile.TemporaryDirectory() as folder:
            packages = Packages(
                layers,
                Path(folder),
                image=settings.packaging == "image",
                own=user_code or Dependencies(),
                own_steps=user_steps,
            )
            for step in steps(architecture):
                torch = step.name in computing
                self.by_step[step.name] = self._function(step, packages.for_step(step, torch=torch), torch=torch)

    def _function(self, step: Step, package: Package, *, torch: bool) -> lambda_.IFunction:
        """Build the function of one step from `package`, with its log group and its role, and return it, or its alias `live` if SnapStart
        is on.

        Raises AssertionError if the step needs both the network and Step Functions, because there is no route from one to the other.
        `torch`: whether the function gets torch.
        """
        name, settings = self.names[step.name], self._settings
        scope = Construct(self, step.name)
        assert not ("machines" in step.uses and step.uses & grants.VPC_SERVICES), (
            f"{step.name}: from inside the VPC there is no route to Step Functions; split the step"
        )
        group = logs.LogGroup(
            scope,
            "Log",
            log_group_name=f"/aws/lambda/{name}",
            retention=logs.RetentionDays.TWO_WEEKS,
            removal_policy=RemovalPolicy.DESTROY,
        )
        role = self._role(scope, step, name)
        function = lambda_.Function(
            scope,
            "Function",
            function_name=name,
            description=f"{self._identity['ARCHITECTURE']}: {step.name.replace('_', ' ')}",
            handler=package.handler,
            code=package.code,
            runtime=package.runtime,
            architecture=ARCHITECTURE,
            layers=package.layers,
            memory_size=settings.memory_of(step.name, torch=torch),
            timeout=Duration.seconds(settings.timeout_s),
            environment=self._environment(step),
            environment_encryption=organisation.import_kms_key(self),
            role=role,
            log_group=group,
            # platform.report as JSON: billed time, INIT and peak memory, joined to the steps' records by request id.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.INFO,
            application_log_level_v2=lambda_.ApplicationLogLevel.INFO,
            snap_start=lambda_.SnapStartConf.ON_PUBLISHED_VERSIONS if settings.snap_start else None,
        )
        grants.depend_by_reference(function, role)
        if self._list_vpc_services(step):
            resource = function.node.default_child
            assert isinstance(resource, lambda_.CfnFunction)
            # L2 would take an imported VPC, whose id would stand in the template as a parameter that nothing uses.
            resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
                subnet_ids=[self._network.id_of("functions_subnet")],
                security_group_ids=[self._network.id_of("functions_group")],
            )
        for key, value in (("step", step.name), ("torch", str(torch).lower()), ("waits", str(step.waits).lower())):
            Tags.of(function).add(f"crossover:{key}", value)
        if package.runtime == RUNTIME:
            acknowledge(
                function,
                {
                    "AwsSolutions-L1": "The torch layer's byte code is of Python 3.13: function and layer change together."
                },
            )
        if settings.snap_start:
            return lambda_.Alias(scope, "Live", alias_name="live", version=function.current_version)
        return function

    def _list_vpc_services(self, step: Step) -> list[RedisHosts | Broker]:
        """Return the services (databases, broker) for which the step's function must be inside the network; empty if it needs none, or if
        vectors go through the bucket (`storage.channel: s3`).
        """
        return [part for service, part in self._services.items() if part and service in step.uses]

    def _role(self, scope: Construct, step: Step, name: str) -> iam.Role:
        """Build the role of the function `name`, with the permissions for the services that the step declares."""
        storage = self._storage
        allowed = [grants.logs(f"/aws/lambda/{name}"), *grants.objects(storage.bucket, storage.data)]
        if self._list_vpc_services(step):
            allowed += grants.network_interfaces(name)
        for part in self._list_vpc_services(step):
            allowed += part.grants
        if "machines" in step.uses and self._machines:
            allowed += grants.start_machines(self._machines.values())
        return grants.role(scope, "Role", service="lambda", grants=allowed)

    def _environment(self, step: Step) -> dict[str, str]:
        """Return the environment variables of the step's function, with the prefix CROSSOVER_: identity, buckets, the addresses of the
        services that the step declares and, if it may start state machines, their ARNs. Instead of a secret they hold its ARN.
        """
        facts = {**self._identity, **self._storage.environment}
        for part in self._list_vpc_services(step):
            facts |= part.environment
        if "machines" in step.uses:
            facts |= {
                f"MACHINE_{name.upper()}": arn("states", f"stateMachine:{full}")
                for name, full in self._machines.items()
            }
        return {f"CROSSOVER_{name}": value for name, value in facts.items()}
