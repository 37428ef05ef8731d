"""RabbitMQ between synchronous peers: each has mailboxes with its latest gradient, and all meet at a barrier of distinct members.

All peers read a message without removing it. A peer has two mailboxes and uses them in turn, because a fast one may publish round t + 1
while a slow one still reads t; it publishes t + 2 only behind the barrier of t + 1, at which the slow one has finished t. If a round has
two exchanges, each has mailboxes and a barrier of its own: a peer that begins a round again finds what all sent in both.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from crossover.algorithms import codecs
from crossover.algorithms.contributions import Contribution
from crossover.errors import Corrupt, Missing, StaleAttempt
from crossover.runtime import Pauses, PeriodicTimer
from crossover.stores.keys import Keys
from crossover.training import progress
from crossover.training.fleet import Membership
from crossover.training.peer import ContributionMessages, Replica, combine
from crossover.training.progress import worker_weights
from crossover.workflow.context import Context
from peers.p2p import messages
from peers.p2p.messages import Message

if TYPE_CHECKING:
    from torch import Tensor


class Post:
    """One peer's sender and reader of messages in mailboxes on the broker. `send` replaces the message in a mailbox, `read` returns it, and
    `contribution` decodes it. The object remembers the newest message that it sent to each mailbox, or found there with `recall`; `keep`
    sends those again that the broker has lost.
    """

    def __init__(self, ctx: Context, member: Membership) -> None:
        """Start without remembered messages. `p2p.message_limit_mb` of the experiment is the size, in MiB, above which `send` stores a body
        in the object store. `member`: the peer that sends and reads.
        """
        self._ctx, self._member = ctx, member
        self._bodies = ContributionMessages(ctx.experiment)
        self._limit = int(ctx.experiment.p2p.message_limit_mb * 2**20)
        self._sent: dict[str, tuple[Keys, int, bytes]] = {}  # by mailbox: the exchange's keys, round, message

    def send(self, own: Contribution, *, round: int, keys: Keys, mailbox: str) -> None:
        """Replace the message in the mailbox by `own`, this peer's contribution to `round`. `keys`: of the exchange.

        If the body is larger than the message limit, it is stored in the object store, and the message holds only its key. Raises
        StaleAttempt if the run is over, or if the rank was taken over. Raises Refused if there is no such mailbox.
        """
        ctx, rank = self._ctx, self._member.rank
        samples = worker_weights(ctx.facts, round)[rank]
        parts, key = self._bodies.encode(own, samples=samples), ""
        self._member.confirm()
        if sum(memoryview(part).nbytes for part in parts) > self._limit:
            key = keys.body(round, rank)
            ctx.objects.put_new(key, parts)
            progress.roll_back_if_over(ctx, lambda: ctx.objects.delete(key))
        text = messages.encode(Message(ctx.run, rank, round, samples, key, memoryview(b"")), [] if key else parts)
        ctx.bus.replace(mailbox, text)
        self._sent[mailbox] = (keys, round, text)

    def read(self, mailbox: str, *, peer: int) -> Message | None:
        """Return the message that `mailbox` holds, without removing it, or None if it is empty. Raises Corrupt if it is no message of
        `peer` in this run. Raises Refused if there is no such mailbox.
        """
        text = self._ctx.bus.peek(mailbox)
        if text is None:
            return None
        message = messages.read(text, mailbox=mailbox)
        if (message.run, message.peer) != (self._ctx.run, peer):
            raise Corrupt(f"{mailbox}: holds a message of peer {message.peer} of run {message.run}")
        return message

    def contribution(self, message: Message, *, own: Contribution) -> "Tensor":
        """Return the decoded contribution that `message` contains, or whose key it holds. It is valid until the next call, which may reuse
        its buffer. `own`: this peer's contribution to the same exchange, which fixes size and codec.

        Raises Missing if the body is deleted, Corrupt if it does not match.
        """
        body = self._ctx.objects.get(message.key) if message.key else message.body
        what = f"peer {self._member.rank}: gradient of peer {message.peer}, round {message.round}"
        return self._bodies.decode(body, own=own, samples=message.samples, what=what)

    def recall(self, mailbox: str, *, round: int, keys: Keys) -> bool:
        """Return whether the mailbox still holds this peer's message of `round` or a later one, sent by an earlier attempt. If so, remember
        it as sent.

        `keys`: of the exchange. Raises Corrupt if the mailbox holds something else than a message.
        """
        held = self._ctx.bus.peek(mailbox)
        if held is None or (there := messages.read(held, mailbox=mailbox).round) < round:
            return False
        self._sent[mailbox] = (keys, there, held)
        return True

    def keep(self, lost: Callable[[Keys, int], None] = lambda keys, round: None) -> None:
        """Send each remembered message again whose mailbox is empty or holds an older one.

        The broker may have lost it, or an older attempt of this peer may have overwritten it. `lost`: called with the keys and round of a
        lost message before it is sent again. If this program ends in between, the next attempt still finds the mailbox empty and repeats
        both. Raises StaleAttempt if the rank was taken over, Refused if a mailbox does not exist, Corrupt if one holds something else than
        a message.
        """
        for mailbox, (keys, round, text) in self._sent.items():
            held = self._ctx.bus.peek(mailbox)
            if held is None or messages.read(held, mailbox=mailbox).round < round:
                self._member.confirm()
                if held is None:
                    lost(keys, round)
                self._ctx.bus.replace(mailbox, text)


class SynchronousMailboxes:
    """Synchronous exchange by mailboxes on the broker: each peer sends, waits at the barrier until all have sent, then reads all messages
    in rank order. A checkpoint follows every round.
    """

    every = 1  # a mailbox holds one message: a peer must be able to start again at the round the others are in
    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership) -> None:
        """Name the mailboxes and barriers of all peers and exchanges; `open` creates them."""
        self._ctx, self._member, self._post = ctx, member, Post(ctx, member)
        self._keys, members = ctx.keys.list_by_exchange(codecs.count_exchanges(ctx.experiment.exchange)), member.members
        self._mailboxes = [
            keys.mailbox(peer, parity) for keys in self._keys for peer in range(members) for parity in (0, 1)
        ]
        self._barriers = [(keys.barrier, members) for keys in self._keys]

    def open(self, replica: Replica) -> int | None:
        """Create mailboxes and barriers. Return the previous round if this peer's message of that round is lost and must be sent again,
        else None. Raises StaleAttempt if the run is over. Mailboxes and barriers that exist stay as they are.
        """
        self._member.confirm()  # the run may be over, and its mailboxes deleted for good
        self._ctx.bus.declare(mailboxes=self._mailboxes, barriers=self._barriers)
        progress.roll_back_if_over(self._ctx, self.close)
        if (before := replica.round - 1) < 0:
            return None
        held = [self._post.recall(self._mailbox(keys, before), round=before, keys=keys) for keys in self._keys]
        return None if all(held) else before

    def send(self, own: Contribution, round: int, *, exchange: int = 0) -> None:
        """Put `own`, this peer's contribution to `round`, into its mailbox, and report its arrival to the barrier.

        `exchange`: number of the exchange within the round, from 0. Raises what `Post.send` raises.
        """
        keys = self._keys[exchange]
        self._post.send(own, round=round, keys=keys, mailbox=self._mailbox(keys, round))
        self._arrive(keys, round)

    def receive(self, own: Contribution, round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """Wait until all peers have arrived at the barrier of `round`, then write the aggregate of `own` and the other peers' contributions
        into `out`. Afterwards, in the round's first exchange, delete this peer's stored message bodies of the previous round.

        `exchange`: number of the exchange within the round, from 0. Raises RunFailed if a missing peer has failed, WaitTimeout if one is
        gone, StaleAttempt if this rank was taken over or the round is over, and Corrupt or Refused if a contribution cannot be used.
        """
        self._await_all(self._keys[exchange], round)
        combine(self._ctx, self._all(own, self._keys[exchange], round), round=round, out=out)
        if round and not exchange:  # all have arrived at this round, so all have finished the one before
            self._ctx.objects.delete(*(keys.body(round - 1, self._member.rank) for keys in self._keys))

    def keep(self) -> None:
        """Send this peer's messages again if they were lost, and report the arrival again, which was lost with them."""
        self._post.keep(lost=self._arrive)  # the arrival was lost with the message

    def close(self) -> None:
        """Delete the mailboxes and barriers of all peers."""
        self._ctx.bus.remove(mailboxes=self._mailboxes, barriers=self._barriers)

    def _mailbox(self, keys: Keys, round: int) -> str:
        """Return the name of this peer's mailbox for `round`. A peer has two mailboxes, used in turn. `keys`: of the exchange."""
        return keys.mailbox(self._member.rank, round % 2)

    def _arrive(self, keys: Keys, round: int) -> None:
        """Report to the barrier that this peer has arrived at `round`."""
        self._ctx.bus.arrive(keys.barrier, round=round, member=self._member.rank)

    def _await_all(self, keys: Keys, round: int) -> None:
        """Wait until all peers have arrived at the barrier of `round` (SynchronisationBarrier), which counts distinct peers. Meanwhile
        sends again what was lost. `keys`: of the exchange.

        Raises RunFailed if a missing peer has failed, WaitTimeout if one is gone, StaleAttempt if this rank was taken over.
        """
        bus, rank, everybody = self._ctx.bus, self._member.rank, frozenset(range(self._member.members))
        pause, ask = self._make_waits()
        while True:
            missing = everybody - bus.list_arrived(keys.barrier, round=round, reader=rank)
            if not missing:
                return
            if ask():
                self.keep()
                if rank in missing:  # the broker has lost this peer's arrival, and its message was sent again since
                    self._arrive(keys, round)
                self._member.raise_if_pointless(sorted(missing), what=f"waited in round {round} for the arrival")
            pause(calm_s=ask.left_s)

    def _all(self, own: Contribution, keys: Keys, round: int) -> "Iterator[Tensor]":
        """Yield every peer's contribution to `round` in rank order, waiting for each but `own`. Raises what that wait raises. `keys`: of
        the exchange.
        """
        for peer in range(self._member.members):
            yield own.values if peer == self._member.rank else self._await_contribution(peer, own, keys, round)

    def _await_contribution(self, peer: int, own: Contribution, keys: Keys, round: int) -> "Tensor":
        """Wait for the contribution of `peer` to `round` and return it decoded; the next call may overwrite it. Raises StaleAttempt if that
        peer is in a later round, the body is deleted or this rank was taken over; Corrupt if the message does not match, RunFailed if the
        peer has failed, WaitTimeout if it is gone. `own`: this peer's contribution, which fixes size and codec; `keys`: of the exchange.
        """
        mailbox = keys.mailbox(peer, round % 2)
        pause, ask = self._make_waits()
        while True:
            message = self._post.read(mailbox, peer=peer)
            if message is not None and message.round > round:
                raise StaleAttempt(
                    f"peer {self._member.rank}: round {round} is over, peer {peer} is in {message.round}"
                )
            if message is not None and message.round == round:
                self._check(message)
                try:
                    return self._post.contribution(message, own=own)
                except Missing as gone:
                    raise StaleAttempt(f"peer {self._member.rank}: round {round} is over: {gone}") from gone
            if ask():
                self.keep()
                self._member.raise_if_pointless([peer], what=f"waited in round {round} for the gradient")
            pause(calm_s=ask.left_s)

    def _check(self, message: Message) -> None:
        """Raise Corrupt if the sample count in `message` differs from that of its sender's data in that round."""
        expected = worker_weights(self._ctx.facts, message.round)[message.peer]
        if message.samples != expected:
            raise Corrupt(
                f"peer {self._member.rank}: the gradient of peer {message.peer}, round {message.round}, stands for "
                f"{message.samples} samples; that peer has {expected}"
            )

    def _make_waits(self) -> tuple[Pauses, PeriodicTimer]:
        """Return the pauses between two polls, and the timer for checking whether it still makes sense to wait."""
        look_s = self._member.settings.look_s
        return Pauses(0.002, 0.1), PeriodicTimer(look_s, 5 * look_s)
