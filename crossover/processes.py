"""Answer signals in order, and run calls on threads beside the caller."""

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, NoReturn, TypeVar

from crossover import runtime

# --- interrupts -------------------------------------------------------------------------------------------------------

RESEND_DELAY_S = 0.02


class Interrupted(KeyboardInterrupt):
    """KeyboardInterrupt that is raised for the signal SIGTERM or SIGHUP, so that it is handled as Ctrl-C is. `number`: the
    signal's. `ignored`: whether Python ignored the exception once, so that the signal was sent again.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:  # some libraries raise the class anew
        """Create the exception for the signal `number`."""
        super().__init__()
        self.number, self.ignored = number, False


class EndedBySignal(SystemExit):
    """SystemExit that is raised for the signal SIGTERM or SIGHUP and ends the process with status 128 + `number`, the signal's.
    `ignored`: whether Python ignored the exception once, so that the signal was sent again.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:  # some libraries raise the class anew
        """Create the exception for the signal `number`; the exit status is 128 + `number`."""
        super().__init__(128 + number)
        self.number, self.ignored = number, False


@contextmanager
def resend_ignored_signals() -> Iterator[None]:
    """Within the `with` block, handle interrupts that Python drops: if the exception for a signal was raised where Python ignores
    exceptions, such as in a destructor, send the signal to this process again 0.02 s later. It replaces sys.unraisablehook meanwhile.
    """
    before = sys.unraisablehook

    def report(ignored: Any) -> None:
        """Send the signal again, from a timer thread, if the ignored exception stands for one; pass other exceptions to the earlier
        hook. `ignored`: what Python gives to sys.unraisablehook.
        """
        error = ignored.exc_value
        if isinstance(error, Interrupted | EndedBySignal):
            number, error.ignored = error.number, True
        elif isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT
        else:
            before(ignored)
            return
        timer = threading.Timer(RESEND_DELAY_S, os.kill, (os.getpid(), number))  # from here it would be ignored again
        timer.daemon = True
        timer.start()

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


# --- threads ----------------------------------------------------------------------------------------------------------
# Calls on threads for which nobody waits when the process ends.
#
# Python waits for all threads of a ThreadPoolExecutor before it ends, and refuses them new calls meanwhile: after Ctrl-C one worker would
# wait at its barrier for another whose next call was refused. It does not wait for daemon threads, but tears them out of whatever they are
# in; out of torch, that is `std::terminate`. So the runtime's are daemons, and a process with one of them at work ends by `exit_at_once`.

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """Call of a function on a new daemon thread, which starts when the object is created; `result` waits for its end. `thread`: that
    thread.
    """

    def __init__(self, call: Callable[[], T], *, name: str | None = None) -> None:
        """Start the thread, which runs `call`. `name`: name of the thread."""
        self._call = call
        self._results: list[T] = []
        self._failure: BaseException | None = None
        self.thread = runtime.thread(self._run, name=name)
        self.thread.start()

    def result(self) -> T:
        """Wait, without a timeout, until the call has ended; return its result, or raise its exception. It may be called again."""
        self.thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def _run(self) -> None:
        """Run the call and store its result or its exception for `result`."""
        try:
            self._results.append(self._call())
        except BaseException as failure:
            self._failure = failure


def run_in_threads(calls: Iterable[Callable[[], T]], *, slots: int) -> tuple[dict[int, T], dict[int, BaseException]]:
    """Call all `calls` in threads, at most `slots` at a time, in their order, and wait for all of them, even if one raises.

    Returns (results, exceptions), two dicts by the index of the call: it is in the first if it returned, in the second if it raised
    (KeyboardInterrupt and SystemExit included). With `slots` below 1 nothing is called, and both are empty.
    """
    waiting = deque(enumerate(calls))
    results, failures = dict[int, T](), dict[int, BaseException]()

    def run_queued_calls() -> None:
        """Take calls from the queue and run them, one after another, until the queue is empty. What a call returns is put into `results`,
        what it raises into `failures`, both by the call's number; nothing is raised.
        """
        while waiting:
            try:
                number, call = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[number] = call()
            except BaseException as failure:
                failures[number] = failure

    under_way = [BackgroundCall(run_queued_calls) for _ in range(min(slots, len(waiting)))]
    for each in under_way:
        each.result()
    return results, failures


def has_running_threads() -> bool:
    """Return whether a thread that the real runtime created (`runtime.thread`) is still running in this process."""
    return any(isinstance(thread, runtime.ProcessThread) for thread in threading.enumerate())


def exit_at_once(status: int) -> NoReturn:
    """Flush standard output and standard error and end the process with the exit `status`, without exit handlers and without
    waiting for threads.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has left, or it is closed
            stream.flush()
    os._exit(status)
