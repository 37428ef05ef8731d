"""The GPU baseline: a fleet of GPU instances, one process per GPU, gradients through S3 or among themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from cdk.facts import publish_facts
from cdk.fleets import Fleet, machines_of, surroundings
from cdk.guards import Budget
from cdk.network import Network
from cdk.storage import Storage
from crossover.experiment import Experiment
from peers.gpu import PROCESSES, PROGRAM


class GpuStack(Stack):
    """The fleet and the bucket of one experiment; with `gpu.exchange: distributed` a group within which all ports are open."""

    def __init__(
        self, scope: Construct, id: str, *, experiment: Experiment, layers: Path, minibatches: int | None, **stack: Any
    ) -> None:
        super().__init__(scope, id, **stack)
        network, gpu = Network(self, experiment.project), experiment.gpu
        storage = Storage(self, "Storage", experiment=experiment)
        environment, may = surroundings(experiment, storage=storage)
        fleet = Fleet(
            self,
            "Workers",
            experiment=experiment,
            network=network,
            machines=replace(
                machines_of(self, PROGRAM.instances(experiment)),
                groups=[self._among_themselves(network)] if gpu.exchange == "distributed" else [],
            ),
            module=PROGRAM.module,
            environment={**environment, PROCESSES.removeprefix("CROSSOVER_"): str(gpu.gpus_per_instance)},
            may=may,
        )
        Budget(self, "Budget", experiment=experiment)
        publish_facts(self, experiment, storage=storage, fleet=fleet)

    def _among_themselves(self, network: Network) -> str:
        """NCCL and gloo choose their ports as they go."""
        group = ec2.CfnSecurityGroup(
            self, "Collective", vpc_id=network.vpc, group_description="GPU workers reach one another, nobody else them"
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
