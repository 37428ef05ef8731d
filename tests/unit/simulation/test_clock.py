"""A simulated wait that nothing interrupts takes no event, and changes neither times nor order."""

from collections.abc import Callable

import pytest
import simpy

from crossover.simulation.kernel import Clock, Gate, SimProcess

Waits = Callable[[simpy.Environment, float], SimProcess]


def wait_by_events(env: simpy.Environment, seconds: float) -> SimProcess:
    """Let the seconds pass by a timeout event."""
    yield env.timeout(seconds)


def wait_by_skips(env: simpy.Environment, seconds: float) -> SimProcess:
    """Let the seconds pass by moving the clock, by an event if something else happens before."""
    assert isinstance(env, Clock)
    if not env.skip(seconds):
        yield env.timeout(seconds)


def times_of_workers(env: simpy.Environment, wait: Waits, *, workers: int) -> list[tuple[int, float]]:
    """Return (worker, time) of each wait that ends, in order: each worker waits twice, meets the others at a gate, and waits once more.
    `wait`: function that lets seconds pass.
    """
    told, gate = list[tuple[int, float]](), Gate(env, workers)

    def work(rank: int) -> SimProcess:
        """Wait, meet the other workers at the gate, wait again, and note the time of each step."""
        for seconds in (0.1 * (rank + 1), 0.7):
            yield from wait(env, seconds)
            told.append((rank, env.now))
        gate.arrive(env, rank)
        yield from gate.wait()
        yield from wait(env, 1.0 + rank)
        told.append((rank, env.now))

    end = env.all_of([env.process(work(rank)) for rank in range(workers)])
    env.run_until(end) if isinstance(env, Clock) else env.run(end)
    return told


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_skipped_waits_keep_every_time_and_the_order(workers: int) -> None:
    """Check that waits by Clock.skip end at the times and in the order of waits by timeout events."""
    with_events = times_of_workers(simpy.Environment(), wait_by_events, workers=workers)
    assert times_of_workers(Clock(), wait_by_skips, workers=workers) == with_events


def test_a_process_alone_waits_without_events() -> None:
    """Check that skip moves the time if nothing else is due, and refuses if an event is due then."""
    clock = Clock()

    def work() -> SimProcess:
        """Skip while nothing else is due, and check that a timeout due at that moment forbids it."""
        assert clock.skip(1.5) and clock.skip(2.5)
        yield clock.timeout(0.0)
        clock.timeout(3.0)
        assert not clock.skip(3.0), "what happens at the same time comes first"

    clock.run_until(clock.process(work()))
    assert clock.now == 4.0


def test_an_error_of_a_process_ends_the_simulation() -> None:
    """Check that run_until raises the error of a process."""
    clock = Clock()

    def work() -> SimProcess:
        """Wait for a second, then raise ValueError."""
        yield clock.timeout(1.0)
        raise ValueError("no such size")

    with pytest.raises(ValueError, match="no such size"):
        clock.run_until(clock.process(work()))
