"""Standard output with --json: for the answer alone, whatever else in this process, its libraries and its children writes there."""

import os
import sys
from contextlib import suppress
from typing import TextIO

_kept: TextIO | None = None


def reserve_stdout() -> None:
    """Reserve standard output for the command's answer, and redirect all other output of this process and its children to standard error.
    `answer_stream` then returns the original standard output.
    """
    global _kept
    with suppress(OSError):  # one of the two is closed
        _kept = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
        os.dup2(2, 1)


def answer_stream() -> TextIO:
    """Return the stream on which a command's answer is printed."""
    return _kept or sys.stdout


def discard_answers() -> None:
    """Redirect the command's answer to the null device, because its reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), answer_stream().fileno())
