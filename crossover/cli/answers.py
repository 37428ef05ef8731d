"""Standard output with --json: for the answer alone, whatever else in this process, its libraries and its children writes there."""

import os
import sys
from contextlib import suppress
from typing import TextIO

_kept: TextIO | None = None


def keep_for_answers() -> None:
    """Reserve standard output for the command's answer: redirect all other output of this process and its children to standard error.

    The original standard output is then what `stream` returns.
    """
    global _kept
    with suppress(OSError):  # one of the two is closed
        _kept = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
        os.dup2(2, 1)


def stream() -> TextIO:
    """Return the stream on which a command's answer is printed."""
    return _kept or sys.stdout


def give_up() -> None:
    """Redirect the answers to the null device, because their reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream().fileno())
