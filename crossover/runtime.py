"""What code asks of its process: the clock, waits, retries, random identifiers. Tests and the virtual world put another
runtime in place.
"""

import math
import os
import random
import resource
import threading
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, Protocol, TypeVar

# --- runtime ----------------------------------------------------------------------------------------------------------

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
    """Return the process's peak memory, in MB."""
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
    """Return a thread, not yet started, that calls `target(*args)` once it is started, and ends with its process at the latest."""
    return _installed.thread(target, *args, name=name)


def event() -> EventFlag:
    """Return a new flag that threads can wait for."""
    return _installed.event()


def lock() -> Lock:
    """One thread at a time."""
    return _installed.lock()


def local() -> Any:
    """Return an object whose attributes are separate for each thread."""
    return _installed.local()


# --- chance -----------------------------------------------------------------------------------------------------------


def identifier() -> str:
    """32 hexadecimal digits that nobody else has drawn."""
    return entropy(16).hex()


def entropy(count: int) -> bytes:
    """Bytes that nobody can foresee."""
    return _installed.entropy(count)


def uniform(low: float, high: float) -> float:
    """Return a random number from `low` to `high`: a pause that keeps many clients from returning at once."""
    return _installed.uniform(low, high)


# --- what a process has ---------------------------------------------------------------------------------------------------


def environment() -> Mapping[str, str]:
    """Return the process's environment variables."""
    return _installed.environment()


def state() -> dict[str, Any]:
    """Return the values that the process keeps between invocations, by name."""
    return _installed.state()


def kept(name: str, make: Callable[[], T]) -> T:
    """Return the value that the process keeps under `name`; call `make` for it the first time."""
    values = state()
    found: T = values[name] if name in values else values.setdefault(name, make())
    return found


# --- pauses -----------------------------------------------------------------------------------------------------------
# Waiting by looking again and again: how long the pauses are, when they end, and when something dearer than a look is due.


@dataclass
class Pauses:
    """The pauses of one wait: a share of the time waited so far, within bounds. So looking often costs little, and what comes is found at
    most that share too late. `last_s`: the longest; all are alike where it is not given.

        pause = Pauses(0.01, 1.0, within_s=60.0)
        while not there():
            if not pause():
                raise WaitTimeout(...)
    """

    first_s: float
    last_s: float = 0.0
    share: float = 1 / 3
    within_s: float = math.inf
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = monotonic()

    @property
    def waited_s(self) -> float:
        return monotonic() - self._began_s

    @property
    def next_s(self) -> float:
        return max(self.first_s, min(self.share * self.waited_s, self.last_s))

    def __call__(self, *, calm_s: float = 0.0) -> bool:
        """Pause, unless `within_s` have passed since this wait began: whether there is to be another look. The last one is at their end.
        `calm_s`: for so long what is looked at, and what follows from it, can change by others' doing alone.
        """
        left_s = self.within_s - self.waited_s
        if left_s < 1e-6:  # nothing that a clock could tell apart
            return False
        pause(min(self.next_s, left_s), calm_s=min(calm_s, left_s))
        return True


class Backoff:
    """The pauses of a tenacity.Retrying between attempts: each a random share of a limit that doubles from `first_s` up to `most_s`."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s

    def __call__(self, state: Any) -> float:
        return uniform(0.0, min(self._first_s * 2.0 ** (state.attempt_number - 1), self._most_s))


class Patience:
    """The end of a tenacity.Retrying: `within_s` after its first attempt has failed, however long each takes; so there are two at least."""

    def __init__(self, within_s: float) -> None:
        self._within_s, self._until_s = within_s, math.inf

    def __call__(self, state: Any) -> bool:
        now_s = monotonic()
        self._until_s = min(self._until_s, now_s + self._within_s)
        return now_s >= self._until_s


class Due:
    """Now and then within a wait: `first_s` after it began, and then every `every_s`."""

    def __init__(self, first_s: float, every_s: float) -> None:
        self._at_s, self._every_s = monotonic() + first_s, every_s

    @property
    def left_s(self) -> float:
        """Until it is due again."""
        return self._at_s - monotonic()

    def __call__(self) -> bool:
        now_s = monotonic()
        if now_s < self._at_s:
            return False
        self._at_s = now_s + self._every_s
        return True


# --- retries ----------------------------------------------------------------------------------------------------------
# What is tried again: every policy in one table, with its reason. Who tries again reads it here.
#
# What is tried again may be repeated: steps, requests and messages change nothing the second time. What cannot pass by itself (a refusal,
# a wrong password, damaged data) is tried once.


@dataclass(frozen=True, kw_only=True)
class Retries:
    """`again`: how often after the first time. The pause before each is a random share of a limit that doubles from `first_s` up to
    `most_s`; `within_s` after the first failure there is no other attempt but one.
    """

    again: int = 0
    first_s: float = 0.0
    most_s: float = inf
    within_s: float = inf

    def retrying(self, retry: Any) -> Any:
        """Build a tenacity.Retrying that retries for up to `within_s` seconds. `retry`: tenacity condition on the exception."""
        from tenacity import Retrying

        stop, wait = Patience(self.within_s), Backoff(self.first_s, self.most_s)
        return Retrying(retry=retry, stop=stop, wait=wait, sleep=sleep, reraise=True)


# A step, after an error that passes by itself: by Step Functions, and as often where a run is in one process.
STEP = Retries(again=6, first_s=1, most_s=30)
# Starting an execution, which an account's limits may throttle while others are started.
EXECUTION = Retries(again=8, first_s=2)
# A machine that a program starts, under another name: one whose execution failed is taken for 90 days.
MACHINE = Retries(again=2)
# Requests to Step Functions by programs, whose peers ask at the same time.
MACHINE_REQUEST = Retries(again=7)
# A request to S3. botocore is told to ask once: its first pauses are of 50 ms, and six attempts were over before a bucket that was away for
# a second had come back.
OBJECTS = Retries(first_s=0.05, most_s=4.0, within_s=12.0)
ONCE = Retries()
# A broker that restarts is back within a minute, and soon found.
BROKER = Retries(first_s=0.1, most_s=2.0, within_s=60.0)
# A Redis command whose reused connection breaks: once more, on a new one. A server that is silent has been waited for.
REDIS = Retries(again=1)
# A program goes on after a store or broker did not answer, so often without a checkpoint in between.
PROGRAM = Retries(again=5, first_s=0.5)
# An asynchronous invocation that failed: Lambda's two, after one and two minutes; in the local cloud, seconds.
EVENT = Retries(again=2, first_s=1.0)
