"""MLLess: long functions and a supervisor that meet in one shared Redis host; an exchange on the broker announces updates."""

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
from functions.mlless import ARCHITECTURE


class MLLessStack(ExperimentStack):
    """The stack of MLLess: one database host for the updates that workers publish; access to the project's broker for announcements; a
    function for each step; and the state machines that run workers and supervisor side by side, and invoke them again after Lambda's time
    limit.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, one database host, functions, state machines and budget, and publish their values as SSM parameters for the
        runner. Raises ConfigError as `Buckets` and `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        broker = Broker(self, experiment.project)
        databases = RedisHosts(
            self, "Redis", settings=experiment.database, count=1, network=network, storage=storage, built=props.built
        )
        functions = LambdaFunctions(
            self,
            "Functions",
            architecture=ARCHITECTURE,
            settings=experiment.functions,
            computing=self.computing_steps,
            identity=self.identity,
            user_code=self.user_code,
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
        self.publish(storage.facts | databases.facts | functions.facts | machines.facts)


STACK = MLLessStack
