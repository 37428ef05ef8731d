"""The GPU baseline's exchange: every worker puts its gradient into the object store, fetches all of them in the order of ranks, and
averages by itself (Table 1 of "Cost-Performance Analysis", 2025).

A gradient is created once under its round and rank. Checkpoints are taken every `functions.checkpoint_every` rounds, so a worker's gradient
of such a round proves that it can start again there: what is older may go.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from crossover.algorithms import codecs
from crossover.algorithms.contributions import Contribution
from crossover.context import Context
from crossover.errors import Missing
from crossover.keys import Keys
from crossover.runtime.pauses import Due, Pauses
from crossover.training import attempts
from crossover.training.calendar import round_samples
from crossover.training.fleet import Membership
from crossover.training.peer.bodies import Bodies
from crossover.training.peer.combining import combine
from crossover.training.peer.replica import Replica

if TYPE_CHECKING:
    from torch import Tensor


class Gathering:
    """Create the own gradient, wait for every other one."""

    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member = ctx, member
        self.every = ctx.experiment.functions.checkpoint_every
        self._keys = ctx.keys.of_exchanges(codecs.exchanges(ctx.experiment.exchange))
        self._bodies = Bodies(ctx.experiment)

    def open(self, replica: Replica) -> None:
        """Keys need no declaration."""

    def send(self, own: Contribution, round: int, *, exchange: int = 0) -> None:
        rank, samples = self._member.rank, round_samples(self._ctx.facts, round)[self._member.rank]
        self._member.confirm()
        key = self._keys[exchange].body(round, rank)
        created = self._ctx.objects.put_new(key, self._bodies.of(own, samples=samples))
        attempts.settle(self._ctx, lambda: self._ctx.objects.delete(key))
        if not created:
            # An earlier attempt has shown its own; a GPU need not come to the same bits twice.
            with suppress(Missing):
                shown = self._ctx.objects.get(key)
                own.values.copy_(self._bodies.read(shown, own=own, samples=samples, what=key))

    def receive(self, own: Contribution, round: int, out: "Tensor", *, exchange: int = 0) -> None:
        ctx, rank, samples = self._ctx, self._member.rank, round_samples(self._ctx.facts, round)
        combine(ctx, self._all(own, self._keys[exchange], round, samples), round=round, out=out)
        if round and round % self.every == 0 and not exchange:
            # All have shown this round's, so all have saved where it begins.
            before = range(max(0, round - self.every), round)
            ctx.objects.delete(*(keys.body(old, rank) for keys in self._keys for old in before))

    def keep(self) -> None:
        """Nothing is ever written over."""

    def close(self) -> None:
        """The bodies go with the run's other keys."""

    def _all(self, own: Contribution, keys: Keys, round: int, samples: list[int]) -> "Iterator[Tensor]":
        for peer in range(self._member.members):
            if peer == self._member.rank:
                yield own.values
                continue
            key = keys.body(round, peer)
            yield self._bodies.read(self._awaited(key, peer, round), own=own, samples=samples[peer], what=key)

    def _awaited(self, key: str, peer: int, round: int) -> bytes:
        look_s = self._member.settings.look_s
        pause, ask = Pauses(0.005, 0.5), Due(look_s, 5 * look_s)  # a look at S3 costs money and takes 20 ms itself
        while True:
            try:
                return self._ctx.objects.get(key)
            except Missing:
                pass
            if ask():
                self._member.question([peer], what=f"waited in round {round} for the gradient")
            pause(calm_s=ask.left_s)
