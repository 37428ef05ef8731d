"""SIGTERM and SIGHUP as Ctrl-C: what was started is stopped, what was computed is written, and the exit status names the signal."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Within it the first of them raises KeyboardInterrupt, and further ones do nothing; at its end typer.Exit(128 + number). Signals that
    are ignored already, as under nohup, stay so.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received:
            return
        received.append(number)
        if number == signal.SIGHUP:
            _leave_the_terminal()
        raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING} if here else {}
    mine = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        if not received:
            raise
        raise typer.Exit(128 + received[0]) from None
    finally:
        for number in mine:
            signal.signal(number, before[number])


def _leave_the_terminal() -> None:
    """It is gone: whatever is written to it would fail, and with it what is still to be done."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if os.isatty(stream):
            os.dup2(nowhere, stream)
    os.close(nowhere)
