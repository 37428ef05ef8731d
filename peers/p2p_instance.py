"""P2P without Lambda: every peer is an EC2 instance that computes its batches itself, one after another."""

from crossover import runtime
from crossover.training.fleet import Membership, ServingSettings, serve
from crossover.workflow.architecture import EXCHANGES, Architecture, Program
from crossover.workflow.context import Context, Resources, process_resources
from peers.p2p.checks import checks
from peers.p2p.instances import instances


def main(resources: Resources | None = None, settings: ServingSettings | None = None) -> None:
    """Run the program of one EC2 instance: serve the fleet's runs. `resources`, `settings`: those of this process and of its environment if
    None.
    """
    serve(resources or process_resources(), settings or ServingSettings.from_environment(runtime.environment()), peer)


def peer(ctx: Context, member: Membership) -> None:
    """Train the peer that holds a rank of the run, from its newest checkpoint to the end. Its minibatches are computed in this process."""
    from crossover.training import peer as algorithm  # torch
    from crossover.training.peer import OnInstance
    from peers.p2p import exchanges

    algorithm.train(
        ctx,
        member,
        computing=OnInstance(ctx),
        exchange=exchanges.exchange_for_mode(ctx, member),
        step=PROGRAM.step,
        instance_type=ctx.experiment.p2p.instance_type,
    )


PROGRAM = Program(main, instances, uses_bus=True)
ARCHITECTURE = Architecture(
    "p2p_instance",
    program=PROGRAM,
    simulation="programs",
    sync_every="epoch",
    exchanges=EXCHANGES,
    checks=checks,
    claims={"equals_reference", "survives_kills", "resumes", "stops"},
)
