"""The GPU baseline: a fleet of GPU instances, one process per GPU, gradients through S3 or among themselves."""

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk.constructs import Buckets, Budget, ExperimentStack, ProgramFleet, Props, SharedNetwork
from peers.gpu import PROCESSES, PROGRAM


class GpuStack(ExperimentStack):
    """A fleet of GPU instances; with `gpu.exchange: distributed` also a security group within which all ports are open."""

    def __init__(self, scope: Construct, props: Props) -> None:
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
            groups=[self._among_themselves(network.id_of("vpc"))] if experiment.gpu.exchange == "distributed" else [],
            environment={PROCESSES.removeprefix("CROSSOVER_"): str(experiment.gpu.gpus_per_instance)},
        )
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )
        self.publish(storage.facts | fleet.facts)

    def _among_themselves(self, vpc: str) -> str:
        """Build a security group whose members reach one another on all TCP ports, and return its id: NCCL and gloo choose their ports
        at run time. L1, because L2 asks for a whole IVpc, of which only the id is known.
        """
        group = ec2.CfnSecurityGroup(
            self, "Collective", vpc_id=vpc, group_description="GPU workers reach one another, nobody else them"
        )
        for direction in (ec2.CfnSecurityGroupIngress, ec2.CfnSecurityGroupEgress):
            other = "source" if direction is ec2.CfnSecurityGroupIngress else "destination"
            direction(
                self,
                direction.__name__.removeprefix("CfnSecurityGroup"),
                group_id=group.attr_group_id,
                ip_protocol="tcp",
                from_port=0,
                to_port=65_535,
                **{f"{other}_security_group_id": group.attr_group_id},
            )
        return group.attr_group_id


STACK = GpuStack
