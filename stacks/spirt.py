"""SPIRT: every worker has its own database host, which averages its gradients and updates its model; a queue joins the peers."""

from pathlib import Path
from typing import Any

from aws_cdk import Stack
from constructs import Construct

from cdk.broker import Broker
from cdk.facts import publish_facts
from cdk.functions import Functions, Surroundings
from cdk.guards import Budget
from cdk.layers import Layers
from cdk.network import Network
from cdk.redis_hosts import RedisHosts
from cdk.step_functions import StepFunctions
from cdk.storage import Storage
from crossover import asl, workflow
from crossover.experiment import Experiment
from functions.spirt import ARCHITECTURE


class SpirtStack(Stack):
    """Functions, state machines, one Redis host per worker and the bucket of one experiment."""

    def __init__(
        self, scope: Construct, id: str, *, experiment: Experiment, layers: Path, minibatches: int | None, **stack: Any
    ) -> None:
        super().__init__(scope, id, **stack)
        network, broker = Network(self, experiment.project), Broker(self, experiment.project)
        storage = Storage(self, "Storage", experiment=experiment)
        hosts = RedisHosts(
            self,
            "Redis",
            experiment=experiment,
            network=network,
            storage=storage,
            count=experiment.workers,
            built=layers,
        )
        functions = Functions(
            self,
            "Functions",
            experiment=experiment,
            steps=workflow.steps(ARCHITECTURE),
            layers=Layers(self, "Layers", experiment=experiment, folder=layers),
            around=Surroundings(network=network, storage=storage, hosts=hosts, broker=broker),
        )
        machines = StepFunctions(
            self,
            "Machines",
            experiment=experiment,
            definitions=asl.definitions(ARCHITECTURE, experiment, minibatches=minibatches),
            functions=functions.by_step,
        )
        Budget(self, "Budget", experiment=experiment)
        publish_facts(
            self,
            experiment,
            storage=storage,
            hosts=hosts,
            functions=functions,
            machines=machines,
            minibatches=minibatches,
        )


STACK = SpirtStack
