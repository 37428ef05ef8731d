"""P2P with Lambda: a small EC2 instance per peer, whose state machine computes its batches side by side in functions."""

from pathlib import Path
from typing import Any

from aws_cdk import Stack
from constructs import Construct

from cdk.broker import Broker
from cdk.facts import publish_facts
from cdk.fleets import CPU_TORCH, PACKAGES, Fleet, Machines, surroundings
from cdk.functions import Functions, Surroundings
from cdk.guards import Budget
from cdk.hosts import debian_image
from cdk.layers import Layers
from cdk.network import Network
from cdk.step_functions import StepFunctions
from cdk.storage import Storage
from crossover import asl, instances, workflow
from crossover.experiment import Experiment
from peers.p2p_serverless import ARCHITECTURE, PROGRAM


class P2PServerlessStack(Stack):
    """The peers' fleet, their functions, which use S3 alone and so stay outside the VPC, and the bucket of one experiment."""

    def __init__(
        self, scope: Construct, id: str, *, experiment: Experiment, layers: Path, minibatches: int | None, **stack: Any
    ) -> None:
        super().__init__(scope, id, **stack)
        network, broker = Network(self, experiment.project), Broker(self, experiment.project)
        storage = Storage(self, "Storage", experiment=experiment)
        functions = Functions(
            self,
            "Functions",
            experiment=experiment,
            steps=workflow.steps(ARCHITECTURE),
            layers=Layers(self, "Layers", experiment=experiment, folder=layers),
            around=Surroundings(network=network, storage=storage),
        )
        machines = StepFunctions(
            self,
            "Machines",
            experiment=experiment,
            definitions=asl.definitions(ARCHITECTURE, experiment, minibatches=minibatches),
            functions=functions.by_step,
        )
        environment, may = surroundings(experiment, storage=storage, broker=broker, machines=machines)
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
        publish_facts(
            self,
            experiment,
            storage=storage,
            functions=functions,
            machines=machines,
            fleet=fleet,
            minibatches=minibatches,
        )


STACK = P2PServerlessStack
