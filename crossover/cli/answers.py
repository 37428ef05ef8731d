"""Standard output with --json: for the answer alone, whatever else in this process, its libraries and its children writes there."""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

_kept: TextIO | None = None
_answered = False


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


def write_answer(answer: Mapping[str, Any]) -> None:
    """Write a command's answer as one JSON document. Raises ValueError if a number is not finite."""
    global _answered
    print(json.dumps(answer, indent=1, allow_nan=False), file=answer_stream(), flush=True)
    _answered = True


def expect_answer() -> None:
    """Note that a command begins, which has not answered yet."""
    global _answered
    _answered = False


def write_error(message: str, *, status: int) -> None:
    """Write `message` and the exit status as a JSON document, unless the command has answered: its reader expects one document."""
    if not _answered:
        with suppress(OSError):  # the reader has left
            write_answer({"error": message, "exit_status": status})


def discard_answers() -> None:
    """Redirect the command's answer to the null device, because its reader has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), answer_stream().fileno())
