"""AllReduce of LambdaML: long functions that exchange through one shared Redis host, or through the bucket alone if the YAML says so."""

from constructs import Construct

from cdk.constructs import (
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
from functions.all_reduce import ARCHITECTURE


class AllReduceStack(ExperimentStack):
    """The stack of AllReduce: one database host for all workers, functions and state machines. If the workers exchange through the bucket,
    there is no host, and nothing is inside the network.
    """

    architecture = ARCHITECTURE

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, database host (if vectors go through Redis), functions, state machines and budget, and publish their values as SSM
        parameters for the runner. Raises ConfigError as `Buckets` and `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        databases = None
        if experiment.storage.channel == "redis":
            databases = RedisHosts(
                self,
                "Redis",
                settings=experiment.database,
                count=1,
                network=network,
                storage=storage,
                built=props.built,
            )
        functions = LambdaFunctions(
            self,
            "Functions",
            architecture=self.architecture,
            settings=experiment.functions,
            computing=self.computing_steps,
            identity=self.identity,
            user_code=self.user_code,
            layers=Layers(self, "Layers", packaging=experiment.functions.packaging, folder=props.built),
            network=network,
            storage=storage,
            databases=databases,
        )
        machines = StateMachines(self, "Machines", machines=self.state_machines, functions=functions)
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )
        self.publish(storage.facts | (databases.facts if databases else {}) | functions.facts | machines.facts)


STACK = AllReduceStack
