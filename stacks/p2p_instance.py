"""P2P without Lambda: one EC2 instance per peer; their mailboxes on the broker."""

from constructs import Construct

from cdk.constructs import Broker, Buckets, Budget, ExperimentStack, ProgramFleet, Props, SharedNetwork
from peers.p2p_instance import PROGRAM


class P2PInstanceStack(ExperimentStack):
    """The stack of P2P without Lambda: a fleet of peers with access to the project's broker, on which each has its mailboxes. There are no
    functions or state machines, because peers are programs that coordinate among themselves.
    """

    def __init__(self, scope: Construct, props: Props) -> None:
        """Build buckets, fleet and budget, and publish their values as SSM parameters for the runner. Raises ConfigError as `Buckets` and
        `Budget` do.
        """
        super().__init__(scope, props)
        experiment, network = props.experiment, SharedNetwork(self, props.experiment.project)
        storage = Buckets(
            self, "Storage", bucket_per_worker=experiment.storage.bucket_per_worker, workers=experiment.workers
        )
        broker = Broker(self, experiment.project)
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
            uses=[broker],
        )
        Budget(
            self, "Budget", limit_usd=experiment.lifetime.budget_usd, owner=experiment.owner, experiment=experiment.name
        )
        self.publish(storage.facts | fleet.facts)


STACK = P2PInstanceStack
