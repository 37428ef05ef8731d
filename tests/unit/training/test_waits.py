"""Waits: an end for every one, and errors that say who waited in which round for what and whom."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from crossover.errors import Missing, RunFailed, StaleAttempt, Unavailable, WaitTimeout
from crossover.experiment import Exchange, Experiment, Functions, Training
from crossover.runtime import use
from crossover.stores.clients import MemoryClients
from crossover.stores.documents import seal
from crossover.training.waits import POLLING, NearDeadline, ResultExists, Waits, report_failure, wait_timeout_s
from crossover.workflow.context import Context, Resources, RunConfiguration
from tests.clocks import Passing, Stepping

EXPERIMENT = Experiment(
    name="x", architecture="all_reduce", workers=3, functions=Functions(timeout_s=10), exchange=Exchange(every=4)
)
FACTS = RunConfiguration(EXPERIMENT, "d", {"minibatches": 4}, 1, 0, 0.0)


def waits(
    *, step_s: float = 0.0, deadline: float = float("inf"), overtaken: bool = False, facts: RunConfiguration = FACTS
) -> Waits:
    """Return the waits of worker 1. `step_s`: seconds by which the clock advances at each reading; `overtaken`: whether all workers have
    finished the round.
    """
    resources = Resources(MemoryClients(workers=3))
    resources.facts["r"] = facts
    ctx = Context(resources, run="r", deadline=deadline, clock=Stepping(step_s))
    return Waits(ctx, "worker 1", 0, lambda round: overtaken)


def never() -> Any:
    """Raise Missing: the object never comes."""
    raise Missing("k")


def test_a_wait_ends_and_says_who_waited_for_whom_and_what() -> None:
    """A wait that takes too long raises WaitTimeout with the worker, round, sender and key, and keeps its beginning."""
    waiting = waits(step_s=5.0)
    with pytest.raises(WaitTimeout, match=r"worker 1, round 4: waited \d+ s for worker 2: the/key was not stored"):
        waiting.wait_for(never, round=4, key="the/key", sender=2)
    assert waiting.since is not None


def test_a_wait_goes_on_in_the_next_invocation() -> None:
    """A wait whose beginning was restored from an earlier invocation ends by the time since then."""
    waiting = waits()
    waiting.since = waiting.ctx.clock() - wait_timeout_s(FACTS) - 1
    with pytest.raises(WaitTimeout):
        waiting.wait_for(never, round=4, key="k", sender=2)


def test_the_deadline_comes_before_the_end_of_the_wait() -> None:
    """A wait near its invocation's deadline raises NearDeadline with more than a second left."""
    waiting = waits(step_s=0.1, deadline=1010.0)
    with pytest.raises(NearDeadline):
        waiting.wait_for(never, round=4, key="k", sender=2)
    assert waiting.ctx.remaining_s() > 1.0, "there is time to leave in order"


def test_what_came_while_evidence_was_gathered_counts() -> None:
    """A wait returns what appeared while it checked whether to give up."""
    there = []
    waiting = waits()
    waiting.is_superseded = lambda round: bool(there.append(round)) or True

    def look() -> str:
        """Return "found" once the check was made, else raise Missing."""
        return "found" if there else never()

    assert waiting.wait_for(look, round=4, key="k", sender=2) == "found"


@pytest.mark.parametrize(
    ("how", "sender", "settled", "error", "words"),
    [
        ({"overtaken": True}, 2, False, StaleAttempt, "worker 1: all workers have finished round 4, and k is deleted"),
        # A wait that must end at once has not asked before.
        (
            {"overtaken": True, "deadline": 1001.0},
            2,
            False,
            StaleAttempt,
            "worker 1: all workers have finished round 4",
        ),
        ({}, 2, True, ResultExists, None),  # not needed any more
        ({"step_s": 5.0}, 3, False, WaitTimeout, "for the supervisor: k"),
    ],
)
def test_what_a_wait_ends_with(
    how: dict[str, Any], sender: int, settled: bool, error: type[BaseException], words: str | None
) -> None:
    """A wait without result raises `error` with `words`. `how`: settings of the waits; `sender`: who is awaited; `settled`: result not
    needed.
    """
    with pytest.raises(error, match=words):
        waits(**how).wait_for(never, round=4, key="k", sender=sender, is_unneeded=lambda: settled)


def test_a_finished_run_makes_every_attempt_late() -> None:
    """A wait raises StaleAttempt if the run has an outcome."""
    waiting = waits()
    waiting.ctx.objects.put(waiting.ctx.keys.outcome, seal({"attempt": 0}))
    with pytest.raises(StaleAttempt):
        waiting.wait_for(never, round=4, key="k", sender=2)


@pytest.mark.parametrize(
    ("attempt", "error", "words"),
    [
        (0, RunFailed, "worker 1, round 4: worker 2 failed before it stored k: RuntimeError: out of memory"),
        (7, WaitTimeout, "waited"),  # failures of another attempt do not count
    ],
)
def test_who_left_for_good_is_not_waited_for(attempt: int, error: type[BaseException], words: str) -> None:
    """A wait for a worker that failed raises RunFailed with its cause; a failure of another attempt does not count."""
    waiting = waits(step_s=5.0)
    report_failure(waiting.ctx, attempt=attempt, member=2, cause=RuntimeError("out of memory"))
    with pytest.raises(error, match=words):
        waiting.wait_for(never, round=4, key="k", sender=2)


