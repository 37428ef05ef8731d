"""A run is stopped and resumed while functions and programs of the stopped attempt are still at work: they change nothing, leave nothing.

One real case of every architecture; tests/chaos resumes at every other moment.
"""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from crossover.errors import CrossoverError, StaleAttempt
from crossover.experiment import Experiment
from crossover.training import progress
from crossover.workflow import Event, Step, first_event
from crossover.workflow.architecture import load, steps
from crossover.workflow.context import Context, Resources
from tests.architectures.fleet import Fleet
from tests.architectures.harness import READS, Hook, Job, claiming, every_step, small, tree_architectures
from tests.architectures.trained import trained

JOIN_S = 120.0


class Stopped(CrossoverError):
    """The error in a step that is invoked after its execution was stopped."""


class Abandoned:
    """A source of delays that stops attempt 0 at a random call. Each of its invocations and programs is then held up at one of its next
    calls, and continues at a random call of attempt 1, as functions and instances do that run on after the stop. `stopped`: set at the
    stop; `resumed`: to be set when attempt 1 begins; `calls`: calls of an undisturbed run.
    """

    def __init__(self, job: Job, seed: int, *, calls: int) -> None:
        """Choose the call at which attempt 0 is stopped, and watch all calls of the job's clients. `seed`: of the random choices; `calls`:
        number of calls of an undisturbed run.
        """
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
        """Return what replaces Step.run in executions: a step of the first attempt raises Stopped once that attempt is stopped, and the
        calls of any step may be held up.
        """

        def executed(step: Step, ctx: Context, event: Event) -> Event:
            """Run the step as an invocation of its attempt. Raises Stopped for attempt 0 after the stop."""
            if event["attempt"] == 0 and self.stopped.is_set():
                raise Stopped(step.name)
            return self._invoked(run, step, ctx, event, attempt=event["attempt"])

        return executed

    def serving(self, run: Any) -> Any:
        """Return what replaces Step.run where programs invoke functions. Those functions are never stopped; the calls of one that began
        before the run was resumed may be held up.
        """
        return lambda step, ctx, event: self._invoked(run, step, ctx, event, attempt=int(self.resumed.is_set()))

    def _invoked(self, run: Any, step: Step, ctx: Context, event: Event, *, attempt: int) -> Event:
        """Run the step, with the calls of this thread counted for a new invocation of that attempt."""
        with self._lock:
            self._local.mine = self._subject(attempt)
        return run(step, ctx, event)  # type: ignore[no-any-return]

    def program(self, attempt: int) -> Hook:
        """Return the hook for all calls of a program that is started for this attempt."""
        mine = self._subject(attempt)
        return lambda moment, operation: self._called(mine, moment, operation)

    def _subject(self, attempt: int) -> dict[str, Any]:
        """Return the state of a new invocation or program: its attempt, how many calls it still makes before it is held up, and whether it
        is held up only before writes. That is so for half of them, because what was checked before a write may no longer be true then.
        """
        writes = self._random.random() < 0.5
        resume = threading.Event()
        resume.set()
        left = self._random.randint(0, 3 if writes else 12)
        return {"attempt": attempt, "left": left, "writes": writes, "held": False, "resume": resume}

    def _called(self, mine: dict[str, Any] | None, moment: str, operation: str) -> None:
        """Count a call of the invocation or program `mine`, and hold it up if it is due. Calls of attempt 1 let due ones of attempt 0
        continue. A heartbeat is held up together with its program.
        """
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
        """Let all calls that are held up continue, and hold up none any more."""
        with self._lock:
            self._over = True
            for resume in self._all:
                resume.set()


def executions(job: Job, attempts: Abandoned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a tree of steps until its first execution is stopped, resume the run in another execution, and then release the calls that were
    held up.
    """

    def first() -> None:
        """Run the first execution until it ends, however it ends, and mark it as stopped."""
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
    """Resume the run as attempt 1, unless it has its finished marker. An attempt that gives way as a stale one is accepted if the run has
    an outcome.
    """
    store, keys = job.clients.object_store, job.prepared.keys
    if store.exists(keys.finished_marker):
        return
    try:
        job.execute(attempt=1)
    except StaleAttempt:
        if not store.exists(keys.outcome):
            raise


def assert_nothing_left(job: Job) -> None:
    """Check that the run has left no tensors, queues, checkpoints or evaluation claims."""
    assert job.tensor_keys() == []
    assert job.queues() == {}
    assert job.object_keys("checkpoint", "evaluating") == []


def programs(job: Job, attempts: Abandoned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an architecture of programs until its first fleet is stopped, start the next fleet unless the run has an outcome by then, and
    release the calls that were held up. Functions which the first fleet's programs have started are not stopped.
    """
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
    """Check that all programs have ended without errors, and that the run has left nothing behind."""
    assert not any(thread.is_alive() for thread in fleet.threads)
    assert fleet.errors == []
    assert fleet.left_behind() == []
    assert fleet.job.queues() == {}


def experiment(architecture: str) -> Experiment:
    """Return a small experiment of the architecture with three epochs. Programs get more rounds than by default, so that some are stopped
    in the middle.
    """
    longer: dict[str, Any] = {} if architecture in tree_architectures() else {"every": 1, "batch_size": 10}
    return small(architecture, epochs=3, **longer)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", tree_architectures("survives_kills"))
def test_an_attempt_that_has_begun_to_train_goes_on_though_one_before_it_concludes_the_run(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that attempt 1, begun just before attempt 0 concludes the run, can begin again afterwards and train to the same model.

    Its repeated first step must not delete what its own workers use.
    """
    job = Job(experiment(architecture))
    first, begun = steps(load(architecture))[0], list[Event]()

    def again() -> Event:
        """Run the first step of attempt 1, and return its result."""
        event = first_event(job.prepared.run, workers=job.experiment.workers, attempt=1)
        return first.run(Context(Resources(job.clients), run=job.prepared.run), event)

    def concluded(*arguments: Any) -> None:
        """Conclude the run; at the first call begin attempt 1 before that."""
        if not begun:
            begun.append(again())
        conclude(*arguments)

    conclude = progress.store_outcome
    monkeypatch.setattr(progress, "store_outcome", concluded)
    job.execute()
    assert again() == begun[0]
    assert not job.clients.object_store.exists(job.prepared.keys.finished_marker)
    job.execute(attempt=1)
    assert job.clients.object_store.exists(job.prepared.keys.finished_marker)
    assert_nothing_left(job)
    assert job.model() == trained(experiment(architecture)).model


@pytest.mark.slow
@pytest.mark.parametrize("architecture", claiming("survives_kills"))
def test_an_abandoned_attempt_changes_nothing_in_the_next_one_and_leaves_nothing(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop a run at a random call, resume it while calls of the stopped attempt still take effect, and check that the model equals that of
    an undisturbed run.
    """
    tried = experiment(architecture)
    run, job = trained(tried), Job(tried)
    attempts = Abandoned(job, seed=0, calls=run.all_calls)
    abandon: Callable[..., None] = executions if architecture in tree_architectures() else programs
    abandon(job, attempts, monkeypatch)
    assert job.model() == run.model
