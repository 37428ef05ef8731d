"""The tree of steps: its schema, its walk, and what `execute` does with it."""

import threading

import pytest

from crossover.errors import ConfigError, Missing, Refused, StaleAttempt
from crossover.stores.clients import MemoryClients
from crossover.workflow import (
    START,
    Child,
    Event,
    ForEach,
    Parallel,
    Repeat,
    Sequence,
    Step,
    check_event,
    execute,
    first_event,
    step,
)
from crossover.workflow.architecture import Architecture, load, steps
from crossover.workflow.context import Context, Resources

calls: list[tuple[str, int, int]] = []


@pytest.fixture(autouse=True)
def fresh_calls() -> None:
    """Forget all calls before each test."""
    calls.clear()


@pytest.fixture
def ctx() -> Context:
    """Return a context with in-memory stores for four workers."""
    return Context(Resources(MemoryClients(workers=4)), run="r")


def named(name: str, **changes: object) -> Step:
    """Return a step that records its calls and changes its event by `changes`."""

    def body(ctx: Context, event: Event) -> dict[str, object]:
        """Note the call and return the changes."""
        calls.append((name, event["worker"], event["minibatch"]))
        return changes

    return Step(name=name, module="tests", body=body)


def test_a_sequence_hands_changes_on(ctx: Context) -> None:
    """A sequence runs its steps in order and returns the event with the changes of all."""
    event = execute(Sequence(named("a", epoch=3), named("b", round=7)), ctx, first_event("r", workers=2))
    assert (event["epoch"], event["round"]) == (3, 7)
    assert [name for name, _, _ in calls] == ["a", "b"]


def test_for_each_sets_its_item_and_discards_what_iterations_return(ctx: Context) -> None:
    """ForEach runs its body once for each item, with the item in the event, and discards the changes."""
    tree = ForEach("worker", "workers", ForEach("minibatch", "minibatches", named("a", epoch=9)))
    event = execute(tree, ctx, {**first_event("r", workers=2), "minibatches": 3})
    assert event["epoch"] == 0
    assert sorted(calls) == [("a", w, m) for w in range(2) for m in range(3)]


def test_together_gives_every_iteration_a_slot_at_once(ctx: Context) -> None:
    """ForEach with `together` runs all 48 iterations at the same time."""
    barrier = threading.Barrier(48)

    def body(ctx: Context, event: Event) -> None:
        """Wait at the barrier for all others."""
        barrier.wait(timeout=30)  # opens only if all 48 are inside at the same time

    tree = ForEach("worker", "workers", Step(name="meet", module="tests", body=body), together=True)
    execute(tree, ctx, first_event("r", workers=48))


def test_repeat_runs_its_body_first_and_then_tests(ctx: Context) -> None:
    """Repeat runs its body until the named field is true, at least once, and sets the beginning and the timeout in the event."""
    rounds = iter([False, False, True])

    def body(ctx: Context, event: Event) -> dict[str, bool]:
        """Return whether the next round is the last one."""
        return {"finished": next(rounds)}

    event = execute(
        Repeat(Step("count", "tests", body), until="finished", timeout_s=5), ctx, first_event("r", workers=1)
    )
    assert event["finished"] and event["timeout_s"] == 5 and event["since"]
    assert next(rounds, None) is None


def test_parallel_and_child_pass_the_event_through(ctx: Context) -> None:
    """Parallel runs all its branches and drops their events; Child runs its body, whose changes are in the returned event."""
    event = execute(
        Sequence(Parallel(named("a"), named("b")), Child("x", named("c", epoch=1))), ctx, first_event("r", workers=1)
    )
    assert {name for name, _, _ in calls} == {"a", "b", "c"}
    assert event["epoch"] == 1


def test_the_event_keeps_its_schema() -> None:
    """An event with other fields, values that are not plain, or more than 1,024 bytes raises AssertionError."""
    with pytest.raises(AssertionError, match="extra"):
        check_event({**START, "extra": 1})
    with pytest.raises(AssertionError, match="plain values"):
        check_event({**START, "run": [1, 2]})
    with pytest.raises(AssertionError, match="1024 bytes"):
        check_event({**START, "run": "x" * 1_024})


def test_inputs_that_are_gone_make_a_stale_attempt_unless_the_output_appeared(ctx: Context) -> None:
    """A step whose input is missing is run once more; StaleAttempt is raised if it is missing again."""
    seen = iter([Missing("input"), None])

    def body(ctx: Context, event: Event) -> None:
        """Raise the next error, if it is one."""
        error = next(seen)
        if error:
            raise error

    late = Step("late", "tests", body)
    execute(late, ctx, first_event("r", workers=1))  # the second look found the output
    seen = iter([Missing("input"), Missing("input")])
    with pytest.raises(StaleAttempt, match="late: input"):
        execute(late, ctx, first_event("r", workers=1))


def test_a_step_reaches_only_what_it_declares(ctx: Context) -> None:
    """A step that uses a service which it does not declare raises AssertionError."""

    @step()
    def greedy(ctx: Context, event: Event) -> None:
        """Use the bus, which the step does not declare."""
        ctx.bus.declare()

    with pytest.raises(AssertionError, match="the step does not declare"):
        execute(greedy, ctx, first_event("r", workers=1))


def test_a_failure_of_one_iteration_is_raised_after_all_have_ended(ctx: Context) -> None:
    """An iteration's exception is raised after the other iterations have ended."""
    ended: list[int] = []

    def body(ctx: Context, event: Event) -> None:
        """Fail for worker 1, else note the worker."""
        if event["worker"] == 1:
            raise RuntimeError("worker 1")
        ended.append(event["worker"])

    with pytest.raises(RuntimeError, match="worker 1"):
        execute(ForEach("worker", "workers", Step("s", "tests", body)), ctx, first_event("r", workers=3))
    assert sorted(ended) == [0, 2]


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_who_waits_for_an_iteration_that_failed_ends_and_its_error_is_raised(worker: int, ctx: Context) -> None:
    """Iterations that wait end if another one fails, and its error is raised. `worker`: the one that fails."""

    def body(ctx: Context, event: Event) -> Event:
        """Raise Refused for the failing worker, else return that the workers are not synchronised."""
        if event["worker"] == worker:
            raise Refused("the gradient is not finite")
        return {"synchronised": False}

    wait = Repeat(Step("s", "tests", body), "synchronised", timeout_s=900, every_s=1)
    tree = ForEach("worker", "workers", Child("run", Sequence(named("a"), wait)), together=True)
    with pytest.raises(Refused, match="not finite"):
        execute(tree, ctx, first_event("r", workers=3))


def test_steps_are_distinct_and_in_the_order_they_are_written() -> None:
    """`steps` returns each step once, in the order in which they occur first."""
    a, b = named("a"), named("b")
    tree = Architecture("x", Sequence(a, Repeat(Sequence(b, a), until="finished", timeout_s=1)))
    assert steps(tree) == [a, b]


def test_an_unknown_architecture_names_the_choices() -> None:
    """An unknown architecture, or a path as its name, raises ConfigError with the known names."""
    with pytest.raises(ConfigError, match=r"architecture: 'spirtt' is unknown; one of .*"):
        load("spirtt")
    with pytest.raises(ConfigError):
        load("../etc")
