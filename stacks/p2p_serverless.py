"""P2P with Lambda: a small EC2 instance per peer, whose state machines compute its batches side by side in functions."""

from constructs import Construct

from cdk.constructs import (
    Broker,
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
from peers.p2p_serverless import ARCHITECTURE, PROGRAM


class P2PServerlessStack(ExperimentStack):
    """The stack of P2P with Lambda: a fleet of peers with access to the project's broker, on which each has its mailboxes; the state
    machines that peers start; and the functions that these invoke, which use only the bucket and so stay outside the network.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, functions, state machines, fleet and budget, and publish their values as SSM parameters for the runner. Network
        and broker are the project's. Raises ConfigError as `Buckets` and `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        broker = Broker(self, experiment.project)
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
            uses=[broker, machines],
        )
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )
        self.publish(storage.facts | functions.facts | machines.facts | fleet.facts)


STACK = P2PServerlessStack
