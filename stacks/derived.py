"""The stack of an architecture without a file of its own here. It is derived from the architecture's tree."""

from constructs import Construct

from cdk.constructs import (
    Broker,
    Buckets,
    Budget,
    ExperimentStack,
    LambdaFunctions,
    Layers,
    Props,
    RedisHosts,
    SharedNetwork,
    StateMachines,
)
from crossover.workflow.architecture import architecture_of
from crossover.workflow.infrastructure import database_hosts


class DerivedStack(ExperimentStack):
    """The stack of an architecture that is a tree of steps: the database hosts that it needs; access to the project's broker, if a step
    sends messages; functions and state machines.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, the database hosts that the architecture needs, functions, state machines and budget, and publish their values as
        SSM parameters for the runner. Raises ConfigError as `Buckets` and `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        architecture, broker = architecture_of(experiment), Broker(self, experiment.project)
        databases = None
        if hosts := database_hosts(experiment, architecture):
            databases = RedisHosts(
                self,
                "Redis",
                settings=experiment.database,
                count=hosts,
                network=network,
                storage=storage,
                built=props.built,
            )
        functions = LambdaFunctions(
            self,
            "Functions",
            architecture=architecture,
            settings=experiment.functions,
            computing=self.computing_steps,
            identity=self.identity,
            user_code=self.user_code,
            user_steps=experiment.outside,
            layers=Layers(self, "Layers", packaging=experiment.functions.packaging, folder=props.built),
            network=network,
            storage=storage,
            databases=databases,
            broker=broker,
        )
        machines = StateMachines(self, "Machines", machines=self.state_machines, functions=functions)
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )
        self.publish(storage.facts | (databases.facts if databases else {}) | functions.facts | machines.facts)


STACK = DerivedStack
