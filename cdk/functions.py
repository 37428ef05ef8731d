"""One Lambda function per step: memory, layers, network and permissions follow from what the step declares."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aws_cdk import Duration, RemovalPolicy, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from cdk import grants
from cdk.broker import Broker
from cdk.layers import ARCHITECTURE, RUNTIME, Layers
from cdk.nag import acknowledge
from cdk.names import arn, resource_name
from cdk.network import Network
from cdk.packaging import Package, Packages
from cdk.redis_hosts import RedisHosts
from cdk.storage import Storage
from crossover import own_code
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.workflow import Step


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What functions of an experiment may be connected to; None where the architecture has none."""

    network: Network
    storage: Storage
    hosts: RedisHosts | None = None
    broker: Broker | None = None
    machines: Mapping[str, str] | None = None  # name -> full machine name, for steps that start machines


class Functions(Construct):
    """`by_step`: what Step Functions invokes, by the step's name."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        experiment: Experiment,
        steps: Sequence[Step],
        layers: Layers,
        around: Surroundings,
    ) -> None:
        super().__init__(scope, id)
        _check(experiment, steps)
        self._experiment, self._around = experiment, around
        self.names = {step.name: resource_name(experiment, step.name) for step in steps}
        self.by_step: dict[str, lambda_.IFunction] = {}
        with tempfile.TemporaryDirectory() as folder:
            image = experiment.functions.packaging == "image"
            packages = Packages(
                layers, Path(folder), image=image, own=own_code.bundled(experiment), own_steps=experiment.outside
            )
            for step in steps:
                torch = step.needs_torch(experiment)
                self.by_step[step.name] = self._function(step, packages.of(step, torch=torch), torch=torch)

    def _function(self, step: Step, package: Package, *, torch: bool) -> lambda_.IFunction:
        name, functions = self.names[step.name], self._experiment.functions
        scope = Construct(self, step.name)
        group = logs.LogGroup(
            scope,
            "Log",
            log_group_name=f"/aws/lambda/{name}",
            retention=logs.RetentionDays.TWO_WEEKS,
            removal_policy=RemovalPolicy.DESTROY,
        )
        function = lambda_.Function(
            scope,
            "Function",
            function_name=name,
            description=f"{self._experiment.architecture}: {step.name.replace('_', ' ')}",
            handler=package.handler,
            code=package.code,
            runtime=package.runtime,
            architecture=ARCHITECTURE,
            layers=package.layers,
            memory_size=functions.memory_of(step.name, torch=torch),
            timeout=Duration.seconds(functions.timeout_s),
            environment=self._environment(step),
            role=self._role(scope, step, name),
            log_group=group,
            # platform.report as JSON: billed time, INIT and peak memory, joined to the steps' records by request id.
            logging_format=lambda_.LoggingFormat.JSON,
            system_log_level_v2=lambda_.SystemLogLevel.INFO,
            application_log_level_v2=lambda_.ApplicationLogLevel.INFO,
            snap_start=lambda_.SnapStartConf.ON_PUBLISHED_VERSIONS if functions.snap_start else None,
        )
        if self._reaches_into_vpc(step):
            resource = function.node.default_child
            assert isinstance(resource, lambda_.CfnFunction)
            resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
                subnet_ids=[self._around.network.functions_subnet],
                security_group_ids=[self._around.network.functions_group],
            )
        facts = {"step": step.name, "torch": str(torch).lower(), "waits": str(step.waits).lower()}
        for key, value in facts.items():
            Tags.of(function).add(f"crossover:{key}", value)
        if package.runtime == RUNTIME:
            why = "The torch layer's byte code is of Python 3.13: function and layer change together."
            acknowledge(function, {"AwsSolutions-L1": why})
        if functions.snap_start:
            return lambda_.Alias(scope, "Live", alias_name="live", version=function.current_version)
        return function

    def _reaches_into_vpc(self, step: Step) -> bool:
        """Redis and the broker stand in the VPC; tensors that lie in the bucket (`storage.channel: s3`) do not."""
        return bool("bus" in step.uses or ("tensors" in step.uses and self._around.hosts))

    def _role(self, scope: Construct, step: Step, name: str) -> iam.Role:
        around = self._around
        allowed = [grants.logs(f"/aws/lambda/{name}"), *grants.objects(around.storage.bucket, around.storage.data)]
        if self._reaches_into_vpc(step):
            allowed += grants.network_interfaces(name)
        if "tensors" in step.uses and around.hosts:
            allowed += [
                grants.secret(around.hosts.secret_arn),
                grants.certificates(around.storage.bucket),
            ]
        if "bus" in step.uses and around.broker:
            allowed.append(grants.secret(around.broker.secret))
        if "machines" in step.uses and around.machines:
            allowed += grants.start_machines(around.machines.values())
        return grants.role(scope, "Role", service="lambda", grants=allowed)

    def _environment(self, step: Step) -> dict[str, str]:
        """Deployment facts, and only those of services that the step declares. No secret: an ARN to read it by."""
        experiment, around = self._experiment, self._around
        facts = around.storage.facts(experiment)
        if "tensors" in step.uses and around.hosts:
            facts |= {"REDIS": " ".join(around.hosts.urls), "REDIS_SECRET": around.hosts.secret_arn}
            facts["REDIS_CERTIFICATES"] = "hosts/redis/"
        if "bus" in step.uses and around.broker:
            facts |= {"BROKER": around.broker.endpoint, "BROKER_SECRET": around.broker.secret}
        if "machines" in step.uses:
            for name, machine in (around.machines or {}).items():
                facts[f"MACHINE_{name.upper()}"] = arn("states", f"stateMachine:{machine}")
        return {f"CROSSOVER_{name}": value for name, value in facts.items()}


def _check(experiment: Experiment, steps: Sequence[Step]) -> None:
    """What cannot be deployed is refused here, with the reason."""
    if experiment.functions.packaging == "image" and experiment.functions.snap_start:
        raise ConfigError("functions.snap_start: AWS offers it for zip packages only; set functions.packaging: layer")
    for step in steps:
        if "machines" in step.uses and step.uses & grants.VPC_SERVICES:
            raise AssertionError(
                f"{step.name}: from inside the VPC there is no route to Step Functions; split the step"
            )
