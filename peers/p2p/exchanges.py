"""The choice of a peer-to-peer experiment's exchange."""

from crossover.training.fleet import Membership
from crossover.training.peer import PeerExchange
from crossover.workflow.context import Context
from peers.p2p.latest import LatestMailboxes
from peers.p2p.mailboxes import SynchronousMailboxes


def exchange_for_mode(ctx: Context, member: Membership) -> PeerExchange:
    """Return the exchange that `p2p.mode` names: with a barrier of all peers if synchronous, otherwise with the latest gradients that are
    there.
    """
    if ctx.experiment.p2p.mode == "asynchronous":
        return LatestMailboxes(ctx, member)
    return SynchronousMailboxes(ctx, member)
