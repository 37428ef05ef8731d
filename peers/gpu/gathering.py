"""The GPU baseline's exchange: every worker puts its gradient into the object store, fetches all of them in the order of ranks, and
averages by itself (Table 1 of "Cost-Performance Analysis", 2025).

A gradient is created once under its round and rank. Checkpoints are taken every `functions.checkpoint_every` rounds, so a worker's gradient
of such a round proves that it can start again there: what is older may go.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from crossover.algorithms import buffers
from crossover.context import Context
from crossover.dataplane.vector import Kind, Vector, decode, header
from crossover.errors import Corrupt, Missing
from crossover.fleet import Membership
from crossover.training import attempts
from crossover.training.calendar import round_samples
from crossover.training.peer.combining import combine
from crossover.training.peer.replica import Replica
from crossover.waiting import Due, Pauses

if TYPE_CHECKING:
    from torch import Tensor


class Gathering:
    """Create the own gradient, wait for every other one."""

    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership) -> None:
        self._ctx, self._member = ctx, member
        self.every = ctx.experiment.functions.checkpoint_every

    def open(self, replica: Replica) -> None:
        """Keys need no declaration."""

    def send(self, gradient: "Tensor", round: int) -> None:
        vector = Vector(Kind.GRADIENT, buffers.view(gradient), round_samples(self._ctx.facts, round)[self._member.rank])
        self._member.confirm()
        key = self._ctx.keys.body(round, self._member.rank)
        created = self._ctx.objects.put_new(key, [header(vector), vector.data])
        attempts.settle(self._ctx, lambda: self._ctx.objects.delete(key))
        if not created:
            # An earlier attempt has shown its own; a GPU need not come to the same bits twice.
            with suppress(Missing):
                gradient.copy_(buffers.tensor(decode(self._ctx.objects.get(key), key=key, kind=Kind.GRADIENT).data))

    def receive(self, gradient: "Tensor", round: int, out: "Tensor") -> None:
        ctx, rank = self._ctx, self._member.rank
        samples = round_samples(ctx.facts, round)
        combine(ctx, self._all(gradient, round, samples), round=round, out=out)
        if round and round % self.every == 0:  # all have shown this round's, so all have saved where it begins
            ctx.objects.delete(*(ctx.keys.body(old, rank) for old in range(max(0, round - self.every), round)))

    def keep(self) -> None:
        """Nothing is ever written over."""

    def close(self) -> None:
        """The bodies go with the run's other keys."""

    def _all(self, own: "Tensor", round: int, samples: list[int]) -> "Iterator[Tensor]":
        for peer in range(self._member.members):
            yield own if peer == self._member.rank else self._gradient_of(peer, round, samples[peer], like=own)

    def _gradient_of(self, peer: int, round: int, samples: int, *, like: "Tensor") -> "Tensor":
        key = self._ctx.keys.body(round, peer)
        vector = decode(self._awaited(key, peer, round), key=key, kind=Kind.GRADIENT)
        if (vector.elements, vector.samples) != (like.numel(), samples):
            raise Corrupt(
                f"{key}: {vector.elements} elements for {vector.samples} samples where this model and round have "
                f"{like.numel()} for {samples}: its sender trains another model, or on other data"
            )
        return buffers.tensor(vector.data)

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