def test_what_was_settled_while_evidence_was_gathered_is_not_over_for_everybody() -> None:
    """A wait raises ResultExists, not StaleAttempt, if its result became unneeded while it checked whether to give up."""
    there: list[int] = []
    waiting = waits()
    waiting.is_superseded = lambda round: bool(there.append(round)) or True

    with pytest.raises(ResultExists):
        waiting.wait_for(never, round=4, key="k", sender=2, is_unneeded=lambda: bool(there))


# --- how often it looks -----------------------------------------------------------------------------------------------


@pytest.fixture
def passing() -> Iterator[Passing]:
    """Yield the process's clock, which passes only when something sleeps."""
    with use(found := Passing()):
        yield found


def there_at(passing: Passing, seconds: float) -> Callable[[], str]:
    """Return a look that finds the object from this second on, and raises Missing before."""

    def look() -> str:
        """Return the object, or raise Missing before its second."""
        if passing.now_s < seconds:
            raise Missing("k")
        return "found"

    return look


@pytest.mark.parametrize(
    ("channel", "waited_s", "pause_s"),
    [
        ("redis", 0.0, 0.0005),
        ("redis", 0.1, 0.005),
        ("redis", 60.0, 0.05),
        ("s3", 0.0, 0.02),
        ("s3", 1.0, 0.1),
        ("s3", 60.0, 0.5),
    ],
)
def test_looks_become_rarer_with_the_time_waited(
    channel: str, waited_s: float, pause_s: float, passing: Passing
) -> None:
    """The pause between looks grows with the time waited. `pause_s`: expected pause after `waited_s` on the channel."""
    pause = POLLING[channel].pauses()
    passing.now_s += waited_s
    assert pause() and passing.slept_s == [pytest.approx(pause_s)]


@pytest.mark.parametrize("comes_s", [0.001, 0.03, 0.4, 5.0])
def test_what_comes_is_found_a_twentieth_of_the_wait_late_at_most(comes_s: float, passing: Passing) -> None:
    """A wait finds what comes at most 5 % of the waiting time later, with less than 200 looks. `comes_s`: when it comes."""
    waiting = waits()
    assert waiting.wait_for(there_at(passing, comes_s), round=4, key="k", sender=2) == "found"
    assert waiting.since is None
    assert passing.now_s - comes_s <= max(0.0005, 0.05 * comes_s) + 1e-9
    assert len(passing.slept_s) < 200, "no busy waiting"


def test_a_key_beside_the_channel_has_pauses_of_its_own(passing: Passing) -> None:
    """A wait for a key in S3 has S3's longer pauses."""
    waits().wait_for(there_at(passing, 1.0), round=4, key="k", sender=2, channel="s3")
    assert min(passing.slept_s) == 0.02 and len(passing.slept_s) < 40


def test_whether_waiting_has_a_point_is_asked_soon_and_then_every_few_seconds(passing: Passing) -> None:
    """A wait checks whether to give up after 0.2 to 0.3 s, and later at least every 5.1 s."""
    asked_s = list[float]()
    waiting = waits()
    waiting.is_superseded = lambda round: bool(asked_s.append(passing.now_s))
    waiting.wait_for(there_at(passing, 60.0), round=4, key="k", sender=2)
    assert 0.2 <= asked_s[0] <= 0.3
    apart_s = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert all(0.2 <= each <= 5.1 for each in apart_s) and apart_s[-1] > 4.9
    assert len(asked_s) < 25


def test_an_outage_is_waited_out_for_a_minute(passing: Passing) -> None:
    """A call is tried again while its store is unavailable, for a minute at most; then the store's error is raised."""

    def call(back_s: float) -> str:
        """Raise Unavailable until the clock shows `back_s`."""
        if passing.now_s < back_s:
            raise Unavailable("connection refused")
        return "done"

    assert waits().retry(lambda: call(20.0)) == "done"
    back_s = passing.now_s
    assert back_s < 22
    with pytest.raises(Unavailable, match="connection refused"):
        waits().retry(lambda: call(1e9))
    assert passing.now_s - back_s == pytest.approx(60)
    assert max(passing.slept_s) == 1.0


def test_near_the_deadline_an_outage_is_passed_on_at_once(passing: Passing) -> None:
    """A store's outage near the invocation's deadline is raised without a retry."""

    def call() -> None:
        """Raise Unavailable."""
        raise Unavailable("down")

    with pytest.raises(Unavailable):
        waits(deadline=1001.0).retry(call)
    assert passing.now_s == 0.0


SEVERAL = replace(EXPERIMENT, exchange=Exchange(every=12, what="model"), training=Training(epochs=6))


@pytest.mark.parametrize(
    ("experiment", "timeout_factor", "times"),
    [(EXPERIMENT, 0.5, 0.5), (EXPERIMENT, 1.0, 1.0), (EXPERIMENT, 3.0, 3.0), (SEVERAL, 1.0, 3.0)],
    ids=["half", "usual", "three", "a straggler in each epoch of a round"],
)
def test_the_timeout_is_a_multiple_of_the_usual_one(
    experiment: Experiment, timeout_factor: float, times: float, passing: Passing
) -> None:
    """A wait ends after `times` the usual timeout: `timeout_factor` times the number of epochs in a round."""
    waiting = waits(facts=replace(FACTS, experiment=experiment))
    waiting.ctx.clock = passing.monotonic
    passing.now_s = 1.0
    with pytest.raises(WaitTimeout):
        waiting.wait_for(never, round=1, key="k", sender=2, timeout_factor=timeout_factor)
    assert 0 <= passing.now_s - 1.0 - times * wait_timeout_s(FACTS) <= 5.1
