"""The command `crossover`: what its exit status says.

0 done; 1 our fault or the cloud's, or a run or check that failed; 2 the user can mend it; 3 nothing holds what was wished; 130 stopped by
Ctrl-C; docs/using.md has the table. Tracebacks only with --debug. What is imported here takes no time: from then on Ctrl-C is answered.
"""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `arguments`: this process's own, unless given: then it goes on afterwards."""
    with _leaving_at_once():
        from crossover.cli import commands  # noqa: F401  # a second or two on a busy machine
        from crossover.runtime import threads
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal's encoding lacks is no reason to fail
    try:
        _call(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:
        if arguments is None and isinstance(end.code, int) and threads.at_work():
            threads.leave(end.code)
        raise


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Within it Ctrl-C ends the process by 130 and without a word: nothing has begun, and an import that is cut off may say anything."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _call(arguments: Sequence[str]) -> None:
    """Every failure ends here, as one message for people; Ctrl-C is typer's 130."""
    from crossover.cli.commands import app
    from crossover.errors import FULL, CrossoverError

    try:
        app(args=list(arguments), prog_name="crossover")
    except CrossoverError as error:
        _fail(error, str(error), status=error.exit_code, debug="--debug" in arguments)
    except BrokenPipeError:  # the reader of our output has left, as in `crossover schema | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in FULL:
            _unexpected(error, arguments)
        where = f" ({error.filename})" if error.filename else ""
        message = f"{error.strerror}{where}: free some space, or choose another disk with --out and TMPDIR"
        _fail(error, message, status=2, debug="--debug" in arguments)
    except Exception as error:
        _unexpected(error, arguments)


def _unexpected(error: Exception, arguments: Sequence[str]) -> NoReturn:
    message = f"{type(error).__name__}: {error}\nThis is a fault of Crossover's; --debug shows where it happened."
    _fail(error, message, status=1, debug="--debug" in arguments)


def _fail(error: Exception, message: str, *, status: int, debug: bool) -> NoReturn:
    if debug:
        import traceback

        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)
