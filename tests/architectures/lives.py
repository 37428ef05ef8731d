"""Short lives for long workers: invocations that end after some looks at the clock, and processes that begin anew."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from crossover.errors import Unavailable
from crossover.workflow import Event, Step
from crossover.workflow.context import Context
from tests.architectures.harness import Killed
from tests.clocks import Stepping

LONG = ("train", "supervise")


def restarting(run: Callable[[Step, Context, Event], Event]) -> Callable[[Step, Context, Event], Event]:
    """Return a replacement for `run`, the function Step.run, that repeats a killed step as Lambda and Step Functions do: with the same
    event, in a new context.
    """

    def attempt(step: Step, ctx: Context, event: Event) -> Event:
        """Run the step; whenever its process is killed, run it again in a new context."""
        while True:
            try:
                with ctx.child() as own:
                    return run(step, own, event)
            except Killed:
                continue

    return attempt


class ShortLives:
    """A limit on the life of long invocations: each may read its clock `looks` times beyond the time `reserve_s` that it reserves for
    leaving. The clock advances a second at each reading, so an invocation leaves wherever the readings run out. `events`: (step, event,
    result) of each ended invocation.
    """

    def __init__(self, looks: int, *, reserve_s: float) -> None:
        """Start without events. `looks`: how often an invocation may read its clock; `reserve_s`: seconds before its deadline at which an
        invocation leaves.
        """
        self.looks, self.reserve_s = looks, reserve_s
        self.lock = threading.Lock()
        self.events: list[tuple[str, Event, Event]] = []  # (step, event in, event out)

    def invocations(self, step: str, worker: int) -> int:
        """Return how many invocations of the step by a worker have ended."""
        return sum(name == step and event["worker"] == worker for name, event, _ in self.events)

    def wrap(self, run: Callable[[Step, Context, Event], Event]) -> Callable[[Step, Context, Event], Event]:
        """Return a replacement for `run`, the function Step.run, that shortens the invocations of the steps in LONG."""

        def attempt(step: Step, ctx: Context, event: Event) -> Event:
            """Run a long step with a clock and deadline of its own, and record its event and result."""
            if step.name not in LONG:
                return run(step, ctx, event)
            with ctx.child() as own:
                own.clock = Stepping(1.0)
                own.deadline = own.clock() + self.looks + self.reserve_s
                result = run(step, own, event)
            with self.lock:
                self.events.append((step.name, event, result))
            return result

        return attempt


class Hurry:
    """A clock that runs `factor` times as fast once `begin` was called. It shortens waits for dead workers, but not waits for workers that
    start slowly.
    """

    def __init__(self, factor: float) -> None:
        """Start as an ordinary clock. `factor`: how many times as fast it runs after `begin`."""
        self.factor, self.since_s = factor, math.inf

    def begin(self) -> None:
        """Let the clock hurry from now on."""
        self.since_s = min(self.since_s, time.time())

    def __call__(self) -> float:
        """Return the time in unix seconds by this clock."""
        now_s = time.time()
        return now_s + max(0.0, now_s - self.since_s) * (self.factor - 1)


def mortal(monkeypatch: pytest.MonkeyPatch, worker: int, clock: Hurry) -> Callable[..., Any]:
    """Return a function that wraps Step.run so that every training invocation of `worker` fails with Unavailable in round 3. From the first
    such failure on the clock hurries.
    """

    def wrap(run: Callable[..., Event]) -> Callable[..., Event]:
        """Return the replacement for `run`."""

        def attempt(step: Step, ctx: Context, event: Event) -> Event:
            """Run the step; if it is the chosen worker's training, let it fail in round 3."""
            if step.name == "train" and event["worker"] == worker:
                compute = ctx.learner.compute_gradient

                def until_round_3(*arguments: Any, **where: Any) -> float:
                    """Compute a gradient; in round 3 start the fast clock and raise Unavailable instead."""
                    if where["round"] == 3:
                        clock.begin()
                        raise Unavailable("no memory, no process")
                    return compute(*arguments, **where)

                monkeypatch.setattr(ctx.learner, "compute_gradient", until_round_3)
            return run(step, ctx, event)

        return attempt

    return wrap


def twice(run: Callable[..., Event]) -> Callable[..., Event]:
    """Return a replacement for `run`, the function Step.run, that runs every step twice and checks that both results are equal."""

    def both(step: Step, ctx: Context, event: Event) -> Event:
        """Run the step twice, and return the second result. Fails if the two results differ."""
        with ctx.child() as own:
            first = run(step, own, event)
        second = run(step, ctx, event)
        if first.get("synchronised", True):  # else the others may have come since
            assert {**first, "since": ""} == {**second, "since": ""}, (
                f"{step.name} answered differently the second time"
            )
        return second

    return both
