"""P2P without Lambda: one EC2 instance per peer; their mailboxes on the broker."""

from pathlib import Path
from typing import Any

from aws_cdk import Stack
from constructs import Construct

from cdk.broker import Broker
from cdk.facts import publish_facts
from cdk.fleets import CPU_TORCH, PACKAGES, Fleet, Machines, surroundings
from cdk.guards import Budget
from cdk.hosts import debian_image
from cdk.network import Network
from cdk.storage import Storage
from crossover import instances
from crossover.experiment import Experiment
from peers.p2p_instance import PROGRAM


class P2PInstanceStack(Stack):
    """The peers' fleet and the bucket of one experiment."""

    def __init__(
        self, scope: Construct, id: str, *, experiment: Experiment, layers: Path, minibatches: int | None, **stack: Any
    ) -> None:
        super().__init__(scope, id, **stack)
        network, broker = Network(self, experiment.project), Broker(self, experiment.project)
        storage = Storage(self, "Storage", experiment=experiment)
        environment, may = surroundings(experiment, storage=storage, broker=broker)
        fleet = Fleet(
            self,
            "Peers",
            experiment=experiment,
            network=network,
            machines=Machines(
                instance_type=experiment.p2p.instance_type,
                image=debian_image(self, experiment.p2p.instance_type),
                count=experiment.workers,
                volume_gb=instances.PEER_GB,
                requirements=f"{CPU_TORCH} {PACKAGES}",
            ),
            module=PROGRAM.module,
            environment=environment,
            may=may,
        )
        Budget(self, "Budget", experiment=experiment)
        publish_facts(self, experiment, storage=storage, fleet=fleet)


STACK = P2PInstanceStack
