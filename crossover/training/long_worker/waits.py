"""Waiting inside a long invocation: for a key of another worker, with an eye on the deadline, and with an end.

Stores decide, so a wait asks for the exact key, backs off, and never lists. Now and then it looks whether waiting has a point at all: the
other may have left for good, or this attempt may have been overtaken by a later one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from crossover.context import Context
from crossover.context.run_facts import RunFacts
from crossover.errors import CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.experiment import Experiment
from crossover.runtime.pauses import Pauses
from crossover.training import attempts
from crossover.training.calendar import calendar

T = TypeVar("T")

OUTAGE_S = 60.0  # a store that does not answer is asked again for so long before the invocation gives up
_FIRST_LOOK_S, _LAST_LOOK_S = 0.2, 5.0  # how long into a wait, and then how often, its point is questioned


class NearDeadline(Exception):
    """Not an error: the invocation must save its state and leave."""


class Settled(Exception):
    """Not an error: another attempt of this worker has made the result already, so there is nothing left to wait for."""


@dataclass(frozen=True, slots=True)
class Polling:
    """How a channel is looked at: the pauses are a share of the time waited so far, within bounds."""

    share: float
    first_s: float
    last_s: float

    def pauses(self) -> Pauses:
        return Pauses(self.first_s, self.last_s, self.share)


# By channel: a look at S3 costs money and takes 20 ms itself.
POLLING = {"redis": Polling(0.05, 0.0005, 0.05), "s3": Polling(0.1, 0.02, 0.5)}


def patience_s(facts: RunFacts) -> float:
    """How long a worker waits for another: that one may have to time out once, be invoked again and replay. Where a round goes through
    several epochs, a straggler falls behind by so many times as much.
    """
    return max(120.0, 2.0 * facts.experiment.functions.timeout_s) * calendar(facts).span


def reserve_s(experiment: Experiment) -> float:
    """What an invocation keeps of its time for leaving in order."""
    return 1.0 + 0.05 * experiment.functions.timeout_s


def say_why(ctx: Context, *, attempt: int, member: int, cause: BaseException) -> None:
    """Tell those who wait for `member` that it will not come back in this attempt of the run."""
    try:
        ctx.objects.put_new(ctx.keys.failed(attempt, member), f"{type(cause).__name__}: {cause}".encode())
    except CrossoverError:
        return  # the cause itself is on its way; this was a courtesy


@dataclass
class Waits:
    """The waits of one member (a worker's rank, or the supervisor's) in one invocation.

    `overtaken(round)`: whether a later attempt of this member has gone on beyond `round`.
    """

    ctx: Context
    member: str  # what errors call it: "worker 3"
    attempt: int
    overtaken: Callable[[int], bool]
    since: float | None = None  # when the wait under way began, also in an earlier invocation (unix seconds)
    reserve_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.reserve_s = reserve_s(self.ctx.experiment)

    def leave_in_time(self, *, need_s: float = 0.0) -> None:
        """Raises NearDeadline unless `need_s` and the reserve are left."""
        if self.ctx.remaining_s() < self.reserve_s + need_s:
            raise NearDeadline

    def until(
        self,
        look: Callable[[], T],
        *,
        round: int,
        key: str,
        sender: int | None,
        settled: Callable[[], bool] = lambda: False,
        patience: float = 1.0,
        channel: str = "",
    ) -> T:
        """What `look` returns once it no longer raises Missing.

        `sender`: whose doing is awaited; `settled`: whether it is not needed any more; `patience`: times the usual;
        `channel`: where the key does not lie in the experiment's.
        Raises NearDeadline, Settled; RunFailed where the sender has failed; StaleAttempt; WaitTimeout.
        """
        self.since = self.since or self.ctx.clock()
        pause, question_s = POLLING[channel or self.ctx.experiment.storage.channel].pauses(), _FIRST_LOOK_S
        while True:
            try:
                found = self.steadily(look)
            except Missing:
                pass
            else:
                self.since = None
                return found
            self.leave_in_time()
            calm_s = self._calm_s(patience)
            if (waited_s := pause.waited_s) >= question_s:
                self._question(look, settled, round=round, key=key, sender=sender, patience=patience)
                question_s = waited_s + min(_LAST_LOOK_S, waited_s + _FIRST_LOOK_S)
            else:
                calm_s = min(calm_s, question_s - waited_s)
            pause(calm_s=calm_s)

    def _calm_s(self, patience: float) -> float:
        """For how long the clock alone neither ends the wait nor the invocation; an outage is noticed sooner."""
        left_s = patience * patience_s(self.ctx.facts) - (self.ctx.clock() - (self.since or 0.0))
        return min(left_s, self.ctx.remaining_s() - self.reserve_s, OUTAGE_S / 2)

    def _question(
        self,
        look: Callable[[], T],
        settled: Callable[[], bool],
        *,
        round: int,
        key: str,
        sender: int | None,
        patience: float,
    ) -> None:
        """Is there still a point? None in an attempt that nobody needs: what it waits for may be there, yet it must not go on. Else
        evidence first, then one more look at all that would end the wait well: what came in between is not lost, however long the evidence
        took.
        """
        useless = self.steadily(lambda: attempts.useless(self.ctx))
        if useless:
            raise StaleAttempt(f"{self.member}, round {round}: the run was resumed, or is over: {key} is not needed")
        overtaken = self.steadily(lambda: self.overtaken(round))
        cause = self.failure_of(sender)
        waited_s = self.ctx.clock() - (self.since or 0.0)
        late = waited_s > patience * patience_s(self.ctx.facts)
        if settled():
            raise Settled
        if not (overtaken or cause or late):
            return
        try:
            self.steadily(look)
        except Missing:
            if overtaken:
                raise StaleAttempt(f"{self.member}: round {round} is over for everybody, {key} is gone") from None
            whom = self._name_of(sender)
            if cause:
                raise RunFailed(f"{self.member}, round {round}: {whom} left before {key} was there: {cause}") from None
            raise WaitTimeout(
                f"{self.member}, round {round}: waited {waited_s:.0f} s for {whom}: {key} did not come"
            ) from None

    def _name_of(self, sender: int | None) -> str:
        if sender is None:
            return "the workers"
        return f"worker {sender}" if sender < self.ctx.experiment.workers else "the supervisor"

    def failure_of(self, sender: int | None) -> str:
        """Why `sender` left this attempt of the run for good; "" as far as anybody knows it did not."""
        if sender is None:
            return ""
        objects, key = self.ctx.objects, self.ctx.keys.failed(self.attempt, sender)
        return self.steadily(lambda: objects.get(key).decode() if objects.exists(key) else "")

    def give_way(self, take_back: Callable[[], object], error: CrossoverError) -> None:
        """Where `error` ends a member of an attempt that was overtaken, or has concluded the run, what it left goes, and StaleAttempt is
        raised instead. Nobody comes after it who would do that, so it asks on while a store does not answer.
        """
        if self.steadily(lambda: attempts.useless(self.ctx)):
            self.steadily(take_back)
            raise StaleAttempt(f"{self.member}: the run was resumed, or is over") from error

    def steadily(self, call: Callable[[], T]) -> T:
        """`call`, which must be repeatable, again and again while its store does not answer; Unavailable after OUTAGE_S."""
        pause = Pauses(0.01, 1.0, within_s=OUTAGE_S)
        while True:
            try:
                return call()
            except Unavailable:
                if self.ctx.remaining_s() < self.reserve_s or not pause():
                    raise
