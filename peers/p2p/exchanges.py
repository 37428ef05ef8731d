"""The choice of a peer-to-peer experiment's exchange."""

from crossover.training.fleet import Membership
from crossover.training.peer import PeerExchange
from crossover.workflow.context import Context
from peers.p2p.latest import LatestMailboxes
from peers.p2p.mailboxes import SynchronousMailboxes


def exchange_for_mode(ctx: Context, member: Membership) -> PeerExchange:
    """Return the exchange for `p2p.mode`: with a barrier, or with whatever gradients are there."""
    if ctx.experiment.p2p.mode == "asynchronous":
        return LatestMailboxes(ctx, member)
    return SynchronousMailboxes(ctx, member)
