"""The threads of an inline run, for which nobody waits when the process ends.

Python waits for all threads of a ThreadPoolExecutor before it ends, and refuses them new calls meanwhile: after Ctrl-C one worker would
wait at its barrier for another whose next call was refused. It does not wait for daemon threads, but tears them out of whatever they are
in; out of torch, that is `std::terminate`. So these are daemons, and a process with one of them at work ends by `leave`.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn


class RunThread(threading.Thread):
    """A thread that trains, or waits for one that does."""

    def __init__(self, target: Callable[..., Any], *args: Any, name: str | None = None) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)


def at_work() -> bool:
    """Whether any of them has not ended."""
    return any(isinstance(thread, RunThread) for thread in threading.enumerate())


def leave(status: int) -> NoReturn:
    """End the process at once, its output written. No exit handler runs: an inline run starts nothing outside the process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader has left, or it is closed
            stream.flush()
    os._exit(status)
