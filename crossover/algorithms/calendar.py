"""Which epoch, round and minibatch come when.

An epoch is a pass over a worker's minibatches; a round ends with a synchronisation, after `exchange.every` minibatches. Epochs count from
1 (epoch 0 is the untrained model), rounds from 0 through the whole run, which may end within its last epoch. Where local steps go on
beyond an epoch's end, a round is several whole epochs, and bears the number of its last one: the one after which all hold one model,
which is evaluated and decided upon.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which minibatches and epochs the rounds of a run are."""

    minibatches: int  # of one worker in an epoch
    sync_every: int
    epochs: int
    local: bool = False  # whether workers take steps of their own within a round, each from where the one before ended
    steps: int | None = None  # rounds of the run; None: all of its epochs

    @property
    def span(self) -> int:
        """Epochs from one decision to the next: more than one where a round goes through several."""
        return max(1, self.sync_every // self.minibatches)

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds from one decision to the next."""
        return -(-self.minibatches // self.sync_every)

    @property
    def decisions(self) -> int:
        return self.decision(self.epochs)

    @property
    def rounds(self) -> int:
        return self.rounds_until(self.epochs)

    def decided(self, number: int) -> int:
        """The epoch that the decision of this number, from 1, follows; the last one follows the last epoch."""
        return min(number * self.span, self.epochs)

    def decision(self, epoch: int) -> int:
        """The number of the decision that follows `epoch`."""
        return -(-epoch // self.span)

    def rounds_until(self, epoch: int) -> int:
        """How many rounds are behind the decision that follows `epoch`."""
        whole = self.decision(epoch) * self.rounds_per_epoch
        return whole if self.steps is None else min(whole, self.steps)

    def decisions_before(self, round: int) -> int:
        return self.decisions if round >= self.rounds else round // self.rounds_per_epoch

    def epochs_before(self, round: int) -> int:
        """The epoch of the last decision before the round; 0 before the first."""
        return self.decisions_before(round) * self.span

    def epoch(self, round: int) -> int:
        """The epoch that the round is in, or the last one that it goes through."""
        before = self.epochs_before(round)
        return max(before + 1, min(before + self.span, self.epochs))

    def first_minibatch(self, round: int) -> int:
        """The epoch's minibatch that the round begins with."""
        return round % self.rounds_per_epoch * self.sync_every

    def minibatches_before(self, round: int) -> int:
        """How many of a worker's minibatches the rounds before are, epochs one after another."""
        return self.epochs_before(round) * self.minibatches + self.first_minibatch(round)

    def minibatches_in(self, round: int) -> int:
        """How many minibatches a worker computes in the round; the last one before a decision may be shorter."""
        until = (self.epoch(round) - self.epochs_before(round)) * self.minibatches
        return min(self.sync_every, until - self.first_minibatch(round))

    def place(self, round: int, minibatch: int) -> tuple[int, int]:
        """(epoch, which of the epoch's minibatches) of the round's `minibatch`."""
        epochs, number = divmod(self.minibatches_before(round) + minibatch, self.minibatches)
        return epochs + 1, number

    def numbers(self, round: int) -> list[int]:
        """Which of an epoch's minibatches the round goes through, in order."""
        first = self.first_minibatch(round)
        return [number % self.minibatches for number in range(first, first + self.minibatches_in(round))]

    def side_by_side(self, round: int) -> int:
        """How many functions may compute the round of a worker at the same time."""
        return 1 if self.local else self.minibatches_in(round)

    def ends_epoch(self, round: int) -> bool:
        return (round + 1) % self.rounds_per_epoch == 0 or round + 1 == self.rounds
