import threading

import pytest

from crossover.errors import RunFailed
from crossover.processes import run_in_threads
from crossover.stores.clients import MemoryClients

WAIT_S = 60.0


def test_no_more_compute_at_a_time_than_there_are_slots() -> None:
    """Exactly two of eight threads hold a slot at once if there are two slots."""
    clients, begun, meeting = MemoryClients(workers=4, slots=2), threading.Barrier(8), threading.Barrier(2)
    computing, most, lock = 0, 0, threading.Lock()

    def compute() -> None:
        """Hold a slot until a second thread holds one too, and note the most that hold one at the same time."""
        nonlocal computing, most
        begun.wait(WAIT_S)
        with clients.hold_slot():
            with lock:
                computing += 1
                most = max(most, computing)
            meeting.wait(WAIT_S)  # with one slot, or fewer, this breaks
            with lock:
                computing -= 1
            meeting.wait(WAIT_S)  # nobody leaves before both are counted out

    _, failed = run_in_threads([compute] * 8, slots=8)
    assert not failed
    assert most == 2


def test_a_failure_gives_its_slot_back() -> None:
    """A slot is free again after an exception."""
    clients = MemoryClients(workers=1, slots=1)
    with pytest.raises(ValueError, match="mine"), clients.hold_slot():
        raise ValueError("mine")
    with clients.hold_slot() as waited_s:
        assert waited_s >= 0


def test_who_waits_for_a_slot_of_a_stopped_run_computes_no_more() -> None:
    """A thread that waits for a slot ends with RunFailed when the run is stopped."""
    clients, waiting = MemoryClients(workers=2, slots=1), threading.Event()
    ends: list[BaseException] = []

    def compute() -> None:
        """Wait for a slot and note the exception that ends the wait."""
        waiting.set()
        try:
            with clients.hold_slot():
                raise AssertionError("computes")
        except BaseException as end:
            ends.append(end)

    other = threading.Thread(target=compute)
    with clients.hold_slot():
        other.start()
        assert waiting.wait(WAIT_S)
        clients.stop()
    other.join(WAIT_S)
    assert [type(end) for end in ends] == [RunFailed]
