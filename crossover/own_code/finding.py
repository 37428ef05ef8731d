"""Where the user's own modules are found: beside the experiment's file, then in the current folder; in a function, at its root.

Only the modules that own code reaches are taken from there, so no other file of those folders can stand before a package that this project
itself imports.
"""

import difflib
import importlib
import importlib.machinery
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from crossover.errors import ConfigError, CrossoverError, OwnCodeError
from crossover.own_code.packages import DATAPLANE, PROJECT, RUNTIME, TORCH

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_TAKEN = {
    "a package of this project": PROJECT,
    "a package that every function has": RUNTIME | DATAPLANE | TORCH,
    "a module of Python's standard library": frozenset(sys.stdlib_module_names),
}

_lock = threading.RLock()
_folders: tuple[Path, ...] = ()
_tops: set[str] = set()  # top-level names that are looked for in the folders


def look_in(*where: str | Path) -> None:
    """The folders of this process's experiment, in the order in which they are searched. What was found in others is forgotten."""
    global _folders
    chosen = tuple(dict.fromkeys(Path(each).resolve() for each in where))
    with _lock:
        if chosen == _folders:
            return
        for name in [each for each in sys.modules if each.split(".")[0] in _tops]:
            del sys.modules[name]
        _folders = chosen
        _tops.clear()
        importlib.invalidate_caches()


def folders() -> tuple[Path, ...]:
    """Where own modules are looked for: in a function or on an instance, which are told none, where their code lies."""
    return _folders or (Path(os.environ.get("LAMBDA_TASK_ROOT") or os.getcwd()),)


def has_folders() -> bool:
    """Whether this process was told where an experiment's own modules lie: a function or program is not."""
    return bool(_folders)


def load(name: str, *, field: str, kind: Any = Callable) -> Any:
    """The function or class `package.module:name` that `field` of the experiment names, or what else is of `kind`.

    Raises OwnCodeError with field, file and line: it is not there, cannot be imported, is not callable, does at import what is refused.
    """
    with _lock:
        return _load(name, field, kind)


def file_of(name: str) -> Path:
    """The file of a `package.module:name` that was loaded."""
    return Path(str(sys.modules[name.partition(":")[0]].__file__))


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
    return top in _tops if _folders else top not in PROJECT


def owns(module: str) -> bool:
    """Whether it is the user's own, in a process that was told of an experiment, or in a function."""
    top = module.split(".")[0]
    return top in _tops if _folders else "LAMBDA_TASK_ROOT" in os.environ and top not in PROJECT


def shown(file: str | Path) -> str:
    """The file's name for people: from the current folder where it lies below it, else from the folder in which it was found."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(_relative(path) or path.name)


def _relative(file: str | Path) -> Path | None:
    path = Path(file)
    return next((path.relative_to(each) for each in folders() if path.is_relative_to(each)), None)


def _load(name: str, field: str, kind: Any) -> Any:
    from crossover.own_code import faults, watching

    check_name(name, field)
    module_name, _, attribute = name.partition(":")
    _make_findable(name, field)
    try:
        with watching.imports(field, name):
            module = importlib.import_module(module_name)
    except CrossoverError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a module that ends the program is no module
        raise _not_imported(name, field, error) from error
    if not hasattr(module, attribute):
        defined = [each for each in vars(module) if not each.startswith("_")]
        near = difflib.get_close_matches(attribute, defined, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise faults.told(field, name, f"defines no {attribute!r}{hint}", place=_file(module))
    found = getattr(module, attribute)
    if not isinstance(found, kind):
        expected = "a function" if kind is Callable else kind.__name__
        problem = f"{attribute} is of type {type(found).__name__}; {expected} is expected"
        raise faults.told(field, name, problem, place=_file(module))
    return found


def check_name(name: str, field: str) -> None:
    """Raises ConfigError where the name is none, or its first part belongs to somebody else."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{field}: {name!r} is no package.module:name, such as mytask:factory for a function in mytask.py"
        )
    top = name.partition(":")[0].split(".")[0]
    if whose := taken(top):
        raise ConfigError(f"{field}: {name!r}: {top} is the name of {whose}; give your module another one")


def taken(top: str) -> str | None:
    """Whose name it is, where it cannot be an own module's."""
    return next((whose for whose, names in _TAKEN.items() if top in names), None)


def _make_findable(name: str, field: str) -> None:
    """On a function the modules lie on the path already, and nothing else is there to be told apart from them."""
    if not _folders or name.partition(":")[0].split(".")[0] in _tops:
        return
    from crossover.own_code.reach import reach

    _tops.update(reach(name, field=field).tops)
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """For Python's import: the modules that own code reaches, in the folders where they are looked for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or name not in _tops:
            return None  # what lies in a package is found through the package
        return PathFinder.find_spec(name, [str(each) for each in folders()], target)


def _not_imported(name: str, field: str, error: BaseException) -> CrossoverError:
    from crossover.own_code import faults

    module = name.partition(":")[0]
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return missing(field, name)
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return faults.told(field, name, f"{error.msg}", place=faults.place(error.filename, error.lineno))
    if isinstance(error, SystemExit):
        return faults.told(
            field, name, "ends the program when it is imported", place=faults.of_traceback(error.__traceback__)
        )
    return faults.failure(field, name, error)


def missing(field: str, name: str) -> OwnCodeError:
    """What `name`'s module is called where none of the folders has it."""
    from crossover.own_code import faults

    looked = " and ".join(dict.fromkeys(_shown_folder(each) for each in folders()))
    return faults.told(field, name, f"there is no module {name.partition(':')[0]}; looked in {looked}", place=None)


def _shown_folder(folder: Path) -> str:
    if folder == Path.cwd():
        return "the current folder"
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return shown(file) if file else None
