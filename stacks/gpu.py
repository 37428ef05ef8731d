"""The GPU baseline: a fleet of GPU instances, one process per GPU, gradients through S3 or among themselves."""

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk.constructs import Buckets, Budget, ExperimentStack, ProgramFleet, Props, SharedNetwork
from peers.gpu import PROCESSES, PROGRAM


class GpuStack(ExperimentStack):
    """The stack of the GPU architecture: a fleet of GPU instances; with `gpu.exchange: distributed` also a security group within which all
    ports are open.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, fleet and budget, and publish their values as SSM parameters for the runner. Raises ConfigError as `Buckets` and
        `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        fleet = ProgramFleet(
            self,
            "Workers",
            module=PROGRAM.module,
            instances=PROGRAM.instances(experiment),
            lifetime=experiment.lifetime,
            identity=self.identity,
            user_code=self.user_code,
            network=network,
            storage=storage,
            groups=[self._build_group(network.import_vpc())] if experiment.gpu.exchange == "distributed" else [],
            environment={PROCESSES.removeprefix("CROSSOVER_"): str(experiment.gpu.gpus_per_instance)},
        )
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )
        self.publish(storage.facts | fleet.facts)

    def _build_group(self, vpc: ec2.IVpc) -> str:
        """Build a security group whose members reach one another on all TCP ports, because NCCL and gloo choose their ports at run time.
        Return the group's id.
        """
        purpose = "GPU workers reach one another, nobody else them"
        group = ec2.SecurityGroup(self, "Collective", vpc=vpc, description=purpose, allow_all_outbound=False)
        group.connections.allow_internally(ec2.Port.all_tcp())
        return group.security_group_id


STACK = GpuStack
