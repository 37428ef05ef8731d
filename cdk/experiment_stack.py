"""The stack of an architecture, read off its tree: what is declared there need not be said again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from constructs import Construct

from cdk.broker import Broker
from cdk.facts import publish_facts
from cdk.fleets import Fleet, machines_of, surroundings
from cdk.functions import Functions, Surroundings
from cdk.guards import Budget
from cdk.layers import Layers
from cdk.names import resource_name
from cdk.network import Network
from cdk.redis_hosts import RedisHosts
from cdk.step_functions import StepFunctions
from cdk.storage import Storage
from crossover import asl
from crossover.architecture import Architecture, steps
from crossover.architecture.infrastructure import database_hosts, talks
from crossover.experiment import Experiment


class ExperimentStack(Stack):
    """The bucket and the budget of one experiment; the functions of the tree's steps and their state machines; the database hosts and the
    broker that they declare; the instances of those whose workers are programs.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        architecture: Architecture,
        experiment: Experiment,
        layers: Path,
        minibatches: int | None,
        **stack: Any,
    ) -> None:
        super().__init__(scope, id, **stack)
        architecture = architecture.asked_by(experiment)
        network, storage = Network(self, experiment.project), Storage(self, "Storage", experiment=experiment)
        broker = Broker(self, experiment.project) if talks(architecture) else None
        hosts = functions = machines = fleet = None
        if count := database_hosts(experiment, architecture):
            hosts = RedisHosts(
                self, "Redis", experiment=experiment, network=network, storage=storage, count=count, built=layers
            )
        if own := steps(architecture):
            started = {name: resource_name(experiment, name) for name in architecture.machines}
            functions = Functions(
                self,
                "Functions",
                experiment=experiment,
                steps=own,
                layers=Layers(self, "Layers", experiment=experiment, folder=layers),
                around=Surroundings(network=network, storage=storage, hosts=hosts, broker=broker, machines=started),
            )
            machines = StepFunctions(
                self,
                "Machines",
                experiment=experiment,
                definitions=asl.definitions(architecture, experiment, minibatches=minibatches),
                functions=functions.by_step,
            )
        if architecture.program:
            environment, may = surroundings(experiment, storage=storage, broker=broker, machines=machines)
            fleet = Fleet(
                self,
                "Peers",
                experiment=experiment,
                network=network,
                machines=machines_of(self, architecture.program.instances(experiment)),
                module=architecture.program.module,
                environment=environment,
                may=may,
            )
        Budget(self, "Budget", experiment=experiment)
        publish_facts(
            self,
            experiment,
            storage=storage,
            hosts=hosts,
            functions=functions,
            machines=machines,
            fleet=fleet,
            minibatches=minibatches if functions else None,
        )


def functions_stack(architecture: Architecture) -> Callable[..., Stack]:
    """A STACK for `stacks/<name>.py`; an architecture without such a file gets the same."""
    return partial(ExperimentStack, architecture=architecture)
