"""What is under way, while a command computes: on a terminal a line that moves, in a pipe a line to stderr now and then."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

from crossover.reports import display
from crossover.runtime.process_pools import POOLED

PATIENCE_S = 3.0  # what is done by then says nothing
EVERY_S = {True: 0.5, False: 15.0}  # on a terminal, and elsewhere


@contextmanager
def waiting(what: str, *, whole: bool = True) -> Iterator[None]:
    """Says within it what is done, how far it is, and, where all jobs are known from the first on (`whole`), how long it will take."""
    screen, ended = Console(stderr=True, highlight=False), threading.Event()
    status = screen.status(what) if sys.stderr.isatty() else None
    teller = threading.Thread(target=_tell, args=(what, whole, ended, status), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        if status is not None:
            status.stop()


def _tell(what: str, whole: bool, ended: threading.Event, status: Status | None) -> None:
    began_s, given, done = time.monotonic(), POOLED.given, POOLED.done
    pause_s = PATIENCE_S if status is not None else EVERY_S[False]
    while not ended.wait(pause_s):
        line = far(what, POOLED.done - done, POOLED.given - given, time.monotonic() - began_s, whole=whole)
        if status is None:
            print(line, file=sys.stderr, flush=True)
            continue
        status.update(line)
        status.start()
        pause_s = EVERY_S[True]


def far(what: str, done: int, given: int, seconds: float, *, whole: bool) -> str:
    """`30 repetitions: 12 of 60 parts, 40.0 s so far, about 2 min 40 s left`."""
    parts = f"{done:,} of {given:,} parts, " if whole and given else f"{done:,} parts, " if given else ""
    left = f", about {display.seconds(seconds * (given - done) / done)} left" if whole and done else ""
    return f"{what}: {parts}{display.seconds(seconds)} so far{left}".replace(display.GAP, " ")
