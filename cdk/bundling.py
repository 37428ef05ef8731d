"""The first-party files that a handler can reach, so that its zip holds only those. Third-party packages come from layers.

Imports at module level run when the function starts: the packages behind them must be installed. Imports inside functions are deferred
on purpose (`crossover/workflow/context.py` is the composition root); their files belong into the zip as well, unless importing them
needs a package that the function lacks: a step without the torch layer cannot reach what imports torch.
"""

import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from crossover import user_code
from crossover.errors import CrossoverError
from crossover.user_code import FIRST_PARTY, TORCH


class Unreachable(CrossoverError):
    """The error at synthesis if a handler imports at module level a package that its layers lack, which is a bug of the project."""


@dataclass(frozen=True)
class FileImports:
    """The modules that one Python file imports: `at_once`, at module level, and `deferred`, inside functions."""

    at_once: frozenset[str]
    deferred: frozenset[str]


@dataclass(frozen=True)
class Closure:
    """The project's files to put into the zip of a function or program: `files`, all that its module can reach by imports, as paths
    relative to the project's root, and `computing`, the names of the modules among them that import torch at module level. Both are sorted.
    """

    files: tuple[Path, ...]  # relative to the root, sorted
    computing: tuple[str, ...] = ()  # sorted


class Sources:
    """The project's Python files below `root` and what they import. Each file is parsed when it is first needed."""

    def __init__(self, root: Path) -> None:
        """Remember the folder `root`; nothing is read yet."""
        self.root = root
        self._imports: dict[str, FileImports] = {}
        self._needs: dict[str, frozenset[str]] = {}

    def find_file(self, module: str) -> Path | None:
        """Return the path, relative to the root, of the file that defines `module`, or None if it is not one of this project's modules."""
        if module.split(".")[0] not in FIRST_PARTY:
            return None
        base = Path(*module.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if (self.root / path).is_file():
                return path
        return None

    def read_imports(self, module: str) -> FileImports:
        """Return the imports of `module`, one of this project's: names of this project's modules and of third-party packages. The result
        is kept. Raises AssertionError if the module has no file.
        """
        if module not in self._imports:
            path = self.find_file(module)
            assert path is not None, module
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            found = user_code.read_imports((self.root / path).read_text(encoding="utf-8"), package=package)
            at_once = found.at_once.keys() | {module.rpartition(".")[0]} - {""}  # a parent package is imported first
            self._imports[module] = FileImports(self._known(at_once), self._known(found.deferred.keys() - at_once))
        return self._imports[module]

    def _known(self, names: Collection[str]) -> frozenset[str]:
        """Return the names among `names` that are this project's modules, and the top-level package of each third-party one. Other names
        (attributes, the standard library) are dropped.
        """
        first = {name for name in names if self.find_file(name)}
        tops = {name.split(".")[0] for name in names}
        return frozenset(first | {top for top in tops - set(FIRST_PARTY) if top not in sys.stdlib_module_names})

    def list_required_packages(self, module: str) -> frozenset[str]:
        """Return the names of the third-party packages without which importing `module` fails. Imports inside functions do not count."""
        if module not in self._needs:
            reached = self._reach([module], deferred=False, leave_out=frozenset())
            packages = frozenset().union(*(self.read_imports(name).at_once for name in reached))
            self._needs[module] = frozenset(name for name in packages if not self.find_file(name))
        return self._needs[module]

    def list_reachable_packages(self, module: str) -> frozenset[str]:
        """Return the names of the third-party packages that are needed to import `module` or any module that it can reach, including by
        imports inside functions.
        """
        reached = self._reach([module], deferred=True, leave_out=frozenset())
        return frozenset().union(*(self.list_required_packages(name) for name in reached))

    def _reach(self, todo: list[str], *, deferred: bool, leave_out: frozenset[str]) -> set[str]:
        """Return the names of the project's modules that the modules in `todo` import directly or indirectly, including themselves. `todo`
        is emptied.

        `deferred`: whether imports inside functions are followed; `leave_out`: packages; a module that needs one of them is skipped.
        """
        seen: set[str] = set()
        while todo:
            module = todo.pop()
            if module in seen or not self.find_file(module):
                continue
            if leave_out and self.list_required_packages(module) & leave_out:
                continue
            seen.add(module)
            found = self.read_imports(module)
            todo += found.at_once | (found.deferred if deferred else frozenset())
        return seen

    def collect_files(self, module: str, *, available: frozenset[str], own: Collection[str] = ()) -> Closure:
        """Return the files to bundle for a handler in `module`: the module and all of this project's modules that it imports, directly or
        indirectly, at module level or inside functions. Modules that need torch are left out if torch is not available.

        `available`: the third-party packages that its layers provide; `own`: modules of this project that user code imports, which are
        bundled too. Raises Unreachable if importing `module` itself needs a package that is not available, or if anything that `module`
        can reach needs one other than torch. Modules that only `own` reaches are left out instead if they need such a package.
        """
        if missing := self.list_required_packages(module) - available:
            raise Unreachable(
                f"{module}: importing it needs {', '.join(sorted(missing))}, which the function's layers lack; "
                "import it inside the function that uses it, or mark the step torch=True"
            )
        lacking = self.list_reachable_packages(module) - available
        if unknown := lacking - TORCH:  # only what computes may be left out: the rest is reached sooner or later
            raise Unreachable(f"{module}: can reach {', '.join(sorted(unknown))}, which no layer has")
        lacking |= frozenset().union(*(self.list_reachable_packages(name) for name in own)) - available
        reached = self._reach([module, *own], deferred=True, leave_out=lacking)
        files = tuple(sorted(path for name in reached if (path := self.find_file(name))))
        return Closure(files, tuple(sorted(name for name in reached if self.read_imports(name).at_once & TORCH)))


def copy_files(closure: Closure, *, root: Path, out: Path, own: Mapping[Path, Path] | None = None) -> None:
    """Copy the contents of the files of `closure` from `root` to the folder `out`, under the same relative paths, without permissions and
    times, so that equal sources give equal zips. Folders are created; existing files are overwritten.

    `own`: files of user code to copy too, as {path in the zip: source}; at an equal path they replace the project's.
    """
    for path, source in ({each: root / each for each in closure.files} | {**(own or {})}).items():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
