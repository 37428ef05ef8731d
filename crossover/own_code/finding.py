"""A function or class of the user's own, by its name: imported from where own modules lie, or refused with file and line."""

import difflib
import importlib
import importlib.machinery
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from crossover.errors import ConfigError, CrossoverError, OwnCodeError
from crossover.own_code import faults
from crossover.own_code.dependencies import reach
from crossover.own_code.places import folders, has_folders, is_own, lock, shown, taken, tops

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def load(name: str, *, field: str, kind: Any = Callable) -> Any:
    """The function or class `package.module:name` that `field` of the experiment names, or what else is of `kind`.

    Raises OwnCodeError with field, file and line: it is not there, cannot be imported, is not callable.
    """
    with lock:
        return _load(name, field, kind)


def file_of(name: str) -> Path:
    """The file of a `package.module:name` that was loaded."""
    return Path(str(sys.modules[name.partition(":")[0]].__file__))


def _load(name: str, field: str, kind: Any) -> Any:
    check_name(name, field)
    module_name, _, attribute = name.partition(":")
    _make_findable(name, field)
    try:
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


def _make_findable(name: str, field: str) -> None:
    """On a function the modules lie on the path already, and nothing else is there to be told apart from them."""
    if not has_folders() or name.partition(":")[0].split(".")[0] in tops:
        return
    tops.update(reach(name, field=field).tops)
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """For Python's import: the modules that own code reaches, in the folders where they are looked for."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is not None or name not in tops:
            return None  # what lies in a package is found through the package
        return PathFinder.find_spec(name, [str(each) for each in folders()], target)


def _not_imported(name: str, field: str, error: BaseException) -> CrossoverError:
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
    looked = " and ".join(dict.fromkeys(_shown_folder(each) for each in folders()))
    return faults.told(field, name, f"there is no module {name.partition(':')[0]}; looked in {looked}", place=None)


def _shown_folder(folder: Path) -> str:
    if folder == Path.cwd():
        return "the current folder"
    return str(folder.relative_to(Path.cwd())) if folder.is_relative_to(Path.cwd()) else str(folder)


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return shown(file) if file else None
