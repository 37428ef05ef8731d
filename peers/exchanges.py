"""Which exchange an experiment asks for."""

from crossover.context import Context
from crossover.programs import Membership
from peers.latest import LatestMailboxes
from peers.mailboxes import SynchronousMailboxes
from peers.p2p import Exchange


def by_mode(ctx: Context, member: Membership) -> Exchange:
    """`p2p.mode`: with a barrier, or with whatever gradients are there."""
    if ctx.experiment.p2p.mode == "asynchronous":
        return LatestMailboxes(ctx, member)
    return SynchronousMailboxes(ctx, member)
