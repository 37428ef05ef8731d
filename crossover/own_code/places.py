"""Where the user's own modules lie: beside the experiment's file, then in the current folder; in a function, at its root.

Only the modules that own code reaches are taken from there, so no other file of those folders can stand before a package that this project
itself imports.
"""

import importlib
import os
import sys
import threading
from pathlib import Path

from crossover.own_code.packages import DATAPLANE, PROJECT, RUNTIME, TORCH

_TAKEN = {
    "a package of this project": PROJECT,
    "a package that every function has": RUNTIME | DATAPLANE | TORCH,
    "a module of Python's standard library": frozenset(sys.stdlib_module_names),
}


lock = threading.RLock()
_folders: tuple[Path, ...] = ()
tops: set[str] = set()  # top-level names that are looked for in the folders


def look_in(*where: str | Path) -> None:
    """The folders of this process's experiment, in the order in which they are searched. What was found in others is forgotten."""
    global _folders
    chosen = tuple(dict.fromkeys(Path(each).resolve() for each in where))
    with lock:
        if chosen == _folders:
            return
        for name in [each for each in sys.modules if each.split(".")[0] in tops]:
            del sys.modules[name]
        _folders = chosen
        tops.clear()
        importlib.invalidate_caches()


def folders() -> tuple[Path, ...]:
    """Where own modules are looked for: in a function or on an instance, which are told none, where their code lies."""
    return _folders or (Path(os.environ.get("LAMBDA_TASK_ROOT") or os.getcwd()),)


def has_folders() -> bool:
    """Whether this process was told where an experiment's own modules lie: a function or program is not."""
    return bool(_folders)


def locate(module: str) -> list[Path]:
    """The files of an own module, one per folder that has it, in the order of the folders; a folder without __init__.py stands for itself.
    Empty where it is none's own.
    """
    base = Path(*module.split("."))
    found: list[Path] = []
    for folder in folders():
        for path in (folder / base / "__init__.py", (folder / base).with_suffix(".py")):
            if path.is_file():
                found.append(path)
                break
        else:
            if (folder / base).is_dir() and any((folder / base).glob("**/*.py")):
                found.append(folder / base)
    return sorted(found, key=Path.is_dir)  # a module stands before a mere folder, as in Python's own search


def is_own(file: str | Path) -> bool:
    """Whether the file is one of the user's own."""
    relative = _relative(file)
    if relative is None or {"site-packages", "dist-packages"} & set(relative.parts):
        return False
    top = relative.parts[0].removesuffix(".py")
    return top in tops if _folders else top not in PROJECT


def owns(module: str) -> bool:
    """Whether it is the user's own, in a process that was told of an experiment, or in a function."""
    top = module.split(".")[0]
    return top in tops if _folders else "LAMBDA_TASK_ROOT" in os.environ and top not in PROJECT


def shown(file: str | Path) -> str:
    """The file's name for people: from the current folder where it lies below it, else from the folder in which it was found."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(_relative(path) or path.name)


def _relative(file: str | Path) -> Path | None:
    path = Path(file)
    return next((path.relative_to(each) for each in folders() if path.is_relative_to(each)), None)


def taken(top: str) -> str | None:
    """Whose name it is, where it cannot be an own module's."""
    return next((whose for whose, names in _TAKEN.items() if top in names), None)
