"""Long workers agree after each epoch by one evaluation: what becomes of it when who evaluates dies."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from crossover.errors import RunFailed
from crossover.experiment import Experiment, Functions
from crossover.training import long_worker, progress
from crossover.workflow.context import Context
from tests.architectures.harness import Job, Killed, every_step, small
from tests.architectures.lives import Hurry, restarting

LONG = ["all_reduce", "scatter_reduce", "mlless"]
EPOCHS = 3


def experiment(architecture: str) -> Experiment:
    """Return an experiment of three workers with checkpoints every two rounds and a timeout of 10 s."""
    found = small(architecture, workers=3, epochs=EPOCHS)
    return replace(found, functions=Functions(checkpoint_every=2, timeout_s=10))


@contextmanager
def evaluations(
    monkeypatch: pytest.MonkeyPatch, *, first: Callable[[int], None] = lambda worker: None
) -> Iterator[list[int]]:
    """Yield a list that grows by each worker that begins an evaluation. `first`: called with the worker within the very
    first evaluation.
    """
    local, lock, begun = threading.local(), threading.Lock(), list[int]()
    evaluate = progress.evaluate

    def watched(ctx: Context) -> Any:
        """Record the worker of this thread, call `first` with it, and evaluate."""
        with lock:
            begun.append(local.worker)
        first(local.worker)
        return evaluate(ctx)

    def known(run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for Step.run that remembers the worker of each thread."""

        def attempt(step: Any, ctx: Context, event: Any) -> Any:
            """Remember the step's worker for this thread, and run the step."""
            local.worker = event["worker"]
            return run(step, ctx, event)

        return attempt

    with every_step(monkeypatch, known):
        monkeypatch.setattr(progress, "evaluate", watched)
        yield begun


@pytest.mark.slow
@pytest.mark.parametrize("architecture", LONG)
def test_one_worker_evaluates_for_all(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that each epoch is evaluated once, by one worker, and that no claim to evaluate is left."""
    job = Job(experiment(architecture))
    with evaluations(monkeypatch) as begun:
        job.run()
    assert len(begun) == EPOCHS
    assert job.clients.object_store.list(job.prepared.keys.evaluations) == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", LONG)
def test_who_dies_evaluating_does_so_again(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a worker killed within its evaluation evaluates again after its restart, with the same model at the end."""
    died = list[int]()

    def die(worker: int) -> None:
        """Kill the first worker that evaluates, once."""
        if not died:
            died.append(worker)
            raise Killed

    undisturbed, job = Job(experiment(architecture)).run(), Job(experiment(architecture))
    with evaluations(monkeypatch, first=die) as begun, every_step(monkeypatch, restarting):
        assert job.run() == undisturbed
    assert begun[0] == begun[1] == died[0] and len(begun) == EPOCHS + 1


@pytest.mark.slow
def test_who_dies_evaluating_for_good_is_replaced_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that if MLLess's evaluating worker dies at every try, another worker evaluates, the supervisor removes the dead one, and the
    run continues without it.
    """
    job, dead, clock = Job(experiment("mlless")), list[int](), Hurry(60)

    def die(worker: int) -> None:
        """Let the first worker that evaluates fail at every try, and let the clock hurry from then on."""
        if not dead or worker in dead:
            dead[:] = [worker]
            clock.begin()
            raise RunFailed("gone without a word")

    monkeypatch.setattr(long_worker, "report_failure", lambda *arguments, **named: None)
    with evaluations(monkeypatch, first=die) as begun:
        job.execute(clock=clock)
    assert len(job.decisions()) == EPOCHS
    assert begun.count(dead[0]) == 1 and len(set(begun)) > 1
    assert job.tensor_keys() == []
