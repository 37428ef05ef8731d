"""One worker: a function outside any network, or an instance; both with a bucket."""

from constructs import Construct

from cdk.constructs import (
    Buckets,
    Budget,
    ExperimentStack,
    LambdaFunctions,
    Layers,
    ProgramFleet,
    Props,
    SharedNetwork,
    StateMachines,
)
from peers.single import ARCHITECTURE, PROGRAM


class SingleStack(ExperimentStack):
    """The stack of a single worker, by `single.on`: a fleet of one instance, or functions and the state machine that invokes them again
    before Lambda's time limit.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, fleet or functions with state machines, and budget, and publish their values as SSM parameters for the runner.
        Raises ConfigError as `Buckets` and `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        if ARCHITECTURE.resolve_form(experiment).program:
            fleet = ProgramFleet(
                self,
                "Peers",
                module=PROGRAM.module,
                instances=PROGRAM.instances(experiment),
                lifetime=experiment.lifetime,
                identity=self.identity,
                user_code=self.user_code,
                network=network,
                storage=storage,
            )
            self.publish(storage.facts | fleet.facts)
        else:
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
            )
            machines = StateMachines(self, "Machines", machines=self.state_machines, functions=functions)
            self.publish(storage.facts | functions.facts | machines.facts)
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )


STACK = SingleStack
