"""Standard output with --json: for the answer alone, whatever else in this process, its libraries and its children writes there."""

import json
import os
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

_kept: TextIO | None = None
_answered = False
_nowhere_at_first = False  # whether standard output was the null device when the command began


def reserve_stdout() -> None:
    """Keep the process's standard output for the command's JSON answer, and redirect everything else that this process or its children
    print there to standard error, for the rest of the process. Does nothing if standard output or standard error is closed. To be called
    once: after a second call, the answer would go to standard error, too.
    """
    global _kept
    with suppress(OSError):  # one of the two is closed
        _kept = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115  # as long as the process
        os.dup2(2, 1)


def answer_stream() -> TextIO:
    """Return the stream for a command's JSON answer: the original standard output if it was reserved, else sys.stdout."""
    return _kept or sys.stdout


def write_answer(answer: Mapping[str, Any]) -> None:
    """Print a command's answer as one JSON document on the stream of answers, and note for this process that the command has answered.
    Raises ValueError if a number is not finite.
    """
    global _answered
    print(json.dumps(answer, indent=1, allow_nan=False), file=answer_stream(), flush=True)
    _answered = True


def expect_answer() -> None:
    """Note for this process that a command begins and has printed no answer yet."""
    global _answered, _nowhere_at_first
    _answered, _nowhere_at_first = False, _is_stdout_nowhere()


def write_error(message: str, *, status: int) -> None:
    """Print {"error": message, "exit_status": status} as the command's JSON answer, unless it has already printed its answer, because its
    reader expects exactly one document. Does nothing if the reader has closed the pipe.
    """
    if not _answered:
        with suppress(OSError):  # the reader has left
            write_answer({"error": message, "exit_status": status})


def has_reader_left() -> bool:
    """Return whether the reader of standard output, of standard error or of the stream of answers has closed its end of the pipe since
    the command began. Then rich has directed standard output to the null device, if it wrote.
    """
    if _is_stdout_nowhere() and not _nowhere_at_first:
        return True
    poll = select.poll()
    for number in _list_output_numbers():
        poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def discard_output() -> None:
    """Redirect all output of this process to the null device, so that flushing it at the end cannot fail. Called after its reader has
    closed the pipe.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in _list_output_numbers():
        os.dup2(nowhere, number)


def _list_output_numbers() -> list[int]:
    """Return the file descriptors of standard output, standard error and the stream of answers, if that is another one."""
    return [1, 2, *([_kept.fileno()] if _kept else [])]


def _is_stdout_nowhere() -> bool:
    """Return whether standard output is the null device."""
    return os.path.samestat(os.fstat(1), os.stat(os.devnull))
