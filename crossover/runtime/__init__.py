"""What code asks of the process that it runs in: time, waiting, company and chance.

Functions, programs and their clients ask only here. So the same code runs in a process of its own, and as one of many simulated processes
on a virtual clock: whoever simulates installs a runtime of its own (`use`). Whatever may differ between two runs with one seed comes from
here, and so does what a process keeps between two invocations (`kept`): a module's own variables would be shared by all that are simulated.
"""

import os
import random
import resource
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Thread(Protocol):
    """A thread that nobody waits for when its process ends."""

    def start(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class EventFlag(Protocol):
    """As threading's."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """As threading's."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class ProcessThread(threading.Thread):
    """Such a thread of this process."""


class ThisProcess:
    """The process itself: what the functions of this module ask, each of which says what is asked. Another runtime derives from it."""

    simulated = False

    def __init__(self) -> None:
        self._started_at, self._state = clock.time(), dict[str, Any]()
        self._chance: random.Random = (
            random.SystemRandom()
        )  # environments restored from one snapshot share the state of all others

    def time(self) -> float:
        return clock.time()

    def monotonic(self) -> float:
        return clock.monotonic()

    def perf_counter(self) -> float:
        return clock.perf_counter()

    def processor_s(self) -> float:
        return clock.thread_time()

    def process_s(self) -> float | None:
        return clock.process_time() if threading.current_thread() is threading.main_thread() else None

    def peak_memory_mb(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def started_at(self) -> float:
        return self._started_at

    def sleep(self, seconds: float) -> None:
        clock.sleep(seconds)

    def pause(self, seconds: float, *, calm_s: float) -> None:
        self.sleep(seconds)

    def thread(self, target: Callable[..., object], *args: Any, name: str | None = None) -> Thread:
        return ProcessThread(target=target, args=args, name=name, daemon=True)

    def event(self) -> EventFlag:
        return threading.Event()

    def lock(self) -> Lock:
        return threading.Lock()

    def local(self) -> Any:
        return threading.local()

    def entropy(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._chance.uniform(low, high)

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def state(self) -> dict[str, Any]:
        return self._state


_installed = ThisProcess()


@contextmanager
def use(runtime: ThisProcess) -> Iterator[None]:
    """Within the block all of this process asks `runtime`."""
    global _installed
    before, _installed = _installed, runtime
    try:
        yield
    finally:
        _installed = before


def simulated() -> bool:
    """Whether this process is asked no longer, but another runtime in its place."""
    return _installed.simulated


# --- time -------------------------------------------------------------------------------------------------------------


def time() -> float:
    """Unix seconds, by the clock of the process: those of two machines differ."""
    return _installed.time()


def monotonic() -> float:
    """Seconds that only pass: for waits and time-outs."""
    return _installed.monotonic()


def perf_counter() -> float:
    """Seconds that only pass, as finely as they can be told: for what is measured."""
    return _installed.perf_counter()


def processor_s() -> float:
    """Processor seconds that the calling thread has used."""
    return _installed.processor_s()


def process_s() -> float | None:
    """Processor seconds that the process has used, all threads together; None where the caller is not its main thread, but one of many
    workers in it.
    """
    return _installed.process_s()


def peak_memory_mb() -> float:
    """The most memory that the process has had at once."""
    return _installed.peak_memory_mb()


def started_at() -> float:
    """When the process began, in unix seconds."""
    return _installed.started_at()


# --- waiting and company ----------------------------------------------------------------------------------------------


def sleep(seconds: float) -> None:
    """Let the time pass, and others work."""
    _installed.sleep(seconds)


def pause(seconds: float, *, calm_s: float) -> None:
    """Sleep between two looks. For `calm_s` nothing can change what the caller looks at and does but what others write: a virtual clock may
    skip the looks until then.
    """
    _installed.pause(seconds, calm_s=calm_s)


def thread(target: Callable[..., object], *args: Any, name: str | None = None) -> Thread:
    """A thread that calls `target(*args)` once it is started, and ends with its process at the latest."""
    return _installed.thread(target, *args, name=name)


def event() -> EventFlag:
    """A flag that threads wait for."""
    return _installed.event()


def lock() -> Lock:
    """One thread at a time."""
    return _installed.lock()


def local() -> Any:
    """An object whose attributes are each thread's own."""
    return _installed.local()


# --- chance -----------------------------------------------------------------------------------------------------------


def identifier() -> str:
    """32 hexadecimal digits that nobody else has drawn."""
    return entropy(16).hex()


def entropy(count: int) -> bytes:
    """Bytes that nobody can foresee."""
    return _installed.entropy(count)


def uniform(low: float, high: float) -> float:
    """A number between the two: how long to pause, where many would otherwise come back at once."""
    return _installed.uniform(low, high)


# --- what a process has ---------------------------------------------------------------------------------------------------


def environment() -> Mapping[str, str]:
    """The process's environment variables."""
    return _installed.environment()


def state() -> dict[str, Any]:
    """What the process keeps between two invocations, by the names of those who keep it."""
    return _installed.state()


def kept(name: str, make: Callable[[], T]) -> T:
    """What the process keeps under `name`, made when it is first asked for."""
    values = state()
    found: T = values[name] if name in values else values.setdefault(name, make())
    return found
