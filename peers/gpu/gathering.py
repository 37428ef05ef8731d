"""The GPU baseline's exchange: every worker stores its gradient in the object store, fetches all of them in rank order, and averages them
itself (Table 1 of "Cost-Performance Analysis", 2025).

A gradient is created once under its round and rank. Checkpoints are saved every `functions.checkpoint_every` rounds. So a worker's gradient
of such a round proves that the worker can start again there, and what is older can be deleted.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from crossover.algorithms import codecs
from crossover.algorithms.contributions import Contribution
from crossover.errors import Missing
from crossover.runtime import Pauses, PeriodicTimer
from crossover.stores.keys import Keys
from crossover.training import progress
from crossover.training.fleet import Membership
from crossover.training.peer import ContributionMessages, Replica, combine
from crossover.training.progress import worker_weights
from crossover.workflow.context import Context

if TYPE_CHECKING:
    from torch import Tensor


class Gathering:
    """Exchange of a peer through the object store (`gpu.exchange: s3`): each member stores its contribution and fetches all others.
    `every`: rounds between two checkpoints.
    """

    replicas_agree = True

    def __init__(self, ctx: Context, member: Membership) -> None:
        """Prepare the keys of each exchange of a round; nothing is stored yet."""
        self._ctx, self._member = ctx, member
        self.every = ctx.experiment.functions.checkpoint_every
        self._keys = ctx.keys.list_by_exchange(codecs.count_exchanges(ctx.experiment.exchange))
        self._bodies = ContributionMessages(ctx.experiment)

    def open(self, replica: Replica) -> None:
        """Do nothing: keys need no declaration."""

    def send(self, own: Contribution, round: int, *, exchange: int = 0) -> None:
        """Store `own`, this member's gradient of `round`, in the object store. If an earlier attempt has stored one, copy that one into the
        values of `own`.

        `exchange`: number of the exchange within the round, from 0. Raises StaleAttempt if the run is over, or if the rank was taken over;
        Corrupt if the stored gradient does not match.
        """
        rank, samples = self._member.rank, worker_weights(self._ctx.facts, round)[self._member.rank]
        self._member.confirm()
        key = self._keys[exchange].body(round, rank)
        created = self._ctx.objects.put_new(key, self._bodies.encode(own, samples=samples))
        progress.roll_back_if_over(self._ctx, lambda: self._ctx.objects.delete(key))
        if not created:
            # An earlier attempt has published its own; a GPU need not compute the same bits twice.
            with suppress(Missing):
                shown = self._ctx.objects.get(key)
                own.values.copy_(self._bodies.decode(shown, own=own, samples=samples, what=key))

    def receive(self, own: Contribution, round: int, out: "Tensor", *, exchange: int = 0) -> None:
        """Wait for the other members' gradients of `round`, and write the aggregate of all, including `own`, into `out`. In every `every`th
        round but round 0, exchange 0 then deletes this member's gradients of earlier rounds, of all exchanges.

        `exchange`: number of the exchange within the round, from 0. Raises RunFailed if a missing member has failed, WaitTimeout if one is
        gone, StaleAttempt if this rank was taken over, and Corrupt or Refused if a gradient cannot be used.
        """
        ctx, rank, samples = self._ctx, self._member.rank, worker_weights(self._ctx.facts, round)
        combine(ctx, self._all(own, self._keys[exchange], round, samples), round=round, out=out)
        if round and round % self.every == 0 and not exchange:
            # All have published this round's gradient, so all have a checkpoint at its start.
            before = range(max(0, round - self.every), round)
            ctx.objects.delete(*(keys.body(old, rank) for keys in self._keys for old in before))

    def keep(self) -> None:
        """Do nothing: no message is ever overwritten."""

    def close(self) -> None:
        """Do nothing: the gradients are deleted with the run's other keys."""

    def _all(self, own: Contribution, keys: Keys, round: int, samples: list[int]) -> "Iterator[Tensor]":
        """Yield every member's contribution to `round` in rank order, waiting for each but `own`. Use each before the next is requested,
        which may overwrite it. `keys`: of the exchange; `samples`: each member's sample count, by rank. Raises what `_await_gradient`
        raises, and Corrupt if a contribution does not match.
        """
        for peer in range(self._member.members):
            if peer == self._member.rank:
                yield own.values
                continue
            key = keys.body(round, peer)
            yield self._bodies.decode(self._await_gradient(key, peer, round), own=own, samples=samples[peer], what=key)

    def _await_gradient(self, key: str, peer: int, round: int) -> bytes:
        """Wait until the gradient of `peer` is stored under `key`, and return its bytes. Raises RunFailed if the peer has failed,
        WaitTimeout if it is gone, StaleAttempt if this rank was taken over.
        """
        look_s = self._member.settings.look_s
        pause, ask = (
            Pauses(0.005, 0.5),
            PeriodicTimer(look_s, 5 * look_s),
        )  # a request to S3 costs money and takes 20 ms itself
        while True:
            try:
                return self._ctx.objects.get(key)
            except Missing:
                pass
            if ask():
                self._member.raise_if_pointless([peer], what=f"waited in round {round} for the gradient")
            pause(calm_s=ask.left_s)
