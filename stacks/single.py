"""One worker: a function outside any network, or an instance; both beside a bucket."""

from constructs import Construct

from cdk.constructs import Budget, ExperimentStack, Fleet, Functions, Layers, Network, Props, StepFunctions, Storage
from peers.single import ARCHITECTURE, PROGRAM


class SingleStack(ExperimentStack):
    """As `single.on` says: a fleet of one, or functions and the state machine that restarts them before Lambda ends them."""

    def __init__(self, scope: Construct, props: Props) -> None:
        super().__init__(scope, props)
        experiment, network = props.experiment, Network(self, props.experiment.project)
        storage = Storage(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        if ARCHITECTURE.asked_by(experiment).program:
            fleet = Fleet(
                self,
                "Peers",
                program=PROGRAM,
                experiment=experiment,
                network=network,
                storage=storage,
            )
            self.publish(storage.facts | fleet.facts)
        else:
            functions = Functions(
                self,
                "Functions",
                architecture=ARCHITECTURE,
                experiment=experiment,
                layers=Layers(self, "Layers", packaging=experiment.functions.packaging, folder=props.built),
                network=network,
                storage=storage,
            )
            machines = StepFunctions(
                self, "Machines", architecture=ARCHITECTURE, experiment=experiment, functions=functions
            )
            self.publish(storage.facts | functions.facts | machines.facts)
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )


STACK = SingleStack
