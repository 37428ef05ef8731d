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
    """Protocol of a daemon thread: one that does not keep its process alive."""

    def start(self) -> None:
        """Start the thread, once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, `timeout` seconds at most (None: without limit). Returns None in both cases; `is_alive` tells
        them apart.
        """

    def is_alive(self) -> bool:
        """Return whether the thread is running."""


class EventFlag(Protocol):
    """Protocol of threading.Event: a flag that threads wait for."""

    def set(self) -> None:
        """Set the flag, which wakes all waiting threads. It stays set: nothing clears it."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, `timeout` seconds at most (None: without limit). Returns whether it is set."""


class Lock(Protocol):
    """Protocol of threading.Lock as a context manager."""

    def __enter__(self) -> bool:
        """Wait for the lock and take it. Returns True."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Release the lock. An error of the block passes on."""


class ProcessThread(threading.Thread):
    """Thread that `ThisProcess.thread` creates, always as a daemon. The class adds nothing to its base; `has_running_threads`
    recognises the runtime's threads by it.
    """


class ThisProcess:
    """The real runtime: clock, waits, threads and random numbers of this process. A simulated runtime derives from it, with
    `simulated` set to True; the functions of this module call the runtime that `use` has installed, by default an instance of this
    class.
    """

    simulated = False

    def __init__(self) -> None:
        """Record the start time, and take random numbers from the operating system."""
        self._started_at, self._state = clock.time(), dict[str, Any]()
        self._chance: random.Random = (
            random.SystemRandom()
        )  # environments restored from one snapshot share the state of all others

    def time(self) -> float:
        """Return this machine's time in unix seconds."""
        return clock.time()

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back; only differences mean something."""
        return clock.monotonic()

    def perf_counter(self) -> float:
        """Return the seconds of the clock with the highest resolution, for measurements; only differences mean something."""
        return clock.perf_counter()

    def processor_s(self) -> float:
        """Return the CPU seconds that the calling thread has used."""
        return clock.thread_time()

    def process_s(self) -> float | None:
        """Return the CPU seconds that all threads of the process have used; None if the caller is not its main thread."""
        return clock.process_time() if threading.current_thread() is threading.main_thread() else None

    def peak_memory_mb(self) -> float:
        """Return the most memory that the process has had resident so far, in MiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def started_at(self) -> float:
        """Return when this object was made, in unix seconds: at the import of this module, shortly after the process started."""
        return self._started_at

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for `seconds`."""
        clock.sleep(seconds)

    def pause(self, seconds: float, *, calm_s: float) -> None:
        """Sleep for `seconds` between two polls. `calm_s`: only simulated runtimes use it."""
        self.sleep(seconds)

    def thread(self, target: Callable[..., object], *args: Any, name: str | None = None) -> Thread:
        """Return a new daemon thread that calls `target(*args)` once it is started. `name`: name of the thread."""
        return ProcessThread(target=target, args=args, name=name, daemon=True)

    def event(self) -> EventFlag:
        """Return a new flag that threads can wait for."""
        return threading.Event()

    def lock(self) -> Lock:
        """Return a new lock."""
        return threading.Lock()

    def local(self) -> Any:
        """Return a new object whose attributes each thread has for itself."""
        return threading.local()

    def entropy(self, count: int) -> bytes:
        """Return `count` random bytes from the system."""
        return self._chance.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between `low` and `high`."""
        return self._chance.uniform(low, high)

    def environment(self) -> Mapping[str, str]:
        """Return the process's environment variables: os.environ itself, no copy."""
        return os.environ

    def state(self) -> dict[str, Any]:
        """Return the dict of values, by name, that live as long as the process, so longer than one invocation of a function. The
        caller may change it.
        """
        return self._state


_installed = ThisProcess()


@contextmanager
def use(runtime: ThisProcess) -> Iterator[None]:
    """Within the `with` block, install `runtime` as the one that the functions of this module call, for all threads of the process;
    then restore the one before it.
    """
    global _installed
    before, _installed = _installed, runtime
    try:
        yield
    finally:
        _installed = before


