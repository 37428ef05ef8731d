"""RabbitMQ between asynchronous peers: each averages its gradient with the latest ones that it finds, and continues.

A (peer, round) counts once per reader unless `p2p.reuse` is set, a peer's rounds never fall, and one that is more than
`p2p.staleness_limit` rounds behind is left out. The list of averaged gradients is part of the checkpoint, which is created before anything
that depends on it is sent: if two attempts of a peer choose differently, the checkpoint that was created first counts for both.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from crossover.algorithms.contributions import Contribution
from crossover.errors import Corrupt, Missing, Refused
from crossover.runtime import Pauses, PeriodicTimer
from crossover.training import progress
from crossover.training.fleet import Membership
from crossover.training.peer import Replica
from crossover.training.progress import worker_weights
from crossover.workflow.context import Context
from peers.p2p.mailboxes import Post
from peers.p2p.messages import Message

if TYPE_CHECKING:
    from torch import Tensor

_KEPT_ROUNDS = 3  # bodies in the object store: a reader may still use the key of an older message


class LatestMailboxes:
    """Asynchronous exchange: send, then average what is there, at least `p2p.min_gradients` including the own one."""

    every = 1
    replicas_agree = False

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member, self._post, self._p2p = ctx, member, Post(ctx, member), ctx.experiment.p2p
        self._others = [peer for peer in range(member.members) if peer != member.rank]
        self._mailboxes = [ctx.keys.mailbox(peer) for peer in range(member.members)]
        self._product = torch.empty(0)

    def open(self, replica: Replica) -> None:
        """Declare all mailboxes. Raises StaleAttempt if the run is over."""
        self._replica = replica
        self._member.confirm()  # the run may be over, and its mailboxes deleted for good
        self._ctx.bus.declare(mailboxes=self._mailboxes)
        progress.roll_back_if_over(self._ctx, self.close)

    def send(self, own: Contribution, round: int, *, exchange: int = 0) -> None:
        """Replace the message in the own mailbox by `own`, the gradient of `round`, and delete the body of an old one.

        `exchange` is not used.
        """
        keys = self._ctx.keys
        self._post.send(own, round=round, keys=keys, mailbox=keys.mailbox(self._member.rank))
        if round >= _KEPT_ROUNDS:
            self._ctx.objects.delete(self._ctx.keys.body(round - _KEPT_ROUNDS, self._member.rank))

    def receive(self, own: Contribution, round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """Write the weighted mean of `own` and the gradients that are available at `round` into `out`. `exchange` is not used.

        The minibatch statistics behind the gradients are not averaged: the others' describe activations of other
        models.
        """
        weight = float(worker_weights(self._ctx.facts, round)[self._member.rank])
        torch.mul(own.values, weight, out=out)
        total, applied = weight, dict[int, int]()
        for message, other in self._available(own, round, applied):
            weight = message.samples * self._trust(round - message.round)
            if self._product.numel() != out.numel():
                self._product = torch.empty_like(out)
            out.add_(torch.mul(other, weight, out=self._product))
            total += weight
            applied[message.peer] = message.round
        out.div_(total) if total else out.copy_(own.values)
        parameters = self._ctx.facts.parameters
        out[parameters:] = own.values[parameters:]
        self._remember(round, applied)

    def keep(self) -> None:
        """Send the own message again if it was lost. Readers skip a stale message, and wait for the later one that it has overwritten."""
        self._post.keep()

    def close(self) -> None:
        """Delete all mailboxes."""
        self._ctx.bus.remove(mailboxes=self._mailboxes)

    def _trust(self, staleness: int) -> float:
        """Return the weight of a sample that is `staleness` rounds old: 1 as in the paper, or the inverse of 1 plus its age."""
        return 1.0 / (1 + max(0, staleness)) if self._p2p.staleness_weights == "inverse" else 1.0

    def _available(self, own: Contribution, round: int, applied: dict[int, int]) -> "Iterator[tuple[Message, Tensor]]":
        """Yield the others' messages and gradients as they come in, until there are enough.

        `applied`: the round of each peer's gradient that the caller has averaged.
        """
        look_s, reachable = self._member.settings.look_s, set(self._others)
        pause, ask = Pauses(0.005, 0.5), PeriodicTimer(look_s, 5 * look_s)
        while True:
            for peer in self._others:
                if peer not in applied and (found := self._usable(peer, own, round)):
                    yield found
            met = applied.keys() | self._ahead(round)
            if 1 + len(met) >= min(self._p2p.min_gradients, 1 + len(met | reachable)):
                return
            if ask():
                self._member.confirm()
                try:
                    self.keep()
                except Refused:  # the broker has lost the mailboxes, unless the others do not count on this one, and are clearing away
                    if not self._ctx.objects.exists(self._ctx.keys.clearing_marker):
                        self.open(self._replica)
                reachable = {peer for peer in self._others if not self._is_gone(peer)}
            pause(calm_s=ask.left_s)

    def _usable(self, peer: int, own: Contribution, round: int) -> "tuple[Message, Tensor] | None":
        """Return the peer's latest message and gradient if it is new, recent enough and of this model; else None."""
        try:
            message = self._post.read(self._ctx.keys.mailbox(peer), peer=peer)
            if message is None or round - message.round > self._p2p.staleness_limit:
                return None
            seen = self._replica.facts.get("seen", {}).get(str(peer), -1)
            if message.round < seen or (message.round == seen and not self._p2p.reuse):
                return None
            return message, self._post.contribution(message, own=own)
        except Missing:
            return None  # its body was deleted meanwhile: a later one exists
        except (Corrupt, Refused) as error:  # that peer's problem: the others continue without it
            self._ctx.note(**{f"refused_{peer}": str(error)})
            return None

    def _ahead(self, round: int) -> set[int]:
        """Return the peers whose gradient of this round, or of a later one, was averaged in an earlier round here.

        Waiting for more of them could last for ever: they may be waiting for this peer.
        """
        seen = self._replica.facts.get("seen", {})
        return {peer for peer in self._others if seen.get(str(peer), -1) >= round}

    def _is_gone(self, peer: int) -> bool:
        """Return whether `peer` has left, failed, or been silent for too long."""
        return self._ctx.objects.exists(self._ctx.keys.leaving_marker(peer)) or self._member.is_absent(peer)

    def _remember(self, round: int, applied: dict[int, int]) -> None:
        """Store in the replica's facts which gradients were averaged, and note them with their staleness for the record."""
        facts = self._replica.facts
        facts["seen"] = {**facts.get("seen", {}), **{str(peer): version for peer, version in applied.items()}}
        listed = [*self._ctx.notes.get("applied", []), [round, sorted(applied.items())]]
        staleness = [max(0, round - version) for _, each in listed for _, version in each]
        self._ctx.note(gradients=len(staleness), staleness=sum(staleness) / max(1, len(staleness)))
        self._ctx.notes |= {"applied": listed, "max_staleness": max(staleness, default=0)}
