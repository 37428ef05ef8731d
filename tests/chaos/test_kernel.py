"""The virtual world's clock, processes, and pauses that are skipped."""

from collections.abc import Callable
from math import inf

import pytest

from crossover import runtime
from tests.chaos.world.kernel import Kernel, Killed, Process, Signal, Stuck
from tests.chaos.world.polls import Looks
from tests.chaos.world.process_runtime import install_runtime
from tests.chaos.world.requests import Request


def run_tasks(kernel: Kernel, *codes: Callable[[], object], process: Process | None = None) -> None:
    """Run the functions `codes` as one task each, all in `process` or, if it is None, each in a process of its own,
    until all have ended.
    """
    tasks = [kernel.spawn(code, process=process or Process(kernel, "one"), name="task") for code in codes]
    kernel.run(lambda: all(task.over for task in tasks))


def test_a_killed_process_does_nothing_more_not_even_from_a_finally() -> None:
    """Kill a sleeping process: its task ends with Killed at that time, and what its `finally` attempts has no effect."""
    kernel, told = Kernel(1), list[str]()
    victim = Process(kernel, "victim")

    def live() -> None:
        """Sleep, and try to have an effect in a `finally`."""
        try:
            kernel.sleep(10.0)
        finally:
            kernel.sleep(0.0)  # every request begins so
            told.append("an effect after death")

    def kill() -> None:
        """Kill the victim after 1 s."""
        kernel.sleep(1.0)
        victim.kill()

    task = kernel.spawn(live, process=victim, name="live")
    run_tasks(kernel, kill)
    assert task.over and isinstance(task.failure, Killed) and told == [] and kernel.now_s == 1.0


def test_a_process_that_kills_itself_ends_at_its_next_request() -> None:
    """Let a task kill its own process: the task runs on until it asks the world for something, and not further."""
    kernel, told = Kernel(1), list[str]()
    process = Process(kernel, "one")

    def code() -> None:
        """Kill the own process, then continue until the next request."""
        process.kill()
        told.append("before it asks for anything")
        kernel.sleep(1.0)
        told.append("after")

    run_tasks(kernel, code, process=process)
    assert told == ["before it asks for anything"]


def test_a_frozen_process_goes_on_when_its_time_has_come_or_it_is_thawed() -> None:
    """Freeze one process for 5 s and one for good, and thaw the latter at 7 s: their sleeps of 1 s end at 6 s and 8 s."""
    kernel, told = Kernel(1), list[float]()
    first, second = Process(kernel, "first"), Process(kernel, "second")

    def code() -> None:
        """Sleep for 1 s, and record the time afterwards."""
        kernel.sleep(1.0)
        told.append(kernel.now_s)

    def thaw() -> None:
        """Thaw the second process after 7 s."""
        kernel.sleep(7.0)
        second.thaw()

    first.freeze(5.0)
    second.freeze(inf)
    tasks = [kernel.spawn(code, process=each, name="code") for each in (first, second)]
    run_tasks(kernel, thaw)
    kernel.run(lambda: all(task.over for task in tasks))
    assert told == [6.0, 8.0]


def test_a_world_that_stands_still_says_so() -> None:
    """Let the only task wait for a signal that nobody sets: the kernel raises Stuck."""
    kernel = Kernel(1)
    with pytest.raises(Stuck, match="waits for another"):
        run_tasks(kernel, lambda: kernel.wait(Signal()))


def _request(operation: str) -> Request:
    """Return a request of that operation to Redis, for the key "key"."""
    return Request("redis", operation, ("key",))


@pytest.mark.parametrize("written_at_s", [4.5, 100.0])
def test_a_pause_lasts_until_what_was_read_is_written_and_no_longer_than_it_is_calm(written_at_s: float) -> None:
    """Pause after reading a key that is written at `written_at_s`: the pause ends then, or after 20 s, the longest allowed."""
    kernel = Kernel(1)
    looks, told = Looks(kernel), list[float]()

    def wait() -> None:
        """Read the key, pause, and record the time afterwards."""
        looks.served(kernel.task, _request("TENSOR.GET"))
        runtime.pause(0.25, calm_s=20.0)
        told.append(kernel.now_s)

    def write() -> None:
        """Write the key at `written_at_s`."""
        kernel.sleep(written_at_s)
        looks.served(kernel.task, _request("AI.TENSORSET"))

    with install_runtime(kernel, looks):
        run_tasks(kernel, wait, write)
    if written_at_s < 20.0:
        assert written_at_s <= told[0] <= written_at_s + 0.25
    else:
        assert told == [20.0]


def test_what_was_written_between_the_look_and_the_pause_is_not_slept_through() -> None:
    """Write the key between the read and the pause: the pause has its normal length of 0.25 s."""
    kernel = Kernel(1)
    looks, told = Looks(kernel), list[float]()

    def wait() -> None:
        """Read the key, let a second pass, pause, and record the time afterwards."""
        looks.served(kernel.task, _request("TENSOR.GET"))
        kernel.sleep(1.0)  # its reply's way back
        runtime.pause(0.25, calm_s=20.0)
        told.append(kernel.now_s)

    def write() -> None:
        """Write the key after 0.5 s."""
        kernel.sleep(0.5)
        looks.served(kernel.task, _request("AI.TENSORSET"))

    with install_runtime(kernel, looks):
        run_tasks(kernel, wait, write)
    assert told == [1.25]
