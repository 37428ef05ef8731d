"""Failures of the user's own code, told as such: field, name, their file and line, what it said."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from crossover.errors import CrossoverError, OwnCodeError
from crossover.own_code import places

_HOME = Path(__file__).parents[2]  # of this project's packages


@contextmanager
def blame(field: str, name: str, *, what: Any = None) -> Iterator[None]:
    """Around calls of `what`, which `field` names `name`: what it raises becomes an OwnCodeError with file and line.

    Around names of our own too, whose failures pass as they are. So do our own errors, and memory that ran out.
    """
    try:
        yield
    except (CrossoverError, MemoryError):
        raise
    except Exception as error:
        if ":" not in name or "can't allocate memory" in str(error):
            raise
        raise failure(field, name, error, what=what) from error


def failure(field: str, name: str, error: BaseException, *, what: Any = None) -> OwnCodeError:
    """The error that tells `error`, raised by the code behind `name`. Where none of its lines was under way, as in the backward pass of a
    module built of torch's layers, the place is where `what` is defined.
    """
    place = of_traceback(error.__traceback__) or of_definition(what)
    said = " ".join(str(error).split()) or "no message"
    problem = f"{type(error).__name__}: {said}"
    if inside := _of_project(error.__traceback__):
        return OwnCodeError(
            f"{field}: {name!r}: {inside}, called by your code{f', {place}' if place else ''}: {problem}"
        )
    return told(field, name, problem, place=place)


def told(field: str, name: str, problem: str, *, place: str | None) -> OwnCodeError:
    """`training.model: 'mytask:factory': your code, mytask.py, line 3: ValueError: ...`."""
    return OwnCodeError(f"{field}: {name!r}: your code{f', {place}' if place else ''}: {problem}")


def of_traceback(trace: TracebackType | None) -> str | None:
    """The innermost line of the user's own: `mytask.py, line 3, in forward`."""
    found = None
    while trace is not None:
        found = _of_frame(trace.tb_frame, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def _of_project(trace: TracebackType | None) -> str | None:
    """The line of this project's that the user's own has called and that failed, perhaps through others' functions; None where the user's
    own is further in: `crossover/training/gradients.py, line 3`.
    """
    found, theirs = None, False
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if places.is_own(str(file)):
            found, theirs = None, True
        elif theirs and file.is_relative_to(_HOME):
            found = f"{file.relative_to(_HOME)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def of_caller() -> str | None:
    """The line of the user's own that has called, perhaps through others' functions; None where another's import is under way."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if found := _of_frame(frame, frame.f_lineno):
            return found
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return None  # of another package's module, which the user's merely imports
        frame = frame.f_back
    return None


def of_definition(what: Any) -> str | None:
    """Where a function or class is defined: `mytask.py, line 3`."""
    what = inspect.unwrap(what) if callable(what) else what
    code = getattr(what, "__code__", None) or getattr(getattr(what, "__init__", None), "__code__", None)
    return place(code.co_filename, code.co_firstlineno) if code and places.is_own(code.co_filename) else None


def place(file: str | Path, line: int | None) -> str:
    """`mytask.py, line 3`."""
    return f"{places.shown(file)}, line {line}" if line else places.shown(file)


def _of_frame(frame: FrameType, line: int) -> str | None:
    code = frame.f_code
    if not places.is_own(code.co_filename):
        return None
    inside = f", in {code.co_name}" if code.co_name.isidentifier() else ""
    return place(code.co_filename, line) + inside
