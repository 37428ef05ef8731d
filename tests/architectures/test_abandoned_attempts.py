"""A run is stopped and resumed while functions of the stopped execution are still at work: whole abandoned attempts, let go at random
moments of the next one, change nothing and leave nothing.
"""

import os
import random
import threading
from typing import Any

import pytest

from crossover.context import Context, Resources
from crossover.errors import CrossoverError
from crossover.workflow import Event, Step, execute, first_event, load
from tests.architectures.harness import FailAt, Job, every_step, small, tree_architectures

SEEDS = int(os.environ.get("CROSSOVER_ABANDONED", "20" if os.environ.get("CROSSOVER_EVERY_CALL") else "2"))
JOIN_S = 120.0


class Stopped(CrossoverError):
    """The execution was stopped: nothing of it is invoked any more."""


class Abandoned:
    """Attempt 0 is stopped at a random call. Each of its invocations stops at one of its next calls, and goes on at a random call of
    attempt 1: as functions do that run on for up to 15 minutes.
    """

    def __init__(self, job: Job, seed: int, *, calls: int) -> None:
        self._random, self._lock, self._local = random.Random(seed), threading.Lock(), threading.local()
        self._calls = calls
        self._over = False
        self._until_stop = self._random.randint(1, calls)
        self._counts = [0, 0]
        self._paused: list[tuple[int, threading.Event]] = []
        self._all = list[threading.Event]()
        self.stopped = threading.Event()
        job.clients.hook = self._hook

    def wrap(self, run: Any) -> Any:
        def invoked(step: Step, ctx: Context, event: Event) -> Event:
            attempt = event["attempt"]
            if attempt == 0 and self.stopped.is_set():
                raise Stopped(step.name)
            with self._lock:
                self._local.mine = {"attempt": attempt, "left": self._random.randint(0, 12), "held": False}
            return run(step, ctx, event)  # type: ignore[no-any-return]

        return invoked

    def _hook(self, moment: str, operation: str) -> None:
        mine = getattr(self._local, "mine", None)
        if mine is None or moment != "before":
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
            if not self.stopped.is_set() or mine["held"] or self._over:
                return
            mine["left"] -= 1
            if mine["left"] > 0:
                return
            mine["held"], resume = True, threading.Event()
            self._paused.append((self._random.randint(1, self._calls), resume))
            self._all.append(resume)
        resume.wait(timeout=JOIN_S)

    def release(self) -> None:
        with self._lock:
            self._over = True
            for resume in self._all:
                resume.set()


def abandoned_and_resumed(job: Job, seed: int, *, calls: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    architecture, run = load(job.experiment.architecture), job.prepared.run
    assert architecture.run is not None
    attempts, workers = Abandoned(job, seed, calls=calls), job.experiment.workers

    def first() -> None:
        try:
            execute(architecture.run, Context(Resources(job.clients), run=run), first_event(run, workers=workers))  # type: ignore[arg-type]
        except CrossoverError:
            pass
        finally:
            attempts.stopped.set()

    with every_step(monkeypatch, attempts.wrap):
        thread = threading.Thread(target=first, daemon=True)
        thread.start()
        attempts.stopped.wait(timeout=JOIN_S)
        try:
            if not job.clients.object_store.exists(job.prepared.keys.outcome):  # a finished run is not resumed
                event = first_event(run, workers=workers, attempt=1)
                execute(architecture.run, Context(Resources(job.clients), run=run), event)
        finally:
            attempts.release()
            thread.join(timeout=JOIN_S)
        assert not thread.is_alive()
    return job.model()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("architecture", tree_architectures())
def test_an_abandoned_attempt_changes_nothing_in_the_next_one_and_leaves_nothing(
    architecture: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, undisturbed = FailAt(0, "before"), Job(small(architecture, epochs=3))
    undisturbed.clients.hook = counter
    model = undisturbed.run()
    job = Job(small(architecture, epochs=3))
    assert abandoned_and_resumed(job, seed, calls=counter.count, monkeypatch=monkeypatch) == model
    assert job.tensor_keys() == []
    run = f"runs/{job.prepared.run}"
    assert [
        key for part in ("checkpoint", "evaluating") for key in job.clients.object_store.list(f"{run}/{part}/")
    ] == []
