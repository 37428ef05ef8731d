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
    """Return Step.run that treats a killed step as Lambda and Step Functions do: it runs again with the same event, in a context of its
    own.
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
    """A limit on the life of long invocations: each may read its clock `looks` times beyond the time that it reserves for leaving. The
    clock advances a second at each reading, so an invocation leaves wherever the readings run out, mostly during a wait.
    """

    def __init__(self, looks: int, *, reserve_s: float) -> None:
        self.looks, self.reserve_s = looks, reserve_s
        self.lock = threading.Lock()
        self.events: list[tuple[str, Event, Event]] = []  # (step, event in, event out)

    def invocations(self, step: str, worker: int) -> int:
        """Return how many invocations of the step a worker has had."""
        return sum(name == step and event["worker"] == worker for name, event, _ in self.events)

    def wrap(self, run: Callable[[Step, Context, Event], Event]) -> Callable[[Step, Context, Event], Event]:
        """Return Step.run with short invocations of the long steps."""

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
        self.factor, self.since_s = factor, math.inf

    def begin(self) -> None:
        """Let the clock hurry from now on."""
        self.since_s = min(self.since_s, time.time())

    def __call__(self) -> float:
        """Return the time in unix seconds by this clock."""
        now_s = time.time()
        return now_s + max(0.0, now_s - self.since_s) * (self.factor - 1)


def mortal(monkeypatch: pytest.MonkeyPatch, worker: int, clock: Hurry) -> Callable[..., Any]:
    """Return a wrapper of Step.run by which `worker` dies for good in round 3. From then on the clock hurries."""

    def wrap(run: Callable[..., Event]) -> Callable[..., Event]:
        """Return the step's function with a worker that fails in round 3."""

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
    """Return Step.run that runs every step twice and checks that both answers are equal."""

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
