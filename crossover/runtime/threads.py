"""Calls on threads for which nobody waits when the process ends.

Python waits for all threads of a ThreadPoolExecutor before it ends, and refuses them new calls meanwhile: after Ctrl-C one worker would
wait at its barrier for another whose next call was refused. It does not wait for daemon threads, but tears them out of whatever they are
in; out of torch, that is `std::terminate`. So the runtime's are daemons, and a process with one of them at work ends by `leave`.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, NoReturn, TypeVar

from crossover import runtime

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that is under way on a thread of its own."""

    def __init__(self, call: Callable[[], T], *, name: str | None = None) -> None:
        self._call = call
        self._results: list[T] = []
        self._failure: BaseException | None = None
        self.thread = runtime.thread(self._run, name=name)
        self.thread.start()

    def result(self) -> T:
        """What it returned, or raises what it raised, once it is over."""
        self.thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as failure:
            self._failure = failure


def side_by_side(calls: Iterable[Callable[[], T]], *, slots: int) -> tuple[dict[int, T], dict[int, BaseException]]:
    """What all calls returned, and what they raised, by their numbers, once all have ended: `slots` of them at a time."""
    waiting = deque(enumerate(calls))
    results, failures = dict[int, T](), dict[int, BaseException]()

    def call_what_waits() -> None:
        while waiting:
            try:
                number, call = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[number] = call()
            except BaseException as failure:
                failures[number] = failure

    under_way = [BackgroundCall(call_what_waits) for _ in range(min(slots, len(waiting)))]
    for each in under_way:
        each.result()
    return results, failures


def at_work() -> bool:
    """Whether any of the runtime's threads has not ended."""
    return any(isinstance(thread, runtime.ProcessThread) for thread in threading.enumerate())


def leave(status: int) -> NoReturn:
    """End the process at once, its output written. No exit handler runs: an inline run starts nothing outside the process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has left, or it is closed
            stream.flush()
    os._exit(status)
