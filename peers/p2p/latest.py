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
    """Asynchronous exchange by mailboxes on the broker: each peer sends its gradient, then averages it with the latest ones of the others
    that are there, and waits only until there are `p2p.min_gradients` including its own. A checkpoint follows every round.
    """

    every = 1
    replicas_agree = False

    def __init__(self, ctx: Context, member: Membership) -> None:
        """Name the mailboxes of all peers; `open` creates them."""
        self._ctx, self._member, self._post, self._p2p = ctx, member, Post(ctx, member), ctx.experiment.p2p
        self._others = [peer for peer in range(member.members) if peer != member.rank]
        self._mailboxes = [ctx.keys.mailbox(peer) for peer in range(member.members)]
        self._product = torch.empty(0)

    def open(self, replica: Replica) -> None:
        """Create the mailboxes of all peers that do not exist yet, and remember `replica`, in which the averaged gradients are listed.
        Raises StaleAttempt if the run is over. Returns None: nothing is sent again.
        """
        self._replica = replica
        self._member.confirm()  # the run may be over, and its mailboxes deleted for good
        self._ctx.bus.declare(mailboxes=self._mailboxes)
        progress.roll_back_if_over(self._ctx, self.close)

    def send(self, own: Contribution, round: int, *, exchange: int = 0) -> None:
        """Replace the message in this peer's mailbox by `own`, its gradient of `round`, and delete the stored body of the message of three
        rounds ago. `exchange` is not used. Raises what `Post.send` raises.
        """
        keys = self._ctx.keys
        self._post.send(own, round=round, keys=keys, mailbox=keys.mailbox(self._member.rank))
        if round >= _KEPT_ROUNDS:
            self._ctx.objects.delete(self._ctx.keys.body(round - _KEPT_ROUNDS, self._member.rank))

    def receive(self, own: Contribution, round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """Write the weighted mean of `own` and the other peers' latest gradients into `out`, waiting until enough are there. `exchange` is
        not used.

        The values after the parameters (the minibatch statistics) are copied from `own`: those of others describe other models. Messages
        that are damaged, too old or, without `p2p.reuse`, already used are left out. Raises StaleAttempt if this rank was taken over while
        it waits.
        """
        weight = float(worker_weights(self._ctx.facts, round)[self._member.rank])
        torch.mul(own.values, weight, out=out)
        total, applied = weight, dict[int, int]()
        for message, other in self._receive_available(own, round, applied):
            weight = message.samples * self._weigh_staleness(round - message.round)
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
        """Send this peer's latest message again if it was lost, or overwritten by an older one. Raises what `Post.keep` raises."""
        self._post.keep()

    def close(self) -> None:
        """Delete the mailboxes of all peers."""
        self._ctx.bus.remove(mailboxes=self._mailboxes)

    def _weigh_staleness(self, staleness: int) -> float:
        """Return the weight of one sample of a gradient that is `staleness` rounds old: always 1, or with `p2p.staleness_weights: inverse`
        1 / (1 + staleness).
        """
        return 1.0 / (1 + max(0, staleness)) if self._p2p.staleness_weights == "inverse" else 1.0

    def _receive_available(
        self, own: Contribution, round: int, applied: dict[int, int]
    ) -> "Iterator[tuple[Message, Tensor]]":
        """Yield (message, decoded gradient) of other peers as they come in, until there are `p2p.min_gradients`, or no more can come. Use
        each gradient before the next is requested, which may overwrite it.

        `applied`: by peer, the round of the gradient that the caller has already averaged; the caller updates it. If the broker has lost
        the mailboxes, they are opened again, unless the run is being cleared away. Raises StaleAttempt if this rank was taken over.
        """
        look_s, reachable = self._member.settings.look_s, set(self._others)
        pause, ask = Pauses(0.005, 0.5), PeriodicTimer(look_s, 5 * look_s)
        while True:
            for peer in self._others:
                if peer not in applied and (found := self._read_usable(peer, own, round)):
                    yield found
            met = applied.keys() | self._list_peers_ahead(round)
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

    def _read_usable(self, peer: int, own: Contribution, round: int) -> "tuple[Message, Tensor] | None":
        """Return (message, decoded gradient) of `peer` if its latest message is new, recent enough and of this model; else None. New is a
        round above the last one that was used, or, if `p2p.reuse` is set, that round too; recent enough is at most `p2p.staleness_limit`
        rounds before `round`. The message is not recorded as used here.

        The next call may overwrite the gradient. A message that is damaged or does not match is noted in the record as `refused_<peer>`;
        one whose body is deleted is not. `own`: this peer's gradient of `round`, which fixes size and codec.
        """
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

    def _list_peers_ahead(self, round: int) -> set[int]:
        """Return the peers from which a gradient of `round` or later has already been averaged in an earlier round.

        They count as present: waiting for more from them could last for ever, because they may be waiting for this peer.
        """
        seen = self._replica.facts.get("seen", {})
        return {peer for peer in self._others if seen.get(str(peer), -1) >= round}

    def _is_gone(self, peer: int) -> bool:
        """Return whether `peer` has finished, failed, or sent no heartbeat for too long. Silence is counted from this program's first look
        at the peer, so only repeated calls find a silent one.
        """
        return self._ctx.objects.exists(self._ctx.keys.leaving_marker(peer)) or self._member.is_absent(peer)

    def _remember(self, round: int, applied: dict[int, int]) -> None:
        """Store in the replica which gradients were averaged in `round`, and note them with their staleness for the record. `applied`: the
        round of each averaged gradient, by peer.
        """
        facts = self._replica.facts
        facts["seen"] = {**facts.get("seen", {}), **{str(peer): version for peer, version in applied.items()}}
        listed = [*self._ctx.notes.get("applied", []), [round, sorted(applied.items())]]
        staleness = [max(0, round - version) for _, each in listed for _, version in each]
        self._ctx.note(gradients=len(staleness), staleness=sum(staleness) / max(1, len(staleness)))
        self._ctx.notes |= {"applied": listed, "max_staleness": max(staleness, default=0)}
