"""Which exchange an experiment asks for."""

from crossover.context import Context
from crossover.training.fleet import Membership
from crossover.training.peer.exchange import PeerExchange
from peers.p2p.latest import LatestMailboxes
from peers.p2p.mailboxes import SynchronousMailboxes


def by_mode(ctx: Context, member: Membership) -> PeerExchange:
    """`p2p.mode`: with a barrier, or with whatever gradients are there."""
    if ctx.experiment.p2p.mode == "asynchronous":
        return LatestMailboxes(ctx, member)
    return SynchronousMailboxes(ctx, member)
