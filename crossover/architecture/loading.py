"""How an architecture is found by its name, in functions/ or peers/ or in a package of the user's own, and what is wrong with one that is
found.
"""

import difflib
import importlib
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints

from crossover import own_code, runtime
from crossover.algorithms.codecs import CODECS
from crossover.architecture.declaration import CLAIMS, Architecture
from crossover.architecture.torch_imports import without_torch
from crossover.errors import ConfigError, CrossoverError
from crossover.experiment import Experiment, What, section_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("functions", "peers")
DEFINED = re.compile(r"^ARCHITECTURE\b", re.MULTILINE)


def architectures() -> list[str]:
    """The names of every architecture that exists: the modules of functions/ and peers/ that define an ARCHITECTURE."""
    names = {path.stem for package in PACKAGES for path in (ROOT / package).iterdir()}
    return sorted(
        name
        for name in names
        if any(DEFINED.search((ROOT / file).read_text("utf-8", "replace")) for file in _files(name))
    )


def training_architectures() -> list[str]:
    """Those of them that train a model; the others average gradients that are made."""
    return [name for name in architectures() if load(name).trains]


def sections(name: object, problem_of: Callable[[type], str | None] = lambda settings: None) -> dict[str, type]:
    """The class of every architecture's own settings, by its section of a YAML; `problem_of` says why one cannot be read.

    Raises ConfigError where `name`, the architecture that the YAML asks for, is there and faulty; another one that is faulty is its
    author's matter, not this YAML's.
    """
    found: dict[str, type] = {}
    whose: dict[str, str] = {}
    asked = name.replace("-", "_") if isinstance(name, str) else ""
    for each in dict.fromkeys([*architectures(), *([asked] if "." in asked or _files(asked) else [])]):
        try:
            settings = load(each).settings
        except ConfigError:
            if each == asked:
                raise
            continue
        if settings is None:
            continue
        section = section_of(settings)
        other = found.get(section, settings)
        if problem := problem_of(settings):
            if each == asked:
                raise ConfigError(f"architecture: {each!r}: {problem}")
        elif other is settings:
            found[section], whose[section] = settings, each
        elif asked in (each, whose[section]):
            raise ConfigError(
                f"architecture: {each!r}: the section {section!r} is described by {other.__module__}.{other.__name__} and by "
                f"{settings.__module__}.{settings.__name__}; share one class, or name a section: ClassVar[str] in the other"
            )
    return found


def _files(name: str) -> list[str]:
    """In each package `<name>.py`, or `<name>/__init__.py` where an architecture is a folder; an empty one is no architecture's."""
    found = (ROOT / package / f"{name}{end}" for package in PACKAGES for end in ("/__init__.py", ".py"))
    return [
        str(file.relative_to(ROOT)) for file in found if name.isidentifier() and file.is_file() and file.stat().st_size
    ]


def load(name: str) -> Architecture:
    """The ARCHITECTURE of `functions/<name>` or `peers/<name>`; of the user's own module where the name has a dot: `my_package.mine`.
    Raises ConfigError naming the choices, or the file, the line and what would mend it.
    """
    if "." in name:
        return _own(name)
    module_name = name.replace("-", "_")
    if not (files := _files(module_name)):
        known = architectures()
        near = difflib.get_close_matches(module_name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"architecture: {name!r} is unknown; one of {', '.join(known)}, or package.module{hint}")
    modules = {
        file: without_torch(partial(imported, file), _module(file), root=ROOT, packages=PACKAGES) for file in files
    }
    defined = [file for file in files if isinstance(getattr(modules[file], "ARCHITECTURE", None), Architecture)]
    if not defined:
        raise ConfigError(f"architecture: {name!r}: {files[0]} defines no ARCHITECTURE = Architecture({name!r}, ...)")
    if len(defined) > 1:
        raise ConfigError(
            f"architecture: {name!r}: {' and '.join(defined)} both define it; give one of them another name"
        )
    found: Architecture = modules[defined[0]].ARCHITECTURE
    checked = runtime.kept("architectures that were checked", dict[str, Architecture])
    if checked.get(name) is not found:  # a projection asks thousands of times
        _check(found, name, ROOT / defined[0], shown=defined[0])
        checked[name] = found
    return found


