"""What own code consists of: the files that its modules import of one another, and the packages that they want beside them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crossover.own_code import faults, imports, places
from crossover.own_code.packages import FIRST_PARTY


@dataclass(frozen=True)
class Wanted:
    """An import of own code that is not the user's own. `at_once`: importing the module needs it; else a function that may never run."""

    module: str
    file: Path
    line: int
    at_once: bool


@dataclass
class Reach:
    """`files` by their place in a bundle, which is that below their folder; `other`: folders' files of the same
    name that were not taken.
    """

    files: dict[Path, Path] = field(default_factory=dict)
    wanted: list[Wanted] = field(default_factory=list)
    passed_over: dict[Path, Path] = field(default_factory=dict)

    @property
    def first_party(self) -> set[str]:
        """Modules of this project that own code imports, and perhaps names that those define."""
        return {each.module for each in self.wanted if each.module.split(".")[0] in FIRST_PARTY}

    @property
    def tops(self) -> set[str]:
        return {path.parts[0].removesuffix(".py") for path in self.files}


def reach(*names: str, field: str = "training.model") -> Reach:
    """Of `package.module:name`s. A module that is not there is left out. Raises OwnCodeError for a file that is
    no Python, naming the line.
    """
    found, todo, seen = Reach(), [name.partition(":")[0] for name in names], set[str]()
    while todo:
        module = todo.pop()
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):  # a parent package is imported first
            name = ".".join(parts[:depth])
            if name in seen or not (files := _files_of(name)):
                continue
            seen.add(name)
            todo += _follow(found, name, files, field=field, named=names[0])
    return found


def _files_of(module: str) -> list[Path]:
    """Its files, unless the name belongs to Python or to this project, or means an installed package beside which a mere folder lies."""
    top = module.split(".")[0]
    if places.taken(top):
        return []
    found = places.locate(module)
    return [] if found and found[0].is_dir() and "." not in module and _installed(top) else found


def _installed(top: str) -> bool:
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(
        top, [each for each in sys.path if each and Path(each).resolve() not in places.folders()]
    )
    return spec is not None and spec.origin is not None


def _follow(found: Reach, module: str, files: list[Path], *, field: str, named: str) -> Iterator[str]:
    """Take the module's file; the own modules that it imports."""
    path = files[0]
    if path.is_dir():
        return iter(())
    base = next(each for each in places.folders() if path.is_relative_to(each))
    found.files[path.relative_to(base)] = path
    if len(files) > 1 and files[1].is_file():
        found.passed_over[path] = files[1]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        read = imports.read(path.read_text(encoding="utf-8"), package=package)
    except (SyntaxError, UnicodeDecodeError) as error:
        place = faults.place(path, getattr(error, "lineno", None))
        said = error.msg if isinstance(error, SyntaxError) else "is no text in UTF-8"
        raise faults.told(field, named, said, place=place) from error
    own = []
    for name, line, at_once in (
        *((name, line, True) for name, line in read.at_once.items()),
        *((name, line, False) for name, line in read.deferred.items()),
    ):
        if _files_of(name):
            own.append(name)
        elif not _files_of(name.split(".")[0]):  # else an attribute of an own module
            found.wanted.append(Wanted(name, path, line, at_once))
    return iter(own)