def is_simulated() -> bool:
    """Return whether a simulated runtime is installed instead of the real one."""
    return _installed.simulated


# --- time -------------------------------------------------------------------------------------------------------------


def time() -> float:
    """Return the time in unix seconds; the clocks of two machines differ."""
    return _installed.time()


def monotonic() -> float:
    """Return the seconds of a clock that never goes back, for waits and timeouts; only differences mean something."""
    return _installed.monotonic()


def perf_counter() -> float:
    """Return the seconds of the clock with the highest resolution, for measurements; only differences mean something."""
    return _installed.perf_counter()


def processor_s() -> float:
    """Return the CPU seconds that the calling thread has used."""
    return _installed.processor_s()


def process_s() -> float | None:
    """Return the CPU seconds that all threads of the process have used; None if the caller is not its main thread, because the
    figure then includes other workers.
    """
    return _installed.process_s()


def peak_memory_mb() -> float:
    """Return the most memory that the process has had resident so far, in MiB."""
    return _installed.peak_memory_mb()


def started_at() -> float:
    """Return when the process started, in unix seconds; strictly, when this module was imported."""
    return _installed.started_at()


# --- waiting and company ----------------------------------------------------------------------------------------------


def sleep(seconds: float) -> None:
    """Block the calling thread for `seconds`; other threads go on."""
    _installed.sleep(seconds)


def pause(seconds: float, *, calm_s: float) -> None:
    """Sleep for `seconds` between two polls. `calm_s`: seconds during which only other workers can change the polled value, so that
    a simulated clock may skip polls.
    """
    _installed.pause(seconds, calm_s=calm_s)


def thread(target: Callable[..., object], *args: Any, name: str | None = None) -> Thread:
    """Return a new daemon thread that calls `target(*args)` once it is started. It does not keep the process alive. `name`: name of
    the thread.
    """
    return _installed.thread(target, *args, name=name)


def event() -> EventFlag:
    """Return a new flag that threads can wait for."""
    return _installed.event()


def lock() -> Lock:
    """Return a new lock, which one thread at a time can hold."""
    return _installed.lock()


def local() -> Any:
    """Return a new object whose attributes each thread has for itself."""
    return _installed.local()


# --- chance -----------------------------------------------------------------------------------------------------------


def identifier() -> str:
    """Return a new random identifier: 32 hexadecimal digits."""
    return entropy(16).hex()


def entropy(count: int) -> bytes:
    """Return `count` random bytes that cannot be predicted."""
    return _installed.entropy(count)


def uniform(low: float, high: float) -> float:
    """Return a random number from `low` to `high`, such as a pause that keeps many clients from returning at the same time."""
    return _installed.uniform(low, high)


# --- what a process has ---------------------------------------------------------------------------------------------------


def environment() -> Mapping[str, str]:
    """Return the process's environment variables; with a simulated runtime, those of the simulated process."""
    return _installed.environment()


def state() -> dict[str, Any]:
    """Return the dict of values, by name, that live as long as the process, so longer than one invocation of a function. The caller
    may change it.
    """
    return _installed.state()


def get_or_make(name: str, make: Callable[[], T]) -> T:
    """Return the value that the process keeps under `name` between invocations. If there is none, call `make` and keep its result. Nothing
    is locked: two threads may both call `make`, and the first result that is stored is returned to both. An error of `make` passes through,
    and nothing is kept.
    """
    values = state()
    found: T = values[name] if name in values else values.setdefault(name, make())
    return found


# --- pauses -----------------------------------------------------------------------------------------------------------
# Waiting by looking again and again: how long the pauses are, when they end, and when something dearer than a look is due.