def architecture_of(experiment: Experiment) -> Architecture:
    """The architecture of `experiment`, in the form that its settings ask for. Raises ConfigError as `load` does."""
    return load(experiment.architecture).asked_by(experiment)


def _own(name: str) -> Architecture:
    """Beside the experiment's file or in the current folder, as own models are."""
    top, _, rest = name.partition(".")
    if top in PACKAGES and rest in architectures():
        raise ConfigError(f"architecture: {name!r} is one of this project's; write {rest}")
    if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
        raise ConfigError(
            f"architecture: {name!r} is no name; expected one of {', '.join(architectures())}, or the module of your own that defines "
            "ARCHITECTURE, such as my_package.mine"
        )
    where = f"{name.replace('-', '_')}:ARCHITECTURE"
    found: Architecture = without_torch(
        partial(own_code.load, where, field="architecture", kind=Architecture),
        where.partition(":")[0],
        root=ROOT,
        packages=PACKAGES,
    )
    file = own_code.file_of(where)
    _check(found, name, file, shown=own_code.shown(file))
    if found.program is not None:
        raise ConfigError(
            f"architecture: {name!r} is a program for EC2; one outside this project is a tree of steps, run=..."
        )
    return found


def _check(architecture: Architecture, name: str, file: Path, *, shown: str) -> None:
    """Raises ConfigError naming the line of ARCHITECTURE where it says of itself what cannot be."""
    if problem := next(_problems(architecture, name.rpartition(".")[2].replace("-", "_")), None):
        lines = file.read_text("utf-8").splitlines()
        line = next((number for number, text in enumerate(lines, 1) if text.startswith("ARCHITECTURE")), 1)
        raise ConfigError(f"architecture: {name!r}: {shown}, line {line}: {problem}")


def _problems(architecture: Architecture, name: str) -> Iterator[str]:
    if architecture.name != name:
        yield f"is named {architecture.name!r}; expected {name!r}, as its file is"
    if unknown := sorted(set(architecture.claims) - CLAIMS.keys()):
        yield f"claims {unknown[0]!r}, which nothing tests; expected some of {', '.join(CLAIMS)}"
    if (architecture.run is None) == (architecture.program is None):
        yield "expected either run=, the tree of its steps, or program=, what runs on instances"
    for what, compressions in architecture.exchanges.items():
        if unknown := sorted({what}.difference(get_args(What)) | set(compressions).difference(CODECS)):
            objects, ways = ", ".join(get_args(What)), ", ".join(CODECS)
            yield f"exchanges {unknown[0]!r}; expected some of {objects}, each with some of {ways}"
    for named in ("tensor_hosts", "state"):
        given, choices = getattr(architecture, named), get_args(get_type_hints(Architecture)[named])
        if given not in choices:
            yield f"{named}={given!r}: expected one of {', '.join(choices)}"
    projections = Path(__file__).parents[1] / "simulation" / "mirror"  # which functions do not have with them
    if (
        architecture.simulation
        and projections.is_dir()
        and not (projections / f"{architecture.simulation}.py").is_file()
    ):
        yield f"simulation={architecture.simulation!r}: crossover/simulation/mirror has no such module; leave it out to do without"
    settings = architecture.settings
    if settings is None:
        return
    if not is_dataclass(settings) or any(
        f.default is MISSING and f.default_factory is MISSING for f in fields(settings)
    ):
        yield f"settings={settings.__name__}: expected a frozen dataclass of which every field has a default"
    elif (section := section_of(settings)) in {f.name for f in fields(Experiment)}:
        yield (
            f"settings={settings.__name__} would be the section {section!r}, which every experiment has; expected another name: "
            f'section: ClassVar[str] = "{section}_settings" in the class'
        )


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(file: str) -> ModuleType:
    """The module of an architecture's file, such as functions/spirt/__init__.py. Raises ConfigError naming the line on which it fails."""
    try:
        return importlib.import_module(_module(file))
    except CrossoverError:
        raise
    except Exception as error:
        inside = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")]
        path, line = inside[-1].filename, inside[-1].lineno
        if isinstance(error, SyntaxError) and error.filename:
            path, line = error.filename, error.lineno
        where = path.removeprefix(f"{ROOT}/")
        raise ConfigError(
            f"architecture: {file} cannot be imported: {where}, line {line}: {type(error).__name__}: {error}"
        ) from error
