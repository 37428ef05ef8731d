"""The user code that is bundled for functions and programs: its Python files. Loaders of data sets run here and stay here."""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossover import user_code
from crossover.experiment import Experiment
from crossover.user_code import COMPUTING, FIRST_PARTY, PROJECT, Reach, Wanted, reach


def names(experiment: Experiment) -> dict[str, str]:
    """`package.module:name` by field, of all that functions and programs use."""
    return dict(_named("training", experiment.resolved()["training"]))


def _travelling(experiment: Experiment) -> dict[str, str]:
    """As `names`, with an architecture that is not this project's."""
    own = {"architecture": f"{experiment.module}:ARCHITECTURE"} if experiment.outside else {}
    return own | names(experiment)


def used(experiment: Experiment) -> dict[str, str]:
    """As `names`, with the data set's loader, which this machine alone uses."""
    dataset = experiment.data.dataset
    return {**({"data.dataset": dataset} if ":" in dataset else {}), **names(experiment)}


def _named(field: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _named(f"{field}.{name}", each)
    elif isinstance(value, str) and ":" in value:
        yield field, value


def check(experiment: Experiment, *, travels: bool = True) -> list[str]:
    """Import all own code that the experiment names; words worth reading though nothing is wrong. Raises OwnCodeError.

    `travels`: functions or programs will hold it, apart from a data set's loader.
    """
    for field, name in names(experiment).items():
        with user_code.building(field, name):
            user_code.load(name, field=field)
    for field, name in used(experiment).items():
        user_code.load(name, field=field)
    return _notes(bundled(experiment)) if travels else []


def bundled(experiment: Experiment) -> Reach:
    """Return the files that functions and programs must hold. Raises OwnCodeError if they could not be imported there; the error names the
    line and what would help.
    """
    found = Reach()
    for field, name in _travelling(experiment).items():
        user_code.check_name(name, field)
        one = reach(name, field=field)
        if not user_code.locate(name.partition(":")[0]):
            raise user_code.missing(field, name)
        for wanted in one.wanted:
            if wanted.at_once and (problem := _unavailable(wanted)):
                raise user_code.user_code_error(
                    field, name, problem, place=user_code.place_in_file(wanted.file, wanted.line)
                )
        found.files |= one.files
        found.wanted += one.wanted
        found.passed_over |= one.passed_over
    return found


def digests(experiment: Experiment) -> dict[str, str]:
    """Return {file: hash} of the user code that functions and programs use. Two runs with equal hashes trained with the same user code."""
    files = {
        path: file
        for field, name in _travelling(experiment).items()
        for path, file in reach(name, field=field).files.items()
    }
    return {path.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for path, file in sorted(files.items())}


def digests_of_all(experiment: Experiment) -> dict[str, str]:
    """Return the SHA-256 of every own file that the experiment reaches, by path; the loader of its data set among them."""
    files = dict[Path, Path]()
    for field, name in {**_travelling(experiment), **used(experiment)}.items():
        files |= files_of(name, field=field)
    return {path.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for path, file in sorted(files.items())}


def files_of(name: str, *, field: str) -> Mapping[Path, Path]:
    """Return the own files that importing `package.module:name` reads, by their place below their folder. Nothing is imported. Raises
    OwnCodeError for a file that is no Python.
    """
    return reach(name, field=field).files


def fingerprint(experiment: Experiment) -> str:
    """One hash of all of `digests`; empty without own code."""
    found = digests(experiment)
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16] if found else ""


def _notes(found: Reach) -> list[str]:
    """Of two files of the same name which was taken; imports that may fail later."""
    lines = [
        f"{user_code.place_in_file(taken, None)} is taken, not {user_code.place_in_file(other, None)}"
        for taken, other in found.passed_over.items()
    ]
    late = {each.module.split(".")[0]: each for each in found.wanted if not each.at_once and _unavailable(each)}
    return lines + [
        f"{user_code.place_in_file(each.file, each.line)}: functions have no {top}; only what runs on this machine, "
        "such as a data set's loader, can reach this line"
        for top, each in late.items()
    ]


def _unavailable(wanted: Wanted) -> str | None:
    """Why functions could not import it, and what would help."""
    top = wanted.module.split(".")[0]
    if top in COMPUTING or top in FIRST_PARTY or top in sys.stdlib_module_names:
        return None
    if top in PROJECT:
        return f"imports {top}, which functions have not: it is this project's part that deploys"
    if top == "numpy":
        return f"imports numpy, for which functions have no room beside torch: {_LATER}, or use torch"
    return f"imports {top}, which functions have not: {_LATER}{_help(top, wanted.file)}"


_LATER = "import it inside the loader of data.dataset if that alone needs it, which runs on this machine"


def _help(top: str, file: Path) -> str:
    where = _find_installed(top)
    if where is None:
        return ""
    if any(where.rglob("*.so")) if where.is_dir() else where.suffix == ".so":
        return "; it is compiled, and neither layer nor image can carry it: elsewhere use torch's operations"
    return f"; it is written in Python alone: with a copy of {where.name} beside {file.name} it travels with your code"


def _find_installed(top: str) -> Path | None:
    """Return the package's folder, or its only file; None if it is not found."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # something that is no package stands under its name
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    return path.parent if re.fullmatch(r"__init__\..*", path.name) else path
