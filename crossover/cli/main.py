"""The command `crossover`: its sub-commands, and what its exit status says.

0 done; 1 our fault or the cloud's, or a run or check that failed; 2 the user can mend it; 3 nothing holds what was wished; 130 stopped by
Ctrl-C. README has them as a table. Tracebacks only with --debug. Nothing heavy is imported
here: `--help` and a mistake in a file answer at once.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import typer

from crossover import threads
from crossover.cli import (
    advise,
    chaos,
    compare,
    deployment,
    destruction,
    doctor,
    new,
    plan,
    price_refresh,
    projection,
    replicate,
    run,
    schema,
    status,
    verification,
)
from crossover.errors import CrossoverError

FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or a user's share of it

app = typer.Typer(
    help="One training job on seven distributed architectures: deployed, measured, compared, torn down.",
    epilog="Exit status: 0 done; 1 a run or check failed; 2 yours to mend; 3 nothing holds what advise was asked; 130 Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run.run,
    compare.compare,
    advise.advise,
    projection.breakeven,
    projection.project,
    replicate.replicate,
    plan.plan,
    doctor.doctor,
    deployment.deploy,
    status.status,
    destruction.destroy,
    verification.verify_aws,
    schema.schema,
    new.new,
    chaos.chaos,
):
    app.command()(command)
app.add_typer(price_refresh.app, name="prices")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `arguments`: this process's own, unless given: then it goes on afterwards."""
    try:
        _call(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:
        if arguments is None and isinstance(end.code, int) and threads.at_work():
            threads.leave(end.code)
        raise


def _call(arguments: Sequence[str]) -> None:
    """Every failure ends here, as one message for people; Ctrl-C is typer's 130."""
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
        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)
