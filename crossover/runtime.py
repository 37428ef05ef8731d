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
    """Protocol of a thread that does not keep its process alive."""

    def start(self) -> None:
        """Start the thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, `timeout` seconds at most."""

    def is_alive(self) -> bool:
        """Return whether the thread is running."""


class EventFlag(Protocol):
    """Protocol of threading.Event: a flag that threads wait for."""

    def set(self) -> None:
        """Set the flag, which wakes all waiting threads."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, `timeout` seconds at most. Returns whether it is set."""


class Lock(Protocol):
    """Protocol of threading.Lock as a context manager."""

    def __enter__(self) -> bool:
        """Wait for the lock and take it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Release the lock."""


class ProcessThread(threading.Thread):
    """Daemon thread of this process, as `ThisProcess.thread` makes it."""


class ThisProcess:
    """Runtime that answers from the real process: its clock, waits, threads and random numbers. A simulated runtime
    derives from it.
    """

    simulated = False

    def __init__(self) -> None:
        self._started_at, self._state = clock.time(), dict[str, Any]()
        self._chance: random.Random = (
            random.SystemRandom()
        )  # environments restored from one snapshot share the state of all others

    def time(self) -> float:
        """Return unix seconds by the clock of this machine."""
        return clock.time()

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""
        return clock.monotonic()

    def perf_counter(self) -> float:
        """Return the seconds of the finest clock, for measurements."""
        return clock.perf_counter()

    def processor_s(self) -> float:
        """Return the processor seconds that the calling thread has used."""
        return clock.thread_time()

    def process_s(self) -> float | None:
        """Return the processor seconds of the whole process; None if the caller is not its main thread."""
        return clock.process_time() if threading.current_thread() is threading.main_thread() else None

    def peak_memory_mb(self) -> float:
        """Return the process's peak resident memory, in MB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def started_at(self) -> float:
        """Return when the process began, in unix seconds."""
        return self._started_at

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for `seconds`."""
        clock.sleep(seconds)

    def pause(self, seconds: float, *, calm_s: float) -> None:
        """Sleep for `seconds` between two polls. `calm_s` is a hint for virtual clocks; the real process ignores it."""
        self.sleep(seconds)

    def thread(self, target: Callable[..., object], *args: Any, name: str | None = None) -> Thread:
        """Return a daemon thread, not yet started, that calls `target(*args)`."""
        return ProcessThread(target=target, args=args, name=name, daemon=True)

    def event(self) -> EventFlag:
        """Return a new flag that threads can wait for."""
        return threading.Event()

    def lock(self) -> Lock:
        """Return a new lock."""
        return threading.Lock()

    def local(self) -> Any:
        """Return an object whose attributes are separate for each thread."""
        return threading.local()

    def entropy(self, count: int) -> bytes:
        """Return `count` random bytes from the system."""
        return self._chance.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between `low` and `high`."""
        return self._chance.uniform(low, high)

    def environment(self) -> Mapping[str, str]:
        """Return the process's environment variables."""
        return os.environ

    def state(self) -> dict[str, Any]:
        """Return the dict of values that the process keeps between invocations, by name."""
        return self._state


_installed = ThisProcess()


@contextmanager
def use(runtime: ThisProcess) -> Iterator[None]:
    """Within the `with` block, let `runtime` answer every function of this module, for all threads of the process."""
    global _installed
    before, _installed = _installed, runtime
    try:
        yield
    finally:
        _installed = before


def is_simulated() -> bool:
    """Return whether a simulated runtime answers in place of this process."""
    return _installed.simulated


# --- time -------------------------------------------------------------------------------------------------------------


def time() -> float:
    """Return unix seconds by the clock of this process; the clocks of two machines differ."""
    return _installed.time()


def monotonic() -> float:
    """Return the seconds of a clock that never goes back, for waits and timeouts."""
    return _installed.monotonic()


def perf_counter() -> float:
    """Return the seconds of the finest clock that never goes back, for measurements."""
    return _installed.perf_counter()


def processor_s() -> float:
    """Return the processor seconds that the calling thread has used."""
    return _installed.processor_s()


def process_s() -> float | None:
    """Return the processor seconds that all threads of the process have used; None if the caller is not its main thread
    but one of many workers in it.
    """
    return _installed.process_s()


def peak_memory_mb() -> float:
    """Return the process's peak memory, in MB."""
    return _installed.peak_memory_mb()


def started_at() -> float:
    """Return when the process began, in unix seconds."""
    return _installed.started_at()


# --- waiting and company ----------------------------------------------------------------------------------------------


