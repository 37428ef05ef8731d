"""The first-party files that a handler can reach, so that its zip holds those and nothing else. Third-party packages come from layers.

Imports at module level run when the function starts: the packages behind them must be there. Imports inside functions are deferred on
purpose (`crossover/context` is the composition root); their files belong into the zip as well, unless importing them needs a package
that the function lacks: a step without the torch layer cannot reach what imports torch.
"""

import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from crossover.errors import CrossoverError
from crossover.own_code import imports
from crossover.own_code.packages import FIRST_PARTY, TORCH


class Unreachable(CrossoverError):
    """A handler imports at module level what its layers do not have: a fault of the project, found at synthesis."""


@dataclass(frozen=True)
class FileImports:
    """What one file imports: module names, first-party and other."""

    at_once: frozenset[str]
    deferred: frozenset[str]


@dataclass(frozen=True)
class Closure:
    """What a handler can reach."""

    files: tuple[Path, ...]  # relative to the root, sorted
    computing: tuple[str, ...] = ()  # the modules among them that import torch themselves


class Sources:
    """The project's Python files below `root`, parsed when first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._imports: dict[str, FileImports] = {}
        self._needs: dict[str, frozenset[str]] = {}

    def path(self, module: str) -> Path | None:
        """The file of a first-party module, relative to the root; None for all others."""
        if module.split(".")[0] not in FIRST_PARTY:
            return None
        base = Path(*module.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if (self.root / path).is_file():
                return path
        return None

    def imports(self, module: str) -> FileImports:
        if module not in self._imports:
            path = self.path(module)
            assert path is not None, module
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            found = imports.read((self.root / path).read_text(encoding="utf-8"), package=package)
            at_once = found.at_once.keys() | {module.rpartition(".")[0]} - {""}  # a parent package is imported first
            self._imports[module] = FileImports(self._known(at_once), self._known(found.deferred.keys() - at_once))
        return self._imports[module]

    def _known(self, names: Collection[str]) -> frozenset[str]:
        """First-party modules that exist (of `from a import b`, b may be an attribute), third-party top-level packages."""
        first = {name for name in names if self.path(name)}
        tops = {name.split(".")[0] for name in names}
        return frozenset(first | {top for top in tops - set(FIRST_PARTY) if top not in sys.stdlib_module_names})

    def needs(self, module: str) -> frozenset[str]:
        """Third-party packages that must be there to import `module`."""
        if module not in self._needs:
            reached = self._reach([module], deferred=False, leave_out=frozenset())
            packages = frozenset().union(*(self.imports(name).at_once for name in reached))
            self._needs[module] = frozenset(name for name in packages if not self.path(name))
        return self._needs[module]

    def wanted(self, module: str) -> frozenset[str]:
        """Third-party packages that `module` or anything it can reach imports at module level."""
        reached = self._reach([module], deferred=True, leave_out=frozenset())
        return frozenset().union(*(self.needs(name) for name in reached))

    def _reach(self, todo: list[str], *, deferred: bool, leave_out: frozenset[str]) -> set[str]:
        seen: set[str] = set()
        while todo:
            module = todo.pop()
            if module in seen or not self.path(module):
                continue
            if leave_out and self.needs(module) & leave_out:
                continue
            seen.add(module)
            found = self.imports(module)
            todo += found.at_once | (found.deferred if deferred else frozenset())
        return seen

    def closure(self, module: str, *, available: frozenset[str], own: Collection[str] = ()) -> Closure:
        """What `module` can reach where only `available` third-party packages are installed. `own`: what own code imports beside it.

        Raises Unreachable if importing `module` itself needs another one.
        """
        if missing := self.needs(module) - available:
            raise Unreachable(
                f"{module}: importing it needs {', '.join(sorted(missing))}, which the function's layers lack; "
                "import it inside the function that uses it, or mark the step torch=True"
            )
        lacking = self.wanted(module) - available
        if unknown := lacking - TORCH:  # only what computes may be left out: the rest is reached sooner or later
            raise Unreachable(f"{module}: can reach {', '.join(sorted(unknown))}, which no layer has")
        lacking |= frozenset().union(*(self.wanted(name) for name in own)) - available
        reached = self._reach([module, *own], deferred=True, leave_out=lacking)
        files = tuple(sorted(path for name in reached if (path := self.path(name))))
        return Closure(files, tuple(sorted(name for name in reached if self.imports(name).at_once & TORCH)))


def stage(closure: Closure, *, root: Path, out: Path, own: Mapping[Path, Path] | None = None) -> None:
    """Copy the files, contents alone: CDK's asset hash is of names and contents, so equal sources give equal zips.

    `own`: those of own code, by their places; they lie beside ours, where Python looks first.
    """
    for path, source in ({each: root / each for each in closure.files} | {**(own or {})}).items():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
