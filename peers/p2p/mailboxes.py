"""RabbitMQ between synchronous peers: each has mailboxes of its own that hold its latest gradient, read by all without removing it, and a
barrier of distinct members.

A peer has two mailboxes and uses them by turns, because a fast one may publish round t + 1 while a slow one still reads t; it publishes t +
2 only behind the barrier of t + 1, at which the slow one has finished t.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crossover.context import Context
from crossover.errors import Corrupt, Missing, StaleAttempt
from crossover.fleet import Membership
from crossover.training import attempts
from crossover.training.calendar import round_samples
from crossover.training.peer.combining import combine
from crossover.training.peer.replica import Replica
from crossover.waiting import Due, Pauses
from peers.p2p import messages
from peers.p2p.messages import Codec, Message

if TYPE_CHECKING:
    from torch import Tensor


class Post:
    """A peer's way to its mailboxes: what it sends is kept, so that it can be sent again."""

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member = ctx, member
        facts = ctx.facts
        self.codec = Codec(ctx.experiment, parameters=facts.parameters, statistics=facts.buffers)
        self._limit = int(ctx.experiment.p2p.message_limit_mb * 2**20)
        self._sent: dict[str, tuple[int, bytes]] = {}  # by mailbox: round, message

    def send(self, gradient: "Tensor", *, round: int, mailbox: str) -> None:
        """Put the gradient into the mailbox; above the limit its body goes to the object store, once, and its key is sent."""
        ctx, rank = self._ctx, self._member.rank
        samples = round_samples(ctx.facts, round)[rank]
        parts = self.codec.encode(gradient, samples=samples, round=round, peer=rank)
        key = ""
        self._member.confirm()
        if sum(memoryview(part).nbytes for part in parts) > self._limit:
            key = ctx.keys.body(round, rank)
            ctx.objects.put_new(key, parts)
            attempts.settle(ctx, lambda: ctx.objects.delete(key))
        text = messages.encode(Message(ctx.run, rank, round, samples, key, memoryview(b"")), [] if key else parts)
        ctx.bus.replace(mailbox, text)
        self._sent[mailbox] = (round, text)
        if not self.codec.lossless:  # the peers use what they decode: so does this one, else the replicas drift
            what = f"own gradient of round {round}"
            body = b"".join(bytes(part) for part in parts)
            gradient.copy_(self.codec.decode(body, samples=samples, what=what))

    def read(self, mailbox: str, *, peer: int) -> Message | None:
        """The peer's latest message; None while there is none. Raises Corrupt."""
        text = self._ctx.bus.peek(mailbox)
        if text is None:
            return None
        message = messages.read(text, mailbox=mailbox)
        if (message.run, message.peer) != (self._ctx.run, peer):
            raise Corrupt(f"{mailbox}: holds a message of peer {message.peer} of run {message.run}")
        return message

    def gradient(self, message: Message) -> "Tensor":
        """What the message says or points to. Raises Missing, Corrupt."""
        body = self._ctx.objects.get(message.key) if message.key else message.body
        what = f"peer {self._member.rank}: gradient of peer {message.peer}, round {message.round}"
        return self.codec.decode(body, samples=message.samples, what=what)

    def keep(self) -> None:
        """An older attempt of this peer may have put its older message over the latest: send that again."""
        for mailbox, (round, text) in self._sent.items():
            held = self._ctx.bus.peek(mailbox)
            if held is not None and messages.read(held, mailbox=mailbox).round < round:
                self._member.confirm()
                self._ctx.bus.replace(mailbox, text)


class SynchronousMailboxes:
    """Send, arrive, wait for all, read all in the order of ranks."""

    every = 1  # a mailbox holds one message: a peer must be able to start again at the round that the others stand in
    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member, self._post = ctx, member, Post(ctx, member)
        members = range(member.members)
        self._mailboxes = [ctx.keys.mailbox(peer, parity) for peer in members for parity in (0, 1)]
        self._barriers = [(ctx.keys.barrier, member.members)]

    def open(self, replica: Replica) -> None:
        self._member.confirm()  # the run may be over, and what is declared here gone for good
        self._ctx.bus.declare(mailboxes=self._mailboxes, barriers=self._barriers)
        attempts.settle(self._ctx, self.close)

    def send(self, gradient: "Tensor", round: int) -> None:
        self._post.send(gradient, round=round, mailbox=self._ctx.keys.mailbox(self._member.rank, round % 2))
        self._ctx.bus.arrive(self._ctx.keys.barrier, round=round, member=self._member.rank)

    def receive(self, gradient: "Tensor", round: int, out: "Tensor") -> None:
        self._await_all(round)
        combine(self._ctx, self._all(gradient, round), round=round, out=out)
        if round:  # all have arrived at this round, so all are through with the one before
            self._ctx.objects.delete(self._ctx.keys.body(round - 1, self._member.rank))

    def keep(self) -> None:
        self._post.keep()

    def close(self) -> None:
        self._ctx.bus.remove(mailboxes=self._mailboxes, barriers=self._barriers)

    def _await_all(self, round: int) -> None:
        """SynchronisationBarrier: distinct members, never messages."""
        bus, rank, everybody = self._ctx.bus, self._member.rank, frozenset(range(self._member.members))
        pause, ask = self._waiting()
        while True:
            missing = everybody - bus.arrived(self._ctx.keys.barrier, round=round, reader=rank)
            if not missing:
                return
            if ask():
                self._post.keep()
                self._member.question(sorted(missing), what=f"waited in round {round} for the arrival")
            pause(calm_s=ask.left_s)

    def _all(self, own: "Tensor", round: int) -> "Iterator[Tensor]":
        for peer in range(self._member.members):
            yield own if peer == self._member.rank else self._gradient_of(peer, round)

    def _gradient_of(self, peer: int, round: int) -> "Tensor":
        mailbox = self._ctx.keys.mailbox(peer, round % 2)
        pause, ask = self._waiting()
        while True:
            message = self._post.read(mailbox, peer=peer)
            if message is not None and message.round > round:
                raise StaleAttempt(
                    f"peer {self._member.rank}: round {round} is over, peer {peer} is in {message.round}"
                )
            if message is not None and message.round == round:
                self._check(message)
                try:
                    return self._post.gradient(message)
                except Missing as gone:
                    raise StaleAttempt(f"peer {self._member.rank}: round {round} is over: {gone}") from gone
            if ask():
                self._post.keep()
                self._member.question([peer], what=f"waited in round {round} for the gradient")
            pause(calm_s=ask.left_s)

    def _check(self, message: Message) -> None:
        expected = round_samples(self._ctx.facts, message.round)[message.peer]
        if message.samples != expected:
            raise Corrupt(
                f"peer {self._member.rank}: the gradient of peer {message.peer}, round {message.round}, stands for "
                f"{message.samples} samples; that peer has {expected}"
            )

    def _waiting(self) -> tuple[Pauses, Due]:
        """The pauses of a wait for another peer, and when it is to be asked whether there is still a point in waiting."""
        look_s = self._member.settings.look_s
        return Pauses(0.002, 0.1), Due(look_s, 5 * look_s)
