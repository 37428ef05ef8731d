"""SIGTERM and SIGHUP handled like Ctrl-C: started work is stopped, results are written, and the exit status names the signal."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from crossover.processes import Interrupted, resend_ignored_signals

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Context manager in whose block the first SIGTERM or SIGHUP raises KeyboardInterrupt (Interrupted), as Ctrl-C does. If that ends the
    block, typer.Exit is raised in its place, with the status 128 + number of the signal.

    Further signals are ignored, unless Python has discarded the first exception. Signals that already have a handler or are ignored, as
    under nohup, are left alone. Outside the main thread it does nothing.
    """
    received: list[int] = []
    raised: list[Interrupted] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Handle a signal: record it and raise Interrupted, after SIGHUP with the terminal's streams redirected. Does nothing if an earlier
        signal was raised already, unless Python discarded that exception.
        """
        if raised and not raised[-1].ignored:
            return
        received.append(number)
        if number == signal.SIGHUP:
            _leave_the_terminal()
        raised.append(Interrupted(number))
        raise raised[-1]

    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING} if here else {}
    mine = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in mine:
        signal.signal(number, interrupt)
    try:
        with resend_ignored_signals():
            yield
    except KeyboardInterrupt:
        if not received:
            raise
        raise typer.Exit(128 + received[0]) from None
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _leave_the_terminal() -> None:
    """Redirect standard output and standard error to the null device if they are a terminal, which has been closed, so that cleaning up
    does not fail at a write.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if os.isatty(stream):
            os.dup2(nowhere, stream)
    os.close(nowhere)
