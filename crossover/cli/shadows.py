"""Files of the user's that Python imports in place of a package of the same name, because they lie on PYTHONPATH, as an error's cause.

It imports nothing but what Python has loaded before any file of the user's: the others may be the ones that are replaced.
"""

import os
import sys
from collections.abc import Iterator

_MISSED = ("ImportError", "ModuleNotFoundError", "AttributeError")  # by what a name is missed


def explain(error: BaseException) -> str:
    """Return a sentence that names a file of the user's which was imported in place of a module of Python's or a package of the same name
    and is involved in `error` or its causes, with the remedy; "" if there is none.
    """
    for each in _list_causes(error):
        for name, file in (*_list_named(each), *_list_passed(each)):
            if whose := _find_replaced(name, file):
                return _describe(file, whose)
    return ""


def explain_any(error: BaseException) -> str:
    """Return what `explain` returns for `error`, or else such a sentence on any loaded module that replaces another; "" if none does."""
    if said := explain(error):
        return said
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and isinstance(file, str) and (whose := _find_replaced(name, file)):
            return _describe(file, whose)
    return ""


def _describe(file: str, whose: str) -> str:
    """Return the sentence on the user's `file` that replaces `whose`, the other module in words."""
    if os.path.basename(file) == "__init__.py":
        file = os.path.dirname(file)
    return f"{file} is imported in place of {whose}: rename it, or take its folder out of PYTHONPATH"


def _list_causes(error: BaseException | None) -> list[BaseException]:
    """Return the error and all errors that it was raised from or while they were handled, each once."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        if each is not None and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found


def _list_named(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield (name, file) of each top-level module that the message of `error` names, if it is about a missing module or attribute, perhaps
    of another process.
    """
    words = f"{type(error).__name__}: {error}"
    if not any(kind in words for kind in _MISSED):
        return
    for quoted in words.split("'")[1::2]:
        name = quoted.partition(".")[0]
        if name.isidentifier() and (file := _find_file(name)):
            yield name, file


def _list_passed(error: BaseException) -> Iterator[tuple[str, str]]:
    """Yield (name of its top-level module, file) for each file in the traceback of `error`."""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        folder, last = os.path.split(file)
        yield (os.path.basename(folder) if last == "__init__.py" else last.removesuffix(".py")), file
        trace = trace.tb_next


def _find_file(name: str) -> str | None:
    """Return the file that importing the top-level module `name` takes, or has taken, without importing it: for a package, its
    __init__.py. None if there is none, as for a module that is compiled into Python and for a folder without __init__.py. Only .py files
    are found for modules that are not loaded.
    """
    if name in sys.builtin_module_names:
        return None
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if isinstance(loaded, str):
        return loaded
    for folder in sys.path:
        for file in _list_files(folder or os.getcwd(), name):
            if os.path.isfile(file):
                return file
    return None


def _list_files(folder: str, name: str) -> tuple[str, str]:
    """Return the paths of the two files in which the top-level module `name` may be in `folder`, in Python's order: a package's
    __init__.py, and a .py file. They need not exist.
    """
    return os.path.join(folder, name, "__init__.py"), os.path.join(folder, f"{name}.py")


def _find_replaced(name: str, file: str) -> str | None:
    """Return in words which module or package of the top-level name `name` the user's `file` replaces; None if `file` is no user's, is
    not found on Python's path under that name, or replaces none.
    """
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    homes = [
        os.path.dirname(os.__file__),
        *(each for each in sys.path if each.endswith(("site-packages", "dist-packages"))),
    ]
    place = os.path.dirname(os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file)
    if any(f"{place}{os.sep}".startswith(f"{home}{os.sep}") for home in homes) or place == own:
        return None
    if place not in [os.path.abspath(each) for each in sys.path]:
        return None
    if name in sys.stdlib_module_names:
        return f"Python's own module {name}"
    if any(os.path.exists(each) for home in (*homes, own) for each in _list_files(home, name)):
        return f"the package {name}"
    return None
