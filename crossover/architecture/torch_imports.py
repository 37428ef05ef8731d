"""Which import of an architecture's brings torch, which functions that do not compute have not."""

import importlib.util
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from crossover import own_code
from crossover.errors import ConfigError
from crossover.own_code import imports

T = TypeVar("T")


def without_torch(load: Callable[[], T], module: str, *, root: Path, packages: Collection[str]) -> T:
    """What `load` gives; refused where importing `module` for it brings torch, since functions that do not compute have none."""
    before = "torch" in sys.modules
    found = load()
    if before or "torch" not in sys.modules:
        return found
    del sys.modules[module]
    ours = {*packages, module.split(".")[0]}
    file, line, name = _torch_comes_by(module, ours, set()) or (Path(module), 1, "torch")
    where = file.relative_to(root) if file.is_relative_to(root) else own_code.shown(file)
    brings = "imports torch" if name.split(".")[0] == "torch" else f"imports {name}, which imports torch,"
    raise ConfigError(
        f"architecture: {where}, line {line}: {brings} when it is imported, and functions that do not compute have none; import it inside "
        "the step that needs it"
    )


def _torch_comes_by(module: str, ours: set[str], seen: set[str]) -> tuple[Path, int, str] | None:
    """File, line and name of the import in the architecture's files (the packages `ours`) by which torch comes."""
    spec = importlib.util.find_spec(module) if module not in seen else None
    seen.add(module)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return None
    file = Path(str(spec.origin))
    package = module if spec.submodule_search_locations else module.rpartition(".")[0]
    for name, line in imports.read(file.read_text("utf-8"), package=package).at_once.items():
        top = name.split(".")[0]
        if top == "torch":
            return file, line, name
        if top in {"crossover", *ours} and (deeper := _torch_comes_by(name, ours, seen)):
            return deeper if top in ours else (file, line, name)
    return None
