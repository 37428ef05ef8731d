"""Compute slots: one per core, so that 64 workers can wait at a barrier on two cores without computing over one another.

A slot is a locked file, because the workers are processes that may die at any moment: the kernel gives a dead process's locks back. Local
only. On AWS every environment has its own processor, `CROSSOVER_SLOTS` is unset and nobody asks for a slot. Needs the standard library
alone: functions import it.
"""

import ctypes
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IDLE_S = 0.5  # longer than the way from one minibatch to the next
_POLL_S = 0.002  # only the head of the queue polls, so this costs one process a thousandth of a core

_idle: threading.Timer | None = None


def create(folder: str | Path, count: int) -> None:
    """Make `count` slots in `folder`; harmless to repeat."""
    if count < 1:
        raise ValueError(f"count: {count} slots asked for; at least 1 is needed")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (path / f"slot-{number}").touch()


@contextmanager
def slot(folder: str | Path) -> Iterator[float]:
    """Hold one slot of `folder` for the length of the block; yields the seconds it waited for it.

    First come, first served: whoever holds the file `queue` is next. Raises FileNotFoundError where `create` was never called.
    """
    started = time.monotonic()
    paths = sorted(Path(folder).glob("slot-*"))
    if not paths:
        raise FileNotFoundError(
            f"{folder}: no compute slots here; crossover.clients.slots.create(folder, count) makes them"
        )
    descriptor = _first_free(paths, Path(folder) / "queue")
    _stay_as_you_are()
    try:
        yield time.monotonic() - started
    finally:
        os.close(descriptor)  # closing gives the lock back
        _give_memory_back_when_idle()


def _give_memory_back_when_idle() -> None:
    """Return the pages that a training step has freed (for MobileNet nine tenths of the process) once this process computes no more.

    The next step pays for them with page faults, so a process that goes on at once keeps them; one that waits for others must not: their
    steps need the memory, and 64 workers live on one machine.
    """
    global _idle
    _stay_as_you_are()
    _idle = threading.Timer(_IDLE_S, _give_memory_back)
    _idle.daemon = True
    _idle.start()


def _stay_as_you_are() -> None:
    if _idle is not None:
        _idle.cancel()


def _give_memory_back() -> None:
    ctypes.CDLL(None).malloc_trim(0)


def _first_free(paths: list[Path], queue: Path) -> int:
    head = os.open(queue, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(head, fcntl.LOCK_EX)
        while True:
            for path in paths:
                descriptor = _try_lock(path)
                if descriptor is not None:
                    return descriptor
            time.sleep(_POLL_S)
    finally:
        os.close(head)


def _try_lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
