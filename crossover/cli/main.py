"""The entry point of the command `crossover`, and its exit statuses.

0 done; 1 an internal fault, a fault of the cloud's, or a run or check that failed; 2 an error that the user can fix; 3 no candidate meets
the constraints; 130 stopped by Ctrl-C (by typer, during imports by this module); 141 the reader of the output has left; docs/using.md has
the table. Tracebacks are shown only with --debug. The modules imported here load quickly, so that Ctrl-C is handled almost from the start.
"""

import errno
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from crossover.cli import shadows

if TYPE_CHECKING:
    from typer import Typer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with the command's status, by SystemExit; it never returns.

    `arguments`: words of the command line, None for those of this process. Only for the latter, threads that still run are abandoned at the
    end: then the process ends by os._exit, which no caller can catch. Only for the latter, too, --json reserves standard output for the
    answer.
    """
    _open_closed_streams()
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # rich would print nothing; some containers and editors set 0 if they do not know
    with _exit_at_interrupt(), _explain_failed_import():
        from crossover import processes
        from crossover.cli import answers
        from crossover.cli.commands import app  # a second or two on a busy machine
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what the terminal's encoding lacks is no reason to fail
    logging.raiseExceptions = False  # a log on a full disk: what failed is said once, by the command
    try:
        if arguments is None and "--json" in sys.argv:
            answers.reserve_stdout()
        run_command(app, sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:
        if arguments is None and isinstance(end.code, int) and processes.has_running_threads():
            processes.exit_at_once(end.code)
        raise


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that was closed when the process began, as `>&-` does. Otherwise printing would fail, and a
    file opened later would get the stream's number and what other programs print.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


@contextmanager
def _exit_at_interrupt() -> Iterator[None]:
    """Context manager in whose block Ctrl-C ends the process at once, with status 130 and no message. It is for imports, where an interrupt
    may raise any error.

    Does nothing outside the main thread or if Ctrl-C is ignored.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _explain_failed_import() -> Iterator[None]:
    """Context manager in whose block an error that a file of the user's causes, because Python imports it in place of a package, is printed
    and ends the process with status 2. Other errors pass.
    """
    try:
        yield
    except Exception as error:
        if not (cause := shadows.explain_any(error)):
            raise
        print(f"error: {ascii(cause)[1:-1]} ({type(error).__name__}: {error})", file=sys.stderr)
        sys.exit(2)


def run_command(app: "Typer", arguments: Sequence[str], *, name: str = "crossover") -> None:
    """Run the typer application `app` with the words `arguments`, and exit by SystemExit. Any failure is printed as one message to standard
    error and ends with its status (see the module); with --json the message is also printed as a JSON document. If the reader of the
    output has left, as in `crossover schema | head -1`, nothing is printed and the status is that of the signal SIGPIPE.

    `name`: name of the application in its usage lines.
    """
    from crossover.cli import answers

    try:
        _run(app, arguments, name=name)
    except BrokenPipeError as error:
        if not answers.has_reader_left():  # the connection to a server broke
            _fail_unexpectedly(error, arguments)
        answers.discard_output()
        sys.exit(128 + signal.SIGPIPE)


def _run(app: "Typer", arguments: Sequence[str], *, name: str) -> None:
    """Run the application as `run_command` does, but raise BrokenPipeError for output or a connection that is closed at the other end."""
    from crossover.cli import answers
    from crossover.errors import DISK_FULL_ERRNOS, REFUSED_ERRNOS, CrossoverError

    answers.expect_answer()
    try:
        app(args=list(arguments), prog_name=name)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer takes any for output that nobody reads
            raise end.__context__ from None
        sys.stdout.flush()
        # typer has printed what is wrong with the options, and ends while it handles that error.
        format_message = getattr(end.__context__, "format_message", None)
        if "--json" in arguments and format_message and isinstance(end.code, int):
            answers.write_error(format_message(), status=end.code)
        raise
    except CrossoverError as error:
        cause = shadows.explain(error)
        message = f"{error}\n{cause}" if cause else str(error)
        _fail(error, message, status=error.exit_code, arguments=arguments)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno in REFUSED_ERRNOS and error.filename:  # a folder of the user's
            _fail(error, f"{error.filename}: {error.strerror}", status=2, arguments=arguments)
        if error.errno not in DISK_FULL_ERRNOS:
            _fail_unexpectedly(error, arguments)
        where = f" ({error.filename})" if error.filename else ""
        way_out = "free some space, or choose another disk with --out and TMPDIR"
        if error.errno == errno.EFBIG:
            way_out = "this process may not write files of that size; raise the limit (ulimit -f)"
        message = f"{error.strerror}{where}: {way_out}"
        _fail(error, message, status=2, arguments=arguments)
    except ModuleNotFoundError as error:
        if shadows.explain(error) or not (extra := _find_extra(error.name or "")):
            _fail_unexpectedly(error, arguments)
        message = f"{error.name} is not installed: it comes with the extra {extra!r}; pip install 'crossover[{extra}]'"
        _fail(error, message, status=2, arguments=arguments)
    except Exception as error:
        _fail_unexpectedly(error, arguments)


def _find_extra(module: str) -> str:
    """Return the name of the optional extra of this package (as in pip install 'crossover[name]') that installs the Python module `module`,
    "" if none does.
    """
    import re
    from importlib import metadata

    package = module.partition(".")[0].replace("_", "-")
    for requirement in metadata.requires("crossover") or ():
        found = re.match(r"""([\w-]+).*extra == ["'](\w+)["']""", requirement)
        if found and f"{found[1]}-".startswith(f"{package}-"):
            return found[2]
    return ""


def _fail_unexpectedly(error: Exception, arguments: Sequence[str]) -> NoReturn:
    """Print that an error is a fault of Crossover's, and exit with status 1; if a file of the user's that is imported in place of a package
    may be the cause, name that file instead, and exit with status 2. `arguments`: words of the command line, which may contain --debug or
    --json, as for `_fail`.
    """
    message = f"{type(error).__name__}: {error}"
    if cause := shadows.explain_any(error):
        _fail(error, f"{cause} ({message})", status=2, arguments=arguments)
    _fail(
        error,
        f"{message}\nThis is a fault of Crossover's; --debug shows where it happened.",
        status=1,
        arguments=arguments,
    )


def _fail(error: Exception, message: str, *, status: int, arguments: Sequence[str]) -> NoReturn:
    """Print `message` as an error to standard error, and exit with `status`. `arguments`: words of the command line; with --debug the
    traceback of `error` is printed first, with --json the message also as a JSON document.
    """
    if "--debug" in arguments:
        import traceback

        traceback.print_exception(error)
    from crossover.cli import answers
    from crossover.errors import print_line

    print_line(f"error: {message}", stderr=True)
    if "--json" in arguments:
        answers.write_error(message, status=status)
    sys.exit(status)
