"""What files own modules read while they are imported, or while the model is built: functions hold the Python files alone, and a run that
is resumed would not notice that another one had changed.

Python tells audit hooks of every opened file. A hook stays for the life of its process, so one is added, when it is first wanted, and it
looks away at all other times.
"""

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from crossover.errors import OwnCodeError
from crossover.own_code import faults, places

_own = threading.local()


@contextmanager
def building(field: str, name: str) -> Iterator[None]:
    """Raises OwnCodeError for a file that the user's own lines read meanwhile, in this thread, even if they catch it."""
    if not places.has_folders():  # a function or program: whoever started the run has watched
        yield
        return
    with places.lock:  # two threads at once would add two
        _install()
    outer: _Watch | None = getattr(_own, "watch", None)
    watch = _own.watch = _Watch(field, name)
    try:
        yield
    finally:
        _own.watch = outer
    if watch.found is not None:
        raise watch.found


class _Watch:
    def __init__(self, field: str, name: str) -> None:
        self.field, self.name = field, name
        self.found: OwnCodeError | None = None

    def opened(self, path: Any, flags: Any) -> None:
        if (file := _data_file(path, flags)) and (place := faults.of_caller()):
            self.found = self.found or faults.told(
                self.field,
                self.name,
                f"reads {places.shown(file)} when it is imported or called, which functions have not: they hold your Python files alone; "
                "write it as a constant of a module, or read it in the loader of data.dataset, which runs on this machine",
                place=place,
            )
            raise self.found


@cache
def _install() -> None:
    sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    watch: _Watch | None = getattr(_own, "watch", None)
    if watch is None or event != "open":
        return
    _own.watch = None  # what looking itself opens is nobody's deed
    try:
        watch.opened(arguments[0], arguments[2])
    finally:
        _own.watch = watch


def _data_file(path: Any, flags: Any) -> Path | None:
    """The file, if it is one that the user keeps; None for Python's own, the system's, and files that are written."""
    if not isinstance(path, str | bytes | os.PathLike) or (
        isinstance(flags, int) and flags & (os.O_WRONLY | os.O_CREAT)
    ):
        return None
    found = Path(os.fsdecode(path)).resolve()
    if found.suffix in (".py", ".pyc", ".so") or not found.is_file():
        return None
    elsewhere = ("/proc", "/sys", "/dev", "/etc", "/usr", sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"))
    return None if any(found.is_relative_to(each) for each in elsewhere) else found
