"""Who evaluates at the end of an epoch: the first long worker there, and another one should it not come to an end."""

import json

import pytest

from crossover.experiment import Exchange, Experiment, Functions, Training
from crossover.stores.clients import MemoryClients
from crossover.stores.documents import seal
from crossover.training import waits
from crossover.training.long_worker import Invocation
from crossover.training.waits import NearDeadline, report_failure
from crossover.workflow import first_event
from crossover.workflow.context import Context, Resources, RunConfiguration
from tests.clocks import Stepping
from tests.decisions import decision

EXPERIMENT = Experiment(
    name="x",
    architecture="all_reduce",
    workers=3,
    training=Training(epochs=3),
    exchange=Exchange(every=1),
    functions=Functions(timeout_s=10),
)
PATIENCE_S = 60.0  # half of that for a worker: the supervisor waits for the decision as well


@pytest.fixture
def ctx(monkeypatch: pytest.MonkeyPatch) -> Context:
    """Return the context of a run with three workers, whose waits look again without a pause; its clock stands still."""
    monkeypatch.setattr(waits, "_FIRST_LOOK_S", 0.0)
    resources = Resources(MemoryClients(workers=3, shared_tensors=True))
    resources.facts["r"] = RunConfiguration(EXPERIMENT, "d", {"minibatches": 1}, 1, 0, 0.0)
    return Context(resources, run="r", clock=Stepping())


def elsewhere(ctx: Context, rank: int) -> bool:
    """Return whether a worker other than `rank` took the decision after epoch 1."""
    return Invocation(ctx, {**first_event("r", workers=3), "worker": rank, "round": 1})._await_other_decision(1)


def clock(ctx: Context) -> Stepping:
    """Return the context's clock, which the test may set."""
    assert isinstance(ctx.clock, Stepping)
    return ctx.clock


def test_the_first_worker_evaluates_and_its_retry_does_so_again(ctx: Context) -> None:
    """The first worker at an epoch's end claims the evaluation, and a retry of that worker keeps it."""
    assert not elsewhere(ctx, 1)
    assert not elsewhere(ctx, 1)
    assert json.loads(ctx.objects.get(ctx.keys.evaluation_claim(1))) == {"by": 1, "at": 1000.0}


def test_other_workers_take_the_evaluating_workers_decision(ctx: Context) -> None:
    """Another worker takes the decision that the evaluating one stored."""
    elsewhere(ctx, 1)
    ctx.objects.put(ctx.keys.decision(1), b"{}")
    assert elsewhere(ctx, 0)


def test_one_that_left_with_an_error_is_not_waited_for(ctx: Context) -> None:
    """A worker evaluates itself, without waiting long, if the evaluating one failed."""
    elsewhere(ctx, 1)
    report_failure(ctx, attempt=0, member=1, cause=RuntimeError("out of memory"))
    clock(ctx).step_s = 0.1
    assert not elsewhere(ctx, 0)
    assert clock(ctx).now_s < 1000 + PATIENCE_S / 2


def test_one_that_is_silent_is_waited_for_as_long_as_it_has_been_silent_in_all(ctx: Context) -> None:
    """A worker waits for the silent evaluating one over several invocations, for between one and two timeouts in all, and then evaluates
    itself.
    """
    elsewhere(ctx, 1)
    clock(ctx).step_s = 1.0
    for _ in range(5):
        ctx.deadline = clock(ctx).now_s + PATIENCE_S / 3
        try:
            assert not elsewhere(ctx, 0)
        except NearDeadline:
            continue
        break
    assert PATIENCE_S < clock(ctx).now_s - 1000 < 2 * PATIENCE_S


def test_once_it_is_decided_nothing_is_waited_for_any_more(ctx: Context) -> None:
    """Reading a decision ends the wait: the beginning of the wait is forgotten."""
    ctx.objects.put(
        ctx.keys.decision(1),
        seal(decision()),
    )
    invocation = Invocation(ctx, {**first_event("r", workers=3), "worker": 0, "round": 1})
    invocation.waits.since = 500.0
    assert not invocation._read_or_create_decision(None, 1)  # type: ignore[arg-type]  # nothing is evaluated
    assert invocation.waits.since is None
