"""The supervisor's waits end, however many of its own invocations they outlast."""

from collections.abc import Callable
from dataclasses import replace
from math import exp

import pytest

from crossover.errors import CrossoverError, RunFailed, WaitTimeout
from crossover.experiment import Exchange, Experiment, Functions, Training
from crossover.stores.clients import MemoryClients
from crossover.stores.documents import seal
from crossover.training import checkpoints, waits
from crossover.training.checkpoints import Checkpoint, Position
from crossover.training.waits import report_failure
from crossover.workflow import first_event
from crossover.workflow.context import Context, Resources, RunConfiguration
from functions.mlless import words
from functions.mlless.settings import MLLess
from functions.mlless.supervisor import Supervisor, supervise
from functions.mlless.words import StepReport, Word
from tests.clocks import Stepping
from tests.decisions import decision

EXPERIMENT = Experiment(
    name="x",
    architecture="mlless",
    workers=2,
    training=Training(epochs=3),
    exchange=Exchange(every=1),
    functions=Functions(timeout_s=10, checkpoint_every=1),  # every step begins with a checkpoint
)
LIFE_S = 40.0  # a third of the patience


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[[Context], CrossoverError]:
    """Return a function that invokes the supervisor again and again, for LIFE_S seconds each time, and returns the error that ends it."""
    monkeypatch.setattr(waits, "_FIRST_LOOK_S", 0.0)

    def live(ctx: Context) -> CrossoverError:
        """Invoke the supervisor up to twelve times, each with the event that the one before returned, and return the error that ends it.
        Fails if none does.
        """
        event = first_event("r", workers=2)
        for _ in range(12):
            with ctx.child() as own:
                own.deadline = ctx.clock() + LIFE_S
                try:
                    event = {**event, **supervise(own, event)}
                except (RunFailed, WaitTimeout) as error:
                    return error
        pytest.fail("it waits for ever")

    return live


@pytest.fixture
def ctx() -> Context:
    """Return the context of a run with two workers whose first checkpoint is stored; its clock advances by a second at each reading."""
    resources = Resources(MemoryClients(workers=2, shared_tensors=True))
    resources.facts["r"] = RunConfiguration(EXPERIMENT, "d", {"minibatches": 1}, 1, 0, 0.0)
    ctx = Context(resources, run="r", clock=Stepping(1.0))
    ctx.bus.declare(barriers=[(ctx.keys.updates, 3)])
    ctx.objects.put_new(ctx.keys.checkpoint(2, 0), checkpoints.encode(Checkpoint(Position(0), {})))
    return ctx


def report(ctx: Context, step: int, worker: int) -> None:
    """Store a worker's report on a step, as the worker does."""
    ctx.tensors[0].create(ctx.keys.report(step, worker), words.encode(StepReport(loss=1.0, samples=1)))


def test_dead_workers_are_given_up_after_the_patience_not_after_a_life(
    ctx: Context, live: Callable[[Context], CrossoverError]
) -> None:
    """The supervisor gives up silent workers after 120 s, counted over several of its invocations."""
    failure = live(ctx)
    assert isinstance(failure, RunFailed) and "no worker is left" in str(failure)
    assert 120 < ctx.clock() - 1000 < 120 + 2 * LIFE_S


def test_a_decision_that_nobody_makes_ends_the_wait(ctx: Context, live: Callable[[Context], CrossoverError]) -> None:
    """The supervisor's wait for an epoch's decision times out after 120 s, counted over its invocations."""
    report(ctx, 0, 0)
    report(ctx, 0, 1)
    failure = live(ctx)
    assert isinstance(failure, WaitTimeout) and "for the workers: runs/r/decision/000001.json" in str(failure)
    assert 120 < ctx.clock() - 1000 < 120 + 2 * LIFE_S


def test_nobody_waits_for_the_decision_of_workers_who_said_why_they_left(
    ctx: Context, live: Callable[[Context], CrossoverError]
) -> None:
    """The supervisor ends at once with the workers' own error if all have reported a failure."""
    for worker in range(2):
        report(ctx, 0, worker)
        report_failure(ctx, attempt=0, member=worker, cause=RuntimeError(f"worker {worker} is out of memory"))
    failure = live(ctx)
    assert isinstance(failure, RunFailed) and "worker 1 is out of memory" in str(failure)
    assert ctx.clock() - 1000 < LIFE_S


def test_the_wait_for_reports_is_counted_apart_from_the_one_for_the_decision(
    ctx: Context, live: Callable[[Context], CrossoverError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time spent waiting for a late decision does not shorten the following wait for the workers' reports."""
    report(ctx, 0, 0)
    report(ctx, 0, 1)
    decided = list[float]()
    exists = type(ctx.objects).get

    def get(store: object, key: str) -> bytes:
        """Read an object; two lives after the start, store the decision before it is read and note the time."""
        if key == ctx.keys.decision(1) and not decided and ctx.clock() > 1000 + 2 * LIFE_S:  # type: ignore[operator]
            decided.append(ctx.clock())
            ctx.objects.put(
                key,
                seal(decision()),
            )
        return exists(store, key)  # type: ignore[arg-type]

    monkeypatch.setattr(type(ctx.objects), "get", get)
    failure = live(ctx)
    assert isinstance(failure, RunFailed) and "no worker is left" in str(failure)
    assert 120 < ctx.clock() - decided[0] < 120 + 2 * LIFE_S


@pytest.mark.parametrize(("shrinks", "removed"), [(0.0, 1), (0.05, None)])
def test_past_its_knee_the_loss_decides_by_what_the_next_seconds_promise(
    ctx: Context, shrinks: float, removed: int | None
) -> None:
    """The supervisor removes the worker `removed` if the loss falls too slowly after its knee. `shrinks`: rate at which it falls."""
    settings = MLLess(scale_in=True, knee_window_s=10.0, knee_reduction=0.02)
    ctx.resources.facts["r"] = replace(ctx.facts, experiment=EXPERIMENT.with_settings(settings))
    with ctx.child() as own:
        supervisor = Supervisor(own, first_event("r", workers=2))
        supervisor._curve = [[1.8e9 + t, 10.0 * exp(-t) + exp(-shrinks * t)] for t in range(200)]
        supervisor._seconds = {"0": [1.0], "1": [2.0]}
        assert supervisor._worker_to_remove(Word(step=200)) == removed
