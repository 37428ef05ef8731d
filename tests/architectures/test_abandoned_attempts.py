"""A run is stopped and resumed while functions and programs of the stopped attempt are still at work: whole abandoned attempts, let go at
random moments of the next one, change nothing and leave nothing.
"""

import itertools
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from crossover.architecture import load, steps
from crossover.context import Context, Resources
from crossover.errors import CrossoverError, StaleAttempt
from crossover.experiment import Experiment
from crossover.keys import Keys
from crossover.training import agreement, attempts
from crossover.workflow import Event, Step, first_event
from tests.architectures.fleet import Fleet, Late, only, writes
from tests.architectures.harness import READS, Hook, Job, claiming, every_step, most_to_lose, small, tree_architectures
from tests.architectures.trained import trained
from tests.sampling import WHOLE, chosen

FEW_WRITES = 3  # of a step that are tried, unless every one is
JOIN_S = 120.0


class Stopped(CrossoverError):
    """The execution was stopped: nothing of it is invoked any more."""


class Abandoned:
    """Attempt 0 is stopped at a random call. Each of its invocations, and each of its programs, stops at one of its next calls, and goes on
    at a random call of attempt 1: as functions do that run on for up to 15 minutes, and instances that take their time to end.
    """

    def __init__(self, job: Job, seed: int, *, calls: int) -> None:
        self._random, self._lock, self._local = random.Random(seed), threading.Lock(), threading.local()
        self._calls = calls
        self._over = False
        self._until_stop = self._random.randint(1, calls)
        self._counts = [0, 0]
        self._paused: list[tuple[int, threading.Event]] = []
        self._all = list[threading.Event]()
        self.stopped, self.resumed = threading.Event(), threading.Event()
        job.clients.hook = lambda moment, operation: self._called(getattr(self._local, "mine", None), moment, operation)

    def executing(self, run: Any) -> Any:
        """Step.run of executions: one that is stopped invokes nothing any more, and what it has invoked may be held up."""

        def executed(step: Step, ctx: Context, event: Event) -> Event:
            if event["attempt"] == 0 and self.stopped.is_set():
                raise Stopped(step.name)
            return self._invoked(run, step, ctx, event, attempt=event["attempt"])

        return executed

    def serving(self, run: Any) -> Any:
        """Step.run of programs' functions, whose executions are not stopped; those begun before the run was resumed may be held up."""
        return lambda step, ctx, event: self._invoked(run, step, ctx, event, attempt=int(self.resumed.is_set()))

    def _invoked(self, run: Any, step: Step, ctx: Context, event: Event, *, attempt: int) -> Event:
        with self._lock:
            self._local.mine = self._subject(attempt)
        return run(step, ctx, event)  # type: ignore[no-any-return]

    def program(self, attempt: int) -> Hook:
        """What is told of every call of a program that was started for that attempt."""
        mine = self._subject(attempt)
        return lambda moment, operation: self._called(mine, moment, operation)

    def _subject(self, attempt: int) -> dict[str, Any]:
        """Half of them stop at a write only: what one looked up before it may be no longer true then."""
        writes = self._random.random() < 0.5
        resume = threading.Event()
        resume.set()
        left = self._random.randint(0, 3 if writes else 12)
        return {"attempt": attempt, "left": left, "writes": writes, "held": False, "resume": resume}

    def _called(self, mine: dict[str, Any] | None, moment: str, operation: str) -> None:
        if mine is None or moment != "before":
            return
        if threading.current_thread().name.startswith("heart"):
            mine["resume"].wait(timeout=JOIN_S)  # a program that is held up shows no life
            return
        with self._lock:
            self._counts[mine["attempt"]] += 1
            if mine["attempt"]:
                for at, resume in self._paused:
                    if self._counts[1] >= at:
                        resume.set()
                return
            if self._counts[0] >= self._until_stop:
                self.stopped.set()
            if not self.stopped.is_set() or mine["held"] or self._over or (mine["writes"] and operation in READS):
                return
            mine["left"] -= 1
            if mine["left"] > 0:
                return
            mine["held"], resume = True, mine["resume"]
            resume.clear()
            self._paused.append((self._random.randint(1, 2 * self._calls), resume))  # beyond its calls: when it is over
            self._all.append(resume)
        resume.wait(timeout=JOIN_S)

    def release(self) -> None:
        with self._lock:
            self._over = True
            for resume in self._all:
                resume.set()


