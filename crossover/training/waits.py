"""Waiting inside a long invocation for another worker's key, limited by the deadline and by a timeout.

A wait polls the exact key with growing pauses, and never lists. Now and then it checks whether waiting still has a purpose: the other
worker may have failed for good, or this attempt may be superseded by a later one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from crossover.errors import CrossoverError, Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.experiment import Experiment
from crossover.runtime import Pauses
from crossover.training import progress
from crossover.training.progress import calendar
from crossover.workflow.context import Context, RunConfiguration

T = TypeVar("T")

OUTAGE_S = 60.0  # a store that does not answer is asked again for so long before the invocation gives up
_FIRST_LOOK_S, _LAST_LOOK_S = 0.2, 5.0  # when a wait is first checked for its purpose, and then how often


class NearDeadline(Exception):
    """Signal, not an error, that little time is left before the deadline, or that the invocation has computed as many minibatches as it
    may: it must save its state and end.
    """


class ResultExists(Exception):
    """Signal, not an error, that the result that a wait serves exists already, because another attempt of this worker has made it. The
    caller then fetches that result.
    """


@dataclass(frozen=True, slots=True)
class Polling:
    """Pauses between two polls of a channel: each pause is the fraction `share` of the time waited so far, but at least `first_s` and at
    most `last_s` seconds.
    """

    share: float
    first_s: float
    last_s: float

    def pauses(self) -> Pauses:
        """Return a new series of pauses for one wait."""
        return Pauses(self.first_s, self.last_s, self.share)


# By channel: a request to S3 costs money and takes 20 ms itself.
POLLING = {"redis": Polling(0.05, 0.0005, 0.05), "s3": Polling(0.1, 0.02, 0.5)}


def wait_timeout_s(configuration: RunConfiguration) -> float:
    """Return for how many seconds a worker waits for another one, which may first have to time out, be invoked again and repeat its work:
    twice Lambda's timeout, at least 120 s, times the number of epochs that a round spans, because a straggler falls behind by that factor.
    """
    return max(120.0, 2.0 * configuration.experiment.functions.timeout_s) * calendar(configuration).span


def reserve_s(experiment: Experiment) -> float:
    """Return how many seconds before its deadline an invocation stops working, in order to save its state: 1 s and a twentieth of Lambda's
    timeout, so that the shortest timeout (10 s) leaves time to work; validation/combinations.py reckons with 90 % of the timeout.
    """
    return 1.0 + 0.05 * experiment.functions.timeout_s


def report_failure(ctx: Context, *, attempt: int, member: int, cause: BaseException) -> None:
    """Store that `member` has failed for good in this attempt, so that those who wait for it give up. A failure that is stored already
    stays. `cause`: the member's error.

    If the store fails, that error is ignored, because the caller is about to raise `cause` itself.
    """
    try:
        ctx.objects.put_new(ctx.keys.member_failure(attempt, member), f"{type(cause).__name__}: {cause}".encode())
    except CrossoverError:
        return  # the cause itself is raised by the caller


@dataclass
class Waits:
    """Waiting of one member (a worker, or the supervisor) for what other members store, within one invocation.

    `ctx`: of the invocation; `member`: its name in errors, such as "worker 3"; `attempt`: of the run; `is_superseded(round)`: returns
    whether another invocation of this member has got beyond `round`; `since`: unix seconds at which the present wait began, perhaps in an
    earlier invocation, None if there is none; `reserve_s`: seconds before the deadline that are kept free for saving.
    """

    ctx: Context
    member: str
    attempt: int
    is_superseded: Callable[[int], bool]
    since: float | None = None
    reserve_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Set `reserve_s`, the seconds that are kept free before the deadline, from the experiment."""
        self.reserve_s = reserve_s(self.ctx.experiment)

    def leave_in_time(self, *, need_s: float = 0.0) -> None:
        """Raise NearDeadline if fewer than `need_s` seconds plus the reserve are left before the invocation's deadline."""
        if self.ctx.remaining_s() < self.reserve_s + need_s:
            raise NearDeadline

    def wait_for(
        self,
        look: Callable[[], T],
        *,
        round: int,
        key: str,
        sender: int | None,
        is_unneeded: Callable[[], bool] = lambda: False,
        timeout_factor: float = 1.0,
        channel: str = "",
    ) -> T:
        """Call `look` again and again, with growing pauses, until it no longer raises Missing, and return its result.

        `round`, `key`: what is awaited, for errors; `sender`: the member that is awaited, None if any worker is; `is_unneeded`: returns
        whether the result is not needed any more; `timeout_factor`: factor on the usual timeout (`wait_timeout_s`); `channel`: the key's
        channel, "redis" or "s3", "" for the experiment's: S3 is polled less often.

        Raises NearDeadline if only the reserve is left before the deadline, ResultExists if `is_unneeded` returns True, StaleAttempt if
        this attempt was superseded or is over, RunFailed if the sender has failed, and WaitTimeout, which counts from `since` if an earlier
        invocation began the wait. Other errors of `look` are raised, Unavailable once 60 s of retries have failed.
        """
        self.since = self.since or self.ctx.clock()
        pause, question_s = POLLING[channel or self.ctx.experiment.storage.channel].pauses(), _FIRST_LOOK_S
        while True:
            try:
                found = self.retry(look)
            except Missing:
                pass
            else:
                self.since = None
                return found
            if self.ctx.remaining_s() < self.reserve_s:
                # Nobody else deletes what this member stored for a round that was over, and a wait this short has not asked yet.
                self._raise_if_pointless(
                    look, is_unneeded, round=round, key=key, sender=sender, timeout_factor=timeout_factor
                )
                raise NearDeadline
            calm_s = self._calm_s(timeout_factor)
            if (waited_s := pause.waited_s) >= question_s:
                self._raise_if_pointless(
                    look, is_unneeded, round=round, key=key, sender=sender, timeout_factor=timeout_factor
                )
                question_s = waited_s + min(_LAST_LOOK_S, waited_s + _FIRST_LOOK_S)
            else:
                calm_s = min(calm_s, question_s - waited_s)
            pause(calm_s=calm_s)

    def _calm_s(self, timeout_factor: float) -> float:
        """Return for how many seconds nothing but a new key can end the wait: the time until it times out, until the reserve before the
        deadline, or 30 s, whichever is shortest. `timeout_factor`: how many times the usual timeout the wait may last.
        """
        left_s = timeout_factor * wait_timeout_s(self.ctx.facts) - (self.ctx.clock() - (self.since or 0.0))
        return min(left_s, self.ctx.remaining_s() - self.reserve_s, OUTAGE_S / 2)

    def _raise_if_pointless(
        self,
        look: Callable[[], T],
        is_unneeded: Callable[[], bool],
        *,
        round: int,
        key: str,
        sender: int | None,
        timeout_factor: float,
    ) -> None:
        """Raise if the wait for `key` has no purpose any more: StaleAttempt if this attempt was superseded or is over, ResultExists if
        `is_unneeded` returns True, RunFailed if `sender` has failed, WaitTimeout after `timeout_factor` times the usual timeout.

        Before it reports a failed sender or a timeout, it calls `look`, which reads the key, once more, so that a key that came in between
        is not missed. Likewise if another invocation of this member is beyond `round`; without the key that is a StaleAttempt. If the whole
        attempt was superseded, it raises even if the key exists.
        """
        obsolete = self.retry(lambda: progress.is_obsolete(self.ctx))
        if obsolete:
            raise StaleAttempt(f"{self.member}, round {round}: the run was resumed, or is over: {key} is not needed")
        superseded = self.retry(lambda: self.is_superseded(round))
        cause = self.failure_of(sender)
        waited_s = self.ctx.clock() - (self.since or 0.0)
        late = waited_s > timeout_factor * wait_timeout_s(self.ctx.facts)
        if is_unneeded():
            raise ResultExists
        if not (superseded or cause or late):
            return
        try:
            self.retry(look)
        except Missing:
            if superseded:
                raise StaleAttempt(
                    f"{self.member}: all workers have finished round {round}, and {key} is deleted"
                ) from None
            whom = self._name_of(sender)
            if cause:
                raise RunFailed(
                    f"{self.member}, round {round}: {whom} failed before it stored {key}: {cause}"
                ) from None
            raise WaitTimeout(
                f"{self.member}, round {round}: waited {waited_s:.0f} s for {whom}: {key} was not stored"
            ) from None

    def _name_of(self, sender: int | None) -> str:
        """Return the name of the member `sender` for error messages, such as "worker 3" or "the supervisor"; "the workers" for None."""
        if sender is None:
            return "the workers"
        return f"worker {sender}" if sender < self.ctx.experiment.workers else "the supervisor"

    def failure_of(self, sender: int | None) -> str:
        """Return the reported error of `sender` as text, `TYPE: MESSAGE`, if it has failed for good in this attempt of the run; "" if no
        failure is reported, or if `sender` is None.
        """
        if sender is None:
            return ""
        objects, key = self.ctx.objects, self.ctx.keys.member_failure(self.attempt, sender)
        return self.retry(lambda: objects.get(key).decode() if objects.exists(key) else "")

    def roll_back_if_obsolete(self, roll_back: Callable[[], object], error: CrossoverError) -> None:
        """If this attempt was superseded or has concluded the run, call `roll_back` and raise StaleAttempt from `error`; otherwise return.

        `roll_back`: deletes what the member left, because nobody else would; it must be safe to repeat. Both calls are retried while a
        store does not answer; raises Unavailable after 60 s, or if the deadline is near.
        """
        if self.retry(lambda: progress.is_obsolete(self.ctx)):
            self.retry(roll_back)
            raise StaleAttempt(f"{self.member}: the run was resumed, or is over") from error

    def retry(self, call: Callable[[], T]) -> T:
        """Call `call` until it no longer raises Unavailable, and return its result. Raises Unavailable if its store does not answer for 60
        s, or if the deadline is near. `call`: must be safe to repeat; its other errors are raised at once.
        """
        pause = Pauses(0.01, 1.0, within_s=OUTAGE_S)
        while True:
            try:
                return call()
            except Unavailable:
                if self.ctx.remaining_s() < self.reserve_s or not pause():
                    raise