def sleep(seconds: float) -> None:
    """Block the calling thread for `seconds`; other threads go on."""
    _installed.sleep(seconds)


def pause(seconds: float, *, calm_s: float) -> None:
    """Sleep for `seconds` between two polls. `calm_s`: seconds in which only what others write can change the polled
    value, so that a virtual clock may skip polls until then.
    """
    _installed.pause(seconds, calm_s=calm_s)


def thread(target: Callable[..., object], *args: Any, name: str | None = None) -> Thread:
    """Return a thread, not yet started, that calls `target(*args)` once it is started, and ends with its process at the latest."""
    return _installed.thread(target, *args, name=name)


def event() -> EventFlag:
    """Return a new flag that threads can wait for."""
    return _installed.event()


def lock() -> Lock:
    """Return a new lock, which one thread at a time can hold."""
    return _installed.lock()


def local() -> Any:
    """Return an object whose attributes are separate for each thread."""
    return _installed.local()


# --- chance -----------------------------------------------------------------------------------------------------------


def identifier() -> str:
    """Return a new random identifier: 32 hexadecimal digits."""
    return entropy(16).hex()


def entropy(count: int) -> bytes:
    """Return `count` random bytes that nobody can predict."""
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


def get_or_make(name: str, make: Callable[[], T]) -> T:
    """Return the value that the process keeps under `name` between invocations; the first time, keep the result of
    `make`.
    """
    values = state()
    found: T = values[name] if name in values else values.setdefault(name, make())
    return found


# --- pauses -----------------------------------------------------------------------------------------------------------
# Waiting by looking again and again: how long the pauses are, when they end, and when something dearer than a look is due.


@dataclass
class Pauses:
    """Pauses of one polling loop, each a `share` of the time waited so far, between `first_s` and `last_s` seconds (0:
    all of `first_s`).

    So polling costs little, and an event is noticed at most that share too late. `within_s`: timeout of the whole wait.

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
        """Remember when the wait began."""
        self._began_s = monotonic()

    @property
    def waited_s(self) -> float:
        """Seconds since the wait began."""
        return monotonic() - self._began_s

    @property
    def next_s(self) -> float:
        """Length of the next pause, in seconds."""
        return max(self.first_s, min(self.share * self.waited_s, self.last_s))

    def __call__(self, *, calm_s: float = 0.0) -> bool:
        """Pause, and return True if there is to be another poll; return False without a pause once `within_s` have
        passed. The last poll is at the timeout. `calm_s`: seconds in which only others can change what is polled.
        """
        left_s = self.within_s - self.waited_s
        if left_s < 1e-6:  # nothing that a clock could tell apart
            return False
        pause(min(self.next_s, left_s), calm_s=min(calm_s, left_s))
        return True


class Backoff:
    """Wait strategy of a tenacity.Retrying: each pause is a random share of a limit that doubles from `first_s` up to
    `most_s` seconds.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s

    def __call__(self, state: Any) -> float:
        """Return the seconds to wait after the attempt of tenacity's `state`."""
        return uniform(0.0, min(self._first_s * 2.0 ** (state.attempt_number - 1), self._most_s))


class Patience:
    """Stop condition of a tenacity.Retrying: give up `within_s` seconds after the first failure. There are at least two
    attempts.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s, self._until_s = within_s, math.inf

    def __call__(self, state: Any) -> bool:
        """Return whether to stop retrying now. The time counts from the first call."""
        now_s = monotonic()
        self._until_s = min(self._until_s, now_s + self._within_s)
        return now_s >= self._until_s


class PeriodicTimer:
    """Timer that is due `first_s` seconds after its creation and then every `every_s` seconds. Calling it asks whether
    it is due.
    """

    def __init__(self, first_s: float, every_s: float) -> None:
        self._at_s, self._every_s = monotonic() + first_s, every_s

    @property
    def left_s(self) -> float:
        """Seconds until the timer is due; negative if it is overdue."""
        return self._at_s - monotonic()

    def __call__(self) -> bool:
        """Return whether the timer is due; if it is, start its next period."""
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
    """Retry policy. `again`: retries after the first attempt. Each pause is a random share of a limit that doubles from
    `first_s` up to `most_s` seconds. `within_s`: seconds after the first failure within which further attempts may
    begin.
    """

    again: int = 0
    first_s: float = 0.0
    most_s: float = inf
    within_s: float = inf

    def build_retrying(self, retry: Any) -> Any:
        """Return a tenacity.Retrying with this policy's pauses and time limit. `retry`: tenacity's condition on the
        exception.
        """
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
