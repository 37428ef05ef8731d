"""RabbitMQ between asynchronous peers: each averages its gradient with the latest ones that it finds, and goes on.

A (peer, round) counts once per reader unless `p2p.reuse`, a peer's rounds never fall, and one that is more than `p2p.staleness_limit`
rounds behind is left out. What was averaged is part of the checkpoint, which is created before anything that depends on it is shown: should
two attempts of a peer choose differently, the checkpoint that was created first holds for both.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from crossover.algorithms.contributions import Contribution
from crossover.context import Context
from crossover.errors import Corrupt, Missing, Refused
from crossover.runtime.pauses import Due, Pauses
from crossover.training import attempts
from crossover.training.calendar import round_samples
from crossover.training.fleet import Membership
from crossover.training.peer.replica import Replica
from peers.p2p.mailboxes import Post
from peers.p2p.messages import Message

if TYPE_CHECKING:
    from torch import Tensor

_KEPT_ROUNDS = 3  # bodies in the object store: a reader may have the key of an older message in hand


class LatestMailboxes:
    """Send, then take what is there: at least `p2p.min_gradients`, the own one included."""

    every = 1
    replicas_agree = False

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member, self._post, self._p2p = ctx, member, Post(ctx, member), ctx.experiment.p2p
        self._others = [peer for peer in range(member.members) if peer != member.rank]
        self._mailboxes = [ctx.keys.mailbox(peer) for peer in range(member.members)]
        self._product = torch.empty(0)

    def open(self, replica: Replica) -> None:
        self._replica = replica
        self._member.confirm()  # the run may be over, and its mailboxes gone for good
        self._ctx.bus.declare(mailboxes=self._mailboxes)
        attempts.settle(self._ctx, self.close)

    def send(self, own: Contribution, round: int, *, exchange: int = 0) -> None:
        keys = self._ctx.keys
        self._post.send(own, round=round, keys=keys, mailbox=keys.mailbox(self._member.rank))
        if round >= _KEPT_ROUNDS:
            self._ctx.objects.delete(self._ctx.keys.body(round - _KEPT_ROUNDS, self._member.rank))

    def receive(self, own: Contribution, round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """The minibatch statistics behind the gradients are not averaged: the others' describe activations of other models."""
        weight = float(round_samples(self._ctx.facts, round)[self._member.rank])
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
        """Readers pass a stale message by, and wait for the later one that it was put over."""
        self._post.keep()

    def close(self) -> None:
        self._ctx.bus.remove(mailboxes=self._mailboxes)

    def _trust(self, staleness: int) -> float:
        """The weight of a sample that is `staleness` rounds old: 1 in the paper, or its inverse."""
        return 1.0 / (1 + max(0, staleness)) if self._p2p.staleness_weights == "inverse" else 1.0

    def _available(self, own: Contribution, round: int, applied: dict[int, int]) -> "Iterator[tuple[Message, Tensor]]":
        """The others' gradients as they come in, until enough are held."""
        look_s, reachable = self._member.settings.look_s, set(self._others)
        pause, ask = Pauses(0.005, 0.5), Due(look_s, 5 * look_s)
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
                    if not self._ctx.objects.exists(self._ctx.keys.over):
                        self.open(self._replica)
                reachable = {peer for peer in self._others if not self._is_gone(peer)}
            pause(calm_s=ask.left_s)

    def _usable(self, peer: int, own: Contribution, round: int) -> "tuple[Message, Tensor] | None":
        """The peer's latest gradient, if it is new, fresh enough and of this model."""
        try:
            message = self._post.read(self._ctx.keys.mailbox(peer), peer=peer)
            if message is None or round - message.round > self._p2p.staleness_limit:
                return None
            seen = self._replica.facts.get("seen", {}).get(str(peer), -1)
            if message.round < seen or (message.round == seen and not self._p2p.reuse):
                return None
            return message, self._post.contribution(message, own=own)
        except Missing:
            return None  # its body went while we looked: a later one is there
        except (Corrupt, Refused) as error:  # that peer's affair: the others go on without it
            self._ctx.note(**{f"refused_{peer}": str(error)})
            return None

    def _ahead(self, round: int) -> set[int]:
        """Peers whose gradient of this round, or of a later one, was averaged in an earlier round here.

        Waiting for more of them would be for ever: they may be waiting for this peer.
        """
        seen = self._replica.facts.get("seen", {})
        return {peer for peer in self._others if seen.get(str(peer), -1) >= round}

    def _is_gone(self, peer: int) -> bool:
        return self._ctx.objects.exists(self._ctx.keys.left(peer)) or self._member.absent(peer)

    def _remember(self, round: int, applied: dict[int, int]) -> None:
        facts = self._replica.facts
        facts["seen"] = {**facts.get("seen", {}), **{str(peer): version for peer, version in applied.items()}}
        listed = [*self._ctx.notes.get("applied", []), [round, sorted(applied.items())]]
        staleness = [max(0, round - version) for _, each in listed for _, version in each]
        self._ctx.note(gradients=len(staleness), staleness=sum(staleness) / max(1, len(staleness)))
        self._ctx.notes |= {"applied": listed, "max_staleness": max(staleness, default=0)}