def executions(job: Job, attempts: Abandoned, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree's: the first execution, stopped, and the one that goes on with its run."""

    def first() -> None:
        with suppress(CrossoverError):
            job.execute()
        attempts.stopped.set()

    with every_step(monkeypatch, attempts.executing):
        thread = threading.Thread(target=first, daemon=True)
        thread.start()
        attempts.stopped.wait(timeout=JOIN_S)
        try:
            resume(job)
        finally:
            attempts.release()
            thread.join(timeout=JOIN_S)
        assert not thread.is_alive()
    assert_nothing_left(job)


def resume(job: Job) -> None:
    """A run that is not finished; where it has its outcome, the attempt clears away and gives way."""
    store, keys = job.clients.object_store, job.prepared.keys
    if store.exists(keys.finished):
        return
    try:
        job.execute(attempt=1)
    except StaleAttempt:
        if not store.exists(keys.outcome):
            raise


def assert_nothing_left(job: Job) -> None:
    assert job.tensor_keys() == []
    assert job.queues() == {}
    assert job.object_keys("checkpoint", "evaluating") == []


def programs(job: Job, attempts: Abandoned, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fleet's, which is told to end, and the next one's. The functions that a program has started are not stopped."""
    workers = job.experiment.workers
    fleet = Fleet(job, hooks=lambda number: attempts.program(0 if number < workers else 1))
    with every_step(monkeypatch, attempts.serving):
        fleet.begin(monkeypatch)
        fleet.attempt()
        while not attempts.stopped.wait(timeout=0.01) and any(thread.is_alive() for thread in list(fleet.threads)):
            pass  # until it is stopped, or through before that
        try:
            if not job.clients.object_store.exists(job.prepared.keys.outcome):
                attempts.resumed.set()
                fleet.attempt()
                fleet.await_end()
        finally:
            attempts.release()
            fleet.join()
    assert_clean(fleet)


def assert_clean(fleet: Fleet) -> None:
    assert not any(thread.is_alive() for thread in fleet.threads)
    assert fleet.errors == []
    assert fleet.left_behind() == []
    assert fleet.job.queues() == {}


def experiment(architecture: str, *, local_steps: bool = False) -> Experiment:
    """Programs run longer than the few rounds that they would have by default, so that some are stopped in the middle."""
    found = small(
        architecture, epochs=3, **({} if architecture in tree_architectures() else {"every": 1, "batch_size": 10})
    )
    exchange = most_to_lose(architecture, every=found.exchange.every or "epoch") if local_steps else None
    return replace(found, exchange=exchange or found.exchange)


class LateStep:
    """The first invocation of a step stops at its k-th write until the next attempt is over; nothing follows it in its own."""

    def __init__(self, job: Job, step: str, k: int) -> None:
        self.step, self.k = step, k
        self.stopped, self.over = threading.Event(), threading.Event()
        self._first, self._local = threading.Lock(), threading.local()
        job.clients.hook = self._called

    def wrap(self, run: Any) -> Any:
        def invoked(step: Step, ctx: Context, event: Event) -> Event:
            if event["attempt"] == 0 and self.stopped.is_set():
                raise Stopped(step.name)
            if step.name == self.step and self._first.acquire(blocking=False):
                self._local.writes = 0
            return run(step, ctx, event)  # type: ignore[no-any-return]

        return invoked

    def _called(self, moment: str, operation: str) -> None:
        if moment == "before" and operation not in READS and hasattr(self._local, "writes"):
            self._local.writes += 1
            if self._local.writes == self.k:
                self.stopped.set()
                self.over.wait(timeout=JOIN_S)


def steps_of_trees() -> list[tuple[str, str]]:
    return [(name, step.name) for name in tree_architectures("survives_kills") for step in steps(load(name))]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "step"), steps_of_trees())
def test_a_step_that_goes_on_when_the_resumed_run_is_over_leaves_nothing(
    architecture: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever write it was held up."""
    for k in itertools.count(1):
        job = Job(experiment(architecture))
        late = LateStep(job, step, k)
        if not resumed_beside(job, late, monkeypatch) or (k == FEW_WRITES and not WHOLE):
            break
        assert_nothing_left(job)
        assert job.model() == trained(experiment(architecture)).model, f"write {k}"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", tree_architectures("survives_kills"))
def test_what_the_next_attempt_is_yet_to_take_over_stays(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt finds itself overtaken, and takes back what it wrote, before the one that has begun has read anything of it."""
    step = "update_model" if architecture == "spirt" else "train"
    for k in (9, 13, 17) if WHOLE else (13,):
        job = Job(experiment(architecture))
        assert resumed_beside(job, LateStep(job, step, k), monkeypatch, goes_on_at_once=True)
        assert_nothing_left(job)
        assert job.model() == trained(experiment(architecture)).model, f"write {k}"


def resumed_beside(job: Job, late: LateStep, monkeypatch: pytest.MonkeyPatch, *, goes_on_at_once: bool = False) -> bool:
    """Whether the first attempt was stopped at all; the second one then ran to its end, and the late step after it, or with
    `goes_on_at_once` when the second one had begun and done nothing more.
    """
    ended = threading.Event()

    def first() -> None:
        with suppress(CrossoverError):
            job.execute()
        ended.set()

    def begun(ctx: Context) -> list[Keys]:
        lower = begin(ctx)
        if lower and goes_on_at_once:
            late.over.set()
            thread.join(timeout=JOIN_S)
        return lower

    with every_step(monkeypatch, late.wrap), monkeypatch.context() as patch:
        begin = attempts.begin
        patch.setattr(attempts, "begin", begun)
        thread = threading.Thread(target=first, daemon=True)
        thread.start()
        while not late.stopped.wait(timeout=0.01) and not ended.is_set():
            pass
        held = late.stopped.is_set() and not job.clients.object_store.exists(job.prepared.keys.finished)
        try:
            if held:
                resume(job)
        finally:
            late.over.set()
            thread.join(timeout=JOIN_S)
        assert not thread.is_alive()
    return held


@pytest.mark.slow
@pytest.mark.parametrize("architecture", tree_architectures("survives_kills"))
def test_an_attempt_that_has_begun_to_train_goes_on_though_one_before_it_concludes_the_run(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first step may come again after that, and is not to clear away beside its own workers."""
    job = Job(experiment(architecture))
    first, begun = steps(load(architecture))[0], list[Event]()

    def again() -> Event:
        event = first_event(job.prepared.run, workers=job.experiment.workers, attempt=1)
        return first.run(Context(Resources(job.clients), run=job.prepared.run), event)

    def concluded(*arguments: Any) -> None:
        if not begun:
            begun.append(again())
        conclude(*arguments)

    conclude = agreement.conclude
    monkeypatch.setattr(agreement, "conclude", concluded)
    job.execute()
    assert again() == begun[0]
    assert not job.clients.object_store.exists(job.prepared.keys.finished)
    job.execute(attempt=1)
    assert job.clients.object_store.exists(job.prepared.keys.finished)
    assert_nothing_left(job)
    assert job.model() == trained(experiment(architecture)).model


def program_architectures() -> list[str]:
    return [name for name in claiming("survives_kills") if name not in tree_architectures()]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", program_architectures())
def test_a_program_that_wakes_up_when_the_resumed_run_is_over_leaves_nothing(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever write it was held up: between looking whether it still holds its rank, and writing."""
    run = trained(experiment(architecture))
    for k in chosen(writes(run.calls)):
        job, late = Job(experiment(architecture)), Late(k, reads=False)
        fleet = Fleet(job, hooks=only(0, late))
        with monkeypatch.context() as patch:
            fleet.begin(patch)
            fleet.attempt()
            while not late.stopped.wait(timeout=0.01) and any(thread.is_alive() for thread in list(fleet.threads)):
                pass
            try:
                if not job.clients.object_store.exists(job.prepared.keys.outcome):  # a finished run is not resumed
                    fleet.attempt()
                    fleet.await_end()
            finally:
                late.over.set()
                fleet.join()
        assert_clean(fleet)
        assert job.model() == run.model, f"write {k}"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(20 if WHOLE else 2))
@pytest.mark.parametrize("architecture", claiming("survives_kills"))
def test_an_abandoned_attempt_changes_nothing_in_the_next_one_and_leaves_nothing(
    architecture: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = experiment(architecture, local_steps=seed % 2 == 1)
    run, job = trained(tried), Job(tried)
    attempts = Abandoned(job, seed, calls=run.all_calls)
    abandon: Callable[..., None] = executions if architecture in tree_architectures() else programs
    abandon(job, attempts, monkeypatch)
    assert job.model() == run.model
