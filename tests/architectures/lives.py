"""Short lives for long workers: invocations that end after some looks at the clock, and processes that die at a
chosen call.
"""

import itertools
import threading
from collections.abc import Callable

from crossover.context import Context
from crossover.workflow import Event, Step

LONG = ("train", "supervise")


class Killed(BaseException):
    """The process is gone: nothing catches this, nothing is said, nothing is cleaned up."""


class KillAt:
    """Kills at the k-th call, before or after it took effect; once."""

    def __init__(self, k: int, moment: str) -> None:
        self.k, self.moment, self.lock = k, moment, threading.Lock()
        self.calls = itertools.count(1)
        self.killed = ""

    def __call__(self, moment: str, operation: str) -> None:
        if moment != self.moment:
            return
        with self.lock:
            hit = next(self.calls) == self.k
        if hit:
            self.killed = operation
            raise Killed


def restarting(run: Callable[[Step, Context, Event], Event]) -> Callable[[Step, Context, Event], Event]:
    """What Lambda and Step Functions do about a dead process: the same event again, in a context of its own."""

    def attempt(step: Step, ctx: Context, event: Event) -> Event:
        while True:
            try:
                with ctx.child() as own:
                    return run(step, own, event)
            except Killed:
                continue

    return attempt


class ShortLives:
    """Every invocation of a long step has time for `looks` looks at the clock beyond what it reserves for leaving.

    The clock is the test's own: each look takes a second, so an invocation leaves wherever the looks run out, mostly
    in the middle of a wait.
    """

    def __init__(self, looks: int, *, reserve_s: float) -> None:
        self.looks, self.reserve_s = looks, reserve_s
        self.lock = threading.Lock()
        self.events: list[tuple[str, Event, Event]] = []  # (step, event in, event out)

    def invocations(self, step: str, worker: int) -> int:
        return sum(name == step and event["worker"] == worker for name, event, _ in self.events)

    def wrap(self, run: Callable[[Step, Context, Event], Event]) -> Callable[[Step, Context, Event], Event]:
        def attempt(step: Step, ctx: Context, event: Event) -> Event:
            if step.name not in LONG:
                return run(step, ctx, event)
            with ctx.child() as own:
                clock = _Clock()
                own.clock = clock
                own.deadline = self.looks + self.reserve_s
                result = run(step, own, event)
            with self.lock:
                self.events.append((step.name, event, result))
            return result

        return attempt


class _Clock:
    """A second per look, for one invocation."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


def hurried(seconds_per_s: float) -> Callable[[], float]:
    """A clock that runs fast, for waits that take minutes."""
    import time

    began = time.time()
    return lambda: began + (time.time() - began) * seconds_per_s
