"""What own modules do while they are imported, or while the model is built, that functions could not do or that would outlive it.

Python tells audit hooks of every fork, socket and opened file. A hook stays for the life of its process, so one is added, when it is first
wanted, and it looks away at all other times.
"""

import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossover.errors import OwnCodeError
from crossover.own_code import faults, places

_DEEDS = {
    **dict.fromkeys(
        ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"), "starts a process"
    ),
    "os.exec": "replaces the process by another program",
    **dict.fromkeys(("socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo"), "opens a socket"),
}
_MEND = "do it inside the function that needs it"
_own = threading.local()
_lock = threading.Lock()
_installed = False


@contextmanager
def imports(field: str, name: str) -> Iterator[None]:
    """Raises OwnCodeError for a process or socket that the user's own lines start meanwhile, in this thread, even if they catch it."""
    with _watched(field, name, when="when it is imported", files=False):
        yield


@contextmanager
def building(field: str, name: str) -> Iterator[None]:
    """As `imports`, of what a function does as well: it has the Python files alone, so no other file may be read."""
    with _watched(field, name, when="when it is imported or called", files=True):
        yield


@contextmanager
def _watched(field: str, name: str, *, when: str, files: bool) -> Iterator[None]:
    if not places.has_folders():  # a function or program: whoever started the run has watched
        yield
        return
    _install()
    outer: _Watch | None = getattr(_own, "watch", None)
    watch = _own.watch = _Watch(field, name, when, files or bool(outer and outer.files))
    try:
        yield
    finally:
        _own.watch = outer
    if watch.found is not None:
        raise watch.found


class _Watch:
    def __init__(self, field: str, name: str, when: str, files: bool) -> None:
        self.field, self.name, self.when, self.files = field, name, when, files
        self.found: OwnCodeError | None = None

    def see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self.files and (path := _data_file(arguments[0], arguments[2])):
            deed = (
                f"reads {places.shown(path)} {self.when}, which functions have not: they hold your Python files alone"
            )
            mend = "write it as a constant of a module, or read it in the loader of data.dataset, which runs on this machine"
        elif event in _DEEDS:
            deed, mend = f"{_DEEDS[event]} {self.when}", _MEND
        else:
            return
        if place := faults.of_caller():
            self.found = self.found or faults.told(self.field, self.name, f"{deed}; {mend}", place=place)
            raise self.found


def _install() -> None:
    global _installed
    with _lock:
        if not _installed:
            sys.addaudithook(_hook)
            _installed = True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    watch: _Watch | None = getattr(_own, "watch", None)
    if watch is None or (event not in _DEEDS and event != "open"):
        return
    _own.watch = None  # what looking itself opens is nobody's deed
    try:
        watch.see(event, arguments)
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
