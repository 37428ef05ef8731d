import multiprocessing
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from crossover.stores import clients


def test_as_many_hold_a_slot_as_there_are(tmp_path: Path) -> None:
    """Let six threads compete for two slots: two hold one at the same time, never more."""
    clients.create_slots(tmp_path, 2)
    most, inside, lock = 0, 0, threading.Lock()
    waits = []

    def work() -> None:
        """Hold a slot five times, noting how many hold one at the same time."""
        nonlocal most, inside
        for _ in range(5):
            with clients.hold_slot(tmp_path) as wait_s:
                with lock:
                    inside += 1
                    most = max(most, inside)
                    waits.append(wait_s)
                threading.Event().wait(0.002)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2
    assert len(waits) == 30
    assert min(waits) >= 0


def test_the_wait_is_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the only slot for a while: the second holder's wait is reported in seconds."""
    clients.create_slots(tmp_path, 1)
    waited: list[float] = []
    queued, first_free = threading.Event(), clients._lock_free_slot

    def queue(paths: list[Path], head: Path) -> int:
        """Note that the second thread waits, and wait for a free slot."""
        queued.set()  # only now: the wait counts from before
        return first_free(paths, head)

    def second() -> None:
        """Hold a slot, and note how long that took."""
        with clients.hold_slot(tmp_path) as wait_s:
            waited.append(wait_s)

    with clients.hold_slot(tmp_path):
        monkeypatch.setattr(clients, "_lock_free_slot", queue)
        thread = threading.Thread(target=second)
        thread.start()
        queued.wait()
        threading.Event().wait(0.1)
        assert not waited
    thread.join()
    assert waited[0] >= 0.05


def _hold_and_die(slot: Callable[[Path], AbstractContextManager[float]], folder: Path) -> None:
    """Take a slot and end the process with status 9 without giving the slot back."""
    with slot(folder):
        os._exit(9)


def test_a_dead_process_gives_its_slot_back(tmp_path: Path) -> None:
    """End a process that holds the only slot: the slot is free again."""
    clients.create_slots(tmp_path, 1)
    process = multiprocessing.get_context("spawn").Process(target=_hold_and_die, args=(clients.hold_slot, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == 9
    with clients.hold_slot(tmp_path):
        pass


def test_without_slots_it_says_how_to_make_them(tmp_path: Path) -> None:
    """Hold a slot in a folder without slots, and create no slots: the errors say what is needed."""
    with pytest.raises(FileNotFoundError, match=r"clients.create_slots"), clients.hold_slot(tmp_path):
        pass
    with pytest.raises(ValueError, match="at least 1"):
        clients.create_slots(tmp_path, 0)


def test_a_process_that_computes_no_more_gives_its_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Release a slot: freed memory is returned to the system after a while."""
    given = threading.Event()
    monkeypatch.setattr(clients, "_release_memory", given.set)
    monkeypatch.setattr(clients, "_IDLE_S", 0.01)
    clients.create_slots(tmp_path, 1)
    with clients.hold_slot(tmp_path):
        assert not given.is_set()
    assert given.wait(timeout=30)


def test_a_process_that_goes_on_keeps_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a slot again soon: the return of memory is cancelled."""
    monkeypatch.setattr(clients, "_IDLE_S", 3_600)
    clients.create_slots(tmp_path, 1)
    with clients.hold_slot(tmp_path):
        pass
    waiting = clients._release_timer
    assert waiting is not None
    with clients.hold_slot(tmp_path):
        assert waiting.finished.is_set()  # cancelled
    assert clients._release_timer is not None
    clients._release_timer.cancel()
    clients._release_memory()
