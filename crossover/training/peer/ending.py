"""The end of a run of peers: each says that it has done its part, waits for the others, and clears away."""

from contextlib import suppress
from typing import TYPE_CHECKING

from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import Refused
from crossover.runtime.pauses import Due, Pauses
from crossover.training import agreement
from crossover.training.fleet import Membership
from crossover.training.peer.replica import Replica

if TYPE_CHECKING:
    from crossover.training.peer.exchange import PeerExchange


def leave(ctx: Context, member: Membership, exchange: "PeerExchange") -> None:
    """Returns once nobody needs this peer any more. Clearing away is repeatable: several peers may do it side by side."""
    objects, keys = ctx.objects, ctx.keys
    member.confirm()
    objects.put_new(keys.left(member.rank), b"")
    if not objects.exists(keys.over):
        _await_others(ctx, member, exchange)
    if objects.exists(keys.finished):
        return
    if not objects.exists(keys.outcome):
        _conclude_for(ctx, member.rank)
    objects.put_new(keys.over, b"")
    exchange.close()
    for prefix in (keys.bodies, keys.computing, keys.checkpoints):
        objects.delete_prefix(prefix)
    objects.put_new(keys.finished, b"")


def _await_others(ctx: Context, member: Membership, exchange: "PeerExchange") -> None:
    """Until all have left; asynchronous peers do not wait for one that is gone for good."""
    objects, keys, settings = ctx.objects, ctx.keys, member.settings
    pause, ask = Pauses(0.05, settings.look_s), Due(settings.look_s, settings.look_s)
    while not objects.exists(keys.finished):
        here = [rank for rank in range(member.members) if not objects.exists(keys.left(rank))]
        if ask():
            with suppress(Refused):  # another is clearing away already
                exchange.keep()
            if exchange.replicas_agree:
                member.question(here, what="waited at the end for word")
            else:
                here = [rank for rank in here if not member.absent(rank)]
        if not here:
            return
        pause(calm_s=ask.left_s)


def _conclude_for(ctx: Context, rank: int) -> None:
    """The peer whose model was to be the result is gone: this one's takes its place, with its own figures.

    Several peers may do it side by side, each with its own model: the first outcome says whose is the result.
    """
    Replica(ctx, rank).restore()  # this program may not have trained it, only taken the rank over
    agreed = agreement.last(ctx)
    result = agreement.evaluate(ctx)
    agreed |= {"val_loss": result.loss, "val_metric": result.metric}
    agreement.conclude(ctx, agreed, Vector(VectorKind.MODEL, ctx.learner.model))
