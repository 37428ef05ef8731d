"""Peer-to-peer training, Algorithm 1 of Barrak et al., "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine
Learning" (2023): once, for peers that compute by themselves, by functions, or on GPUs.

What differs is handed in: how a peer's gradient comes about (`Computing`), and how gradients go round (`PeerExchange`).
"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crossover.algorithms import codecs
from crossover.algorithms.contributions import Contribution
from crossover.clients.protocol import Event
from crossover.context import Context
from crossover.dataplane.vector import Vector, VectorKind
from crossover.errors import ConfigError, Missing, Refused
from crossover.training import agreement
from crossover.training.calendar import at
from crossover.training.fleet import Membership
from crossover.training.fleet.records import recorded, stage
from crossover.training.peer.ending import leave
from crossover.training.peer.exchange import Computing, Concluded, PeerExchange
from crossover.training.peer.replica import Replica
from crossover.workflow import first_event

if TYPE_CHECKING:
    from torch import Tensor


def train(
    ctx: Context,
    member: Membership,
    *,
    computing: Computing,
    exchange: PeerExchange,
    step: str,
    instance_type: str,
) -> None:
    """One peer from wherever its checkpoints stand to the end of the run; `step`: what its records are called."""
    peer = _Peer(ctx, member, computing, exchange)
    # Where the run is over, only clearing away is still to be done. One that has left has no round to come, and yet the others may wait
    # for the last that it sent: it starts, and what was lost of that is sent again.
    if not ctx.objects.exists(ctx.keys.over):
        left = ctx.objects.exists(ctx.keys.left(member.rank))
        with suppress(Concluded):
            peer.start()
            finished = left or peer.detect_convergence()
            while not finished:
                with recorded(ctx, step, peer.event(), instance_type=instance_type):
                    peer.train_epoch()
                    with stage(ctx, "convergence detection"):
                        finished = peer.detect_convergence()
    leave(ctx, member, exchange)


class _Peer:
    def __init__(self, ctx: Context, member: Membership, computing: Computing, exchange: PeerExchange) -> None:
        self._ctx, self._member, self._computing, self._exchange = ctx, member, computing, exchange
        check_memory(ctx)
        self._replica = Replica(ctx, member.rank, every=exchange.every, confirm=member.confirm)
        self._own = self._replica.model.new_empty(0)
        self._received: dict[int, Tensor] = {}  # by length, what an exchange brings
        self._history: tuple[int, list[tuple[float, float]]] = (0, [])

    def start(self) -> None:
        self._replica.restore()
        self._own = self._replica.model.new_empty(self._replica.model.numel())
        if (lost := self._exchange.open(self._replica)) is not None:
            self._send_again(lost)
        self._computing.forget(self._replica.round - 2)  # had it been cut off in between

    def _send_again(self, round: int) -> None:
        """A peer that is a round behind waits for what went with its broker. From the checkpoint of then it is made again, bit by bit."""
        between = self._replica.between
        with suppress(Missing):  # an older attempt that still lives has forgotten that checkpoint
            self._replica.restore(at=round, forget=False)
            self._compute()
            self._exchange.send(self._contribution(round), round)
            if between is not None and self._replica.codec is not None:
                second = self._replica.codec.proceed(between)
                assert isinstance(second, Contribution), "a mean is kept where another exchange follows"
                self._exchange.send(second, round, exchange=1)
        self._replica.restore()

    def event(self) -> Event:
        """The round that comes, as functions and records name it."""
        place = at(self._ctx, {}, self._replica.round)
        return {**first_event(self._ctx.run, workers=self._member.members), **place, "worker": self._member.rank}

    def train_epoch(self) -> None:
        """What is left of the epoch, round by round."""
        self._ctx.note(attempt=self._member.attempt)
        while True:
            self._train_round()
            if self._replica.days.ends_epoch(self._replica.round - 1):
                return

    def _train_round(self) -> None:
        ctx, replica, exchange, round = self._ctx, self._replica, self._exchange, self._replica.round
        with stage(ctx, "compute gradients"):
            self._compute()
        combined = self._combined(round)
        with stage(ctx, "model update"):
            replica.update(combined, history=self._known())
        with stage(ctx, "checkpoint"):
            replica.save(agreed=not exchange.replicas_agree)
            if replica.round % exchange.every == 0:
                self._computing.forget(round - 1)  # this one may have to be sent again
                self._member.progress()

    def _compute(self) -> None:
        """What this peer has to say in the round: its gradient, or what its own steps have come to."""
        if self._ctx.experiment.exchange.what == "gradients":
            self._computing.gradient(self.event(), self._own)
        else:
            self._computing.steps(self.event(), self._replica, self._known())
            self._replica.contribution(self._own)

    def _combined(self, round: int) -> "Tensor":
        """What all contributions come to, in one exchange or two."""
        ctx, replica, exchange = self._ctx, self._replica, self._exchange
        following: Contribution | Tensor = self._contribution(round)
        for number in range(codecs.exchanges(ctx.experiment.exchange)):
            assert isinstance(following, Contribution)
            out = self._memory(following.values)
            with stage(ctx, "send"):
                exchange.send(following, round, exchange=number)
            with stage(ctx, "receive"):
                exchange.receive(following, round, out, exchange=number)
            if replica.codec is None:
                return out
            with stage(ctx, "compress"):
                following = replica.codec.proceed(out)
            if isinstance(following, Contribution):
                replica.between = out.clone()
        assert not isinstance(following, Contribution)
        return following

    def _contribution(self, round: int) -> Contribution:
        """What the peer computed, as its codec sends it. Raises Refused where that cannot be encoded."""
        if (codec := self._replica.codec) is None:
            return Contribution(self._own)
        with stage(self._ctx, "compress"):
            try:
                return codec.begin(self._own, round=round)
            except Refused as error:
                raise Refused(f"peer {self._member.rank}, round {round}: {error}") from error

    def _memory(self, like: "Tensor") -> "Tensor":
        if like.numel() not in self._received:
            self._received[like.numel()] = like.new_empty(like.numel())
        return self._received[like.numel()]

    def _known(self) -> list[tuple[float, float]]:
        """Validation loss and metric of the evaluations before this round."""
        before = self._replica.days.epochs_before(self._replica.round)
        if self._history[0] != before:
            self._history = (before, agreement.history(self._ctx, before))
        return self._history[1]

    def detect_convergence(self) -> bool:
        """After an epoch: evaluate, unless a peer has; every peer follows the decision that was created first."""
        ctx, days, round = self._ctx, self._replica.days, self._replica.round
        if not round or not days.ends_epoch(round - 1):
            return False
        epoch = days.epoch(round - 1)
        if not _decided(ctx, epoch):
            agreement.agree(ctx, epoch, by=self._member.rank)
        agreed = agreement.decision(ctx, epoch)
        finished = bool(agreed["finished"])
        mine = self._exchange.replicas_agree or agreed["by"] == self._member.rank
        if finished and mine and not ctx.objects.exists(ctx.keys.outcome):
            agreement.conclude(ctx, agreed, Vector(VectorKind.MODEL, ctx.learner.model))
        return finished


VECTORS = 8  # model and gradient, optimizer, own and average, one received, one in a message, one in a checkpoint
LOCALLY = 3  # with local steps: where the round began, the outer velocity, and that in the checkpoint
ENCODED = 4  # with a codec: what is meant, what is sent of it, what was left out, and that in the checkpoint


def check_memory(ctx: Context) -> None:
    """Before anything large is made: a peer that the kernel ends in mid-round says nothing. Raises ConfigError."""
    asked = ctx.experiment.exchange
    count = VECTORS + LOCALLY * (asked.what != "gradients") + ENCODED * (asked.compression != "none")
    need_mb = count * 4 * (ctx.facts.parameters + ctx.facts.buffers) / 2**20
    free_mb = available_mb()
    if free_mb is not None and need_mb > free_mb:
        training, kind = ctx.experiment.training, ctx.experiment.p2p.instance_type
        raise ConfigError(
            f"training.model: {training.model} has {ctx.facts.parameters:,} parameters; a peer holds {count} such vectors, "
            f"{need_mb:,.0f} MB, and {free_mb:,.0f} MB are free here; a larger p2p.instance_type than {kind}, or a smaller model, is needed"
        )


def available_mb() -> float | None:
    """What new programs can have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(found.split()[1]) / 1024 if found else None


def _decided(ctx: Context, epoch: int) -> bool:
    return ctx.objects.exists(ctx.keys.decision(epoch))