@dataclass
class Pauses:
    """Pauses of one polling loop. Each lasts a fraction `share` of the time waited so far, but at least `first_s` and otherwise at
    most `last_s` seconds; a `last_s` of 0 makes all pauses `first_s` long.

    So polling costs little, and an event is noticed at most that fraction too late. `within_s`: timeout of the whole wait, in
    seconds.

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
        """Record the time at which the wait began."""
        self._began_s = monotonic()

    @property
    def waited_s(self) -> float:
        """Seconds since the wait began."""
        return monotonic() - self._began_s

    @property
    def next_s(self) -> float:
        """Length of the next pause, in seconds, before it is shortened to end at the timeout."""
        return max(self.first_s, min(self.share * self.waited_s, self.last_s))

    def __call__(self, *, calm_s: float = 0.0) -> bool:
        """Pause and return True, after which the caller polls again; return False at once if `within_s` seconds have passed. The
        last pause ends at the timeout. `calm_s`: seconds during which only other workers can change the polled value.
        """
        left_s = self.within_s - self.waited_s
        if left_s < 1e-6:  # nothing that a clock could tell apart
            return False
        pause(min(self.next_s, left_s), calm_s=min(calm_s, left_s))
        return True


class Backoff:
    """Wait strategy for tenacity.Retrying: each pause is random, between 0 and a limit that doubles from `first_s` up to `most_s`
    seconds.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        """Set the limits, in seconds: `first_s` for the first pause, `most_s` for the longest."""
        self._first_s, self._most_s = first_s, most_s

    def __call__(self, state: Any) -> float:
        """Return the seconds to wait after an attempt. `state`: tenacity's, which has the attempt's number."""
        return uniform(0.0, min(self._first_s * 2.0 ** (state.attempt_number - 1), self._most_s))


class RetryTimeLimit:
    """Stop condition for tenacity.Retrying: give up at the first failure that comes `within_s` seconds or more after the first one; so
    there are at least two attempts, unless `within_s` is 0. No attempt is cut short. An object serves one series of attempts.
    """

    def __init__(self, within_s: float) -> None:
        """Set the seconds after the first failure, `within_s`, during which to retry."""
        self._within_s, self._until_s = within_s, math.inf

    def __call__(self, state: Any) -> bool:
        """Return whether to stop retrying now. tenacity calls it after each failure; the time counts from the first call. `state`:
        not used.
        """
        now_s = monotonic()
        self._until_s = min(self._until_s, now_s + self._within_s)
        return now_s >= self._until_s


class PeriodicTimer:
    """Timer that is due for the first time `first_s` seconds after its creation, then every `every_s` seconds. Call it to ask
    whether it is due.
    """

    def __init__(self, first_s: float, every_s: float) -> None:
        """Start the first period, of `first_s` seconds; later ones last `every_s` seconds."""
        self._at_s, self._every_s = monotonic() + first_s, every_s

    @property
    def left_s(self) -> float:
        """Seconds until the timer is due; negative if it is overdue."""
        return self._at_s - monotonic()

    def __call__(self) -> bool:
        """Return whether the timer is due. If it is, the next period of `every_s` seconds begins now."""
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
    """Policy for retries after a failure, as plain values; whoever retries reads the fields that concern it. `again`: number of
    retries after the first attempt. `first_s`, `most_s`: limits of the first and of the longest pause, in seconds; the limit doubles
    from pause to pause. `within_s`: seconds after the first failure within which attempts may begin.
    """

    again: int = 0
    first_s: float = 0.0
    most_s: float = inf
    within_s: float = inf

    def build_retrying(self, retry: Any) -> Any:
        """Return a tenacity.Retrying with this policy's time limit, and pauses that are random between 0 and their limit; `again` is not
        used. It raises the last attempt's own exception in the end. `retry`: tenacity's condition for which exceptions to retry. Use the
        result for one call, because its time limit counts from its first failure.
        """
        from tenacity import Retrying

        stop, wait = RetryTimeLimit(self.within_s), Backoff(self.first_s, self.most_s)
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
